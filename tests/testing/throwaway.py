"""A package of somebody else's that depends on dibs (acme/), installed with the wheel of this tree, for a throw-away.

Its environment holds nothing but the two wheels, and pytest with xdist as this environment has them: nothing comes
from an index. It is made once per run of pytest, also with xdist. `acme` is a fixture: import it where you use it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
ACME = Path(__file__).with_name("acme")
FROM_HERE = ("pytest", "pytest-xdist")
KEPT = ("PATH", "HOME", "TMPDIR", "LANG")
"""The environment variables that it inherits: none that measure or steer this run."""


@dataclass(frozen=True)
class Acme:
    """The environment of the throw-away package."""

    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def run(self, *words: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """`python WORDS` there."""
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [self.python, *words], cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers of its own
                raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def pytest(self, *words: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """pytest there, with warnings as errors."""
        return self.run("-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *words, cwd=cwd, timeout=timeout)


@pytest.fixture(scope="session")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Acme:
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # the workers of one run share it
    home, ready = place / "acme-home", place / "acme-ready"
    with FileLock(place / "acme.lock"):
        if not ready.exists():
            _make(home, place / "acme-wheels")
            ready.touch()
    return Acme(home)


def _make(home: Path, wheels: Path) -> None:
    venv.create(home, symlinks=True)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT), str(ACME))
    _pip("--python", str(home / "bin" / "python"), "install", *map(str, wheels.glob("*.whl")))
    there = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    for found in _with_what_they_need(FROM_HERE):
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (there / top).symlink_to(str(found.locate_file(top)))


def _pip(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *words, "--no-deps", "--no-index"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def _with_what_they_need(names: Iterable[str]) -> list[Distribution]:
    found: dict[str, Distribution] = {}
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:  # for another platform or version of Python
                continue
            left += [re.split(r"[^\w.-]", need)[0] for need in found[name].requires or () if "extra ==" not in need]
    return list(found.values())
