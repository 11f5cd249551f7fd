"""The package passes `mypy --strict`; uses.py and its like do as a user has them, and mypy complains where it must."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WRONG = {
    'assert_type(dibs.connect().lock("a").acquire(), dibs.Hold)': "[assert-type]",
    "dibs.connect(5)": "[arg-type]",
    'dibs.connect().lock("a", patience=5)': "[call-arg]",
    'dibs.connect().lock("a", timeout=5)  # type: ignore[call-arg]': 'Unused "type: ignore" comment',
    'dibs.connect().inspect("a").name = "b"': "[misc]",
    'dibs.Participant("ana")': "Too many positional",
    'dibs.LockInfo(name="a", owner="ana")': "[call-arg]",
    'assert_type(dibs.connect().synchronized("a", on_busy="skip")(len)("b"), int)': "[assert-type]",
    "async def take(lock: dibs.aio.Lock) -> None: lock.acquire()": "[unused-coroutine]",
    "async def give_back(lock: dibs.aio.Lock) -> None: lock.release()": "[unused-coroutine]",
    "async def permits(calls: dibs.aio.Semaphore) -> None: calls.acquire(2)": "[unused-coroutine]",
    "async def take_both(both: dibs.aio.Multi) -> None: both.acquire()": "[unused-coroutine]",
}
"""Lines of a program, and what mypy says of each: the check itself can fail."""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("mypy")  # as in test_snippets.py
def test_programs_are_typed_as_a_user_sees_them(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One run of mypy, without the project's own settings: users do not have them."""
    kept = getattr(request.config, "cache", None)
    cache, wrong = kept.mkdir("mypy") if kept else tmp_path, tmp_path / "wrong.py"
    wrong.write_text("\n".join(["from typing import assert_type; import dibs, dibs.aio", *WRONG, ""]))
    words = ["--strict", "--config-file=", f"--cache-dir={cache}", "--python-version=3.11", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, HERE / "uses.py", HERE / "synchronized_uses.py", wrong],
        cwd=ROOT, env={"MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        found = re.match(r".*wrong\.py:(\d+): ", line)
        assert found, f"not in the wrong program: {line}"
        said[int(found[1])] = said.get(int(found[1]), "") + line
    assert done.returncode == 1
    for number, (line, complaint) in enumerate(WRONG.items(), 2):
        assert complaint in said.pop(number, ""), line
    assert not said


@pytest.mark.early
def test_the_package_is_typed() -> None:
    run = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
