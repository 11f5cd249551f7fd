"""Is `scripts/test` to be trusted? `scripts/soak trust N` runs it N times, each time in a fresh clone of HEAD.

Every second run is beside two busy loops, and one in twelve has its workers frozen at random (tests/freezes.py). Each
run prints a line, and appends one to trust.jsonl, where the next call goes on; the output of a run that fails is kept
as trust-COMMIT-TIME.log.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "trust.jsonl"
BUSY_LOOPS = 2
TWELVE = 12
QUIET, BUSY, FROZEN = "quiet", "beside two busy loops", "frozen workers"


def main(words: list[str]) -> int:
    done = len(RUNS.read_text(encoding="utf-8").splitlines()) if RUNS.exists() else 0
    count = int(words[0]) if words else TWELVE
    failed = sum(not _passes(_condition(number)) for number in range(done, done + count))
    print(f"{count} runs, {failed} failed")
    return int(failed > 0)


def _condition(number: int) -> str:
    return FROZEN if number % TWELVE == 0 else BUSY if number % 2 else QUIET


def _passes(condition: str) -> bool:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="dibs-trust-") as place, _busy(BUSY_LOOPS if condition == BUSY else 0):
        subprocess.run(["git", "clone", "--quiet", ROOT, place], check=True)
        began = time.monotonic()
        done = subprocess.run(
            ["scripts/test"], cwd=place, env=_environment(condition), stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    seconds = round(time.monotonic() - began)
    counts = [int(number) for number in re.findall(r"(\d+) passed", done.stdout)]
    now = datetime.now(UTC)
    line = {
        "at": now.isoformat(timespec="seconds"), "commit": commit, "condition": condition, "exit": done.returncode,
        "seconds": seconds, "passed": counts, "failed": re.findall(r"(?m)^(?:FAILED|ERROR) (\S+)", done.stdout),
    }  # fmt: skip
    with RUNS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if done.returncode:
        (ROOT / f"trust-{commit}-{now:%H%M%S}.log").write_text(done.stdout, encoding="utf-8")
    print(*(f"{key}={value}" for key, value in line.items()), flush=True)
    return done.returncode == 0


def _environment(condition: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {"DIBS_REQUIRE_SERVERS": "1"} | ({"DIBS_FREEZE": "1"} if condition == FROZEN else {})


@contextmanager
def _busy(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
