"""uses.py and its like, read by mypy --strict as a user would have it read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def cache(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return request.config.cache.mkdir("mypy")


def mypy(path: Path, cache: Path) -> tuple[int, str]:
    """Outside the project's own settings: users do not have them."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "--python-version=3.11",
         "--no-error-summary", str(path)],
        cwd=ROOT, env={"MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=55, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize("program", ["uses.py", "synchronized_uses.py"])
def test_a_users_program_is_typed(program: str, cache: Path) -> None:
    status, said = mypy(HERE / program, cache)
    assert not said
    assert status == 0


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('assert_type(dibs.connect().lock("a").acquire(), dibs.Hold)', "[assert-type]"),
        ("dibs.connect(5)", "[arg-type]"),
        ('dibs.connect().lock("a", patience=5)', "[call-arg]"),
        ('dibs.connect().lock("a", timeout=5)  # type: ignore[call-arg]', "unused-ignore"),
        ('dibs.connect().inspect("a").name = "b"', "[misc]"),
        ('dibs.Participant("ana")', "Too many positional"),
        ('dibs.LockInfo(name="a", owner="ana")', "[call-arg]"),
        ('assert_type(dibs.connect().synchronized("a", on_busy="skip")(len)("b"), int)', "[assert-type]"),
    ],
)
def test_the_check_itself_can_fail(line: str, complaint: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"from typing import assert_type\nimport dibs\n{line}\n")
    status, said = mypy(path, cache)
    assert status == 1
    assert complaint in said.replace('Unused "type: ignore" comment', "unused-ignore")
