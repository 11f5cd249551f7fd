"""The second tier of CI: tests of faults and load, with few workers. `scripts/soak gate`.

A test that fails is repeated twice, alone. If it passes both times, it counts as flaky: it is named in the last line
and in flaky.jsonl, and the gate passes. Nowhere else is a test repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAKY = ROOT / "flaky.jsonl"
WORKERS = 4
REPEATS = 2
_SELECTION = ("-m", "gate and not soak", "@tests/full.txt")


class Failures:
    """Notes the tests that fail, by node id. Without xdist the hook is called here, too."""

    def __init__(self) -> None:
        self.by_id: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            test = report.nodeid.partition("@")[0] if "@" in report.nodeid.rpartition("]")[2] else report.nodeid
            self.by_id.setdefault(test, str(report.longreprtext).strip().rpartition("\n")[2])


def main(words: list[str]) -> int:
    failures = Failures()
    parallel = ["-q", "-n", str(WORKERS), "--dist", "loadgroup", "--no-loadscope-reorder"]
    status = int(pytest.main([*parallel, *_SELECTION, *words], plugins=[failures]))
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or bool(status) != bool(failures.by_id):
        return status or 1  # pytest itself failed
    return judge(failures.by_id, _passes, FLAKY)


def judge(failures: dict[str, str], passes: Callable[[str], bool], flaky: Path) -> int:
    """The exit status. `failures`: the error of each test that failed. The repeats end with the first that fails."""
    for test, error in failures.items():
        print(f"GATE: again, alone: {test}", flush=True)
        if not all(passes(test) for _ in range(REPEATS)):
            print(f"GATE: failed: {test}")
            return 1
        with flaky.open("a", encoding="utf-8") as file:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(json.dumps({"at": now, "test": test, "error": error}) + "\n")
    print(f"GATE: {len(failures)} flaky: {', '.join(failures)}" if failures else "GATE: passed, nothing flaky")
    return 0


def _passes(test: str) -> bool:
    options = [word for word in (ROOT / "tests/full.txt").read_text().split() if word.startswith("--")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gate and not soak", *options, test]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
