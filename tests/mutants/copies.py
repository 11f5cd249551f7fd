"""A copy of the tree in which one mutant after the other is tried, with an environment of its own.

The environment shares the packages of ours, but not the editable install of dibs: whatever a test starts, by whatever
flags and variables, imports the copy. Of another checkout (`against`) the copy takes everything but src/dibs, and of
that the published suite and test kit.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from mutants.catalogue import SOURCE, Mutant
from mutants.tiers import Stage

ROOT = SOURCE.parents[1]
_SUITE = "src/dibs/testing/"
_FAILED = re.compile(r"(?m)^(?:FAILED|ERROR) (\S+?::.+?)(?: - (.*))?$")
_NO_TESTS = 5
NOTHING = "no test was collected"


class Limits(NamedTuple):
    """Seconds. A test, or a whole run of pytest, that takes longer hangs, which is a way to fail."""

    test: int
    run: int


class Outcome(NamedTuple):
    """The result of one run of pytest."""

    failed: tuple[str, ...]
    hung: bool
    trouble: str
    """Why it proves nothing."""


class Copy:
    def __init__(self, against: Path | None, limits: Limits) -> None:
        self.root = Path(mkdtemp(prefix="dibs-mutants-"))
        self._limits = limits
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._python = self.root / ".venv" / "bin" / "python"
        try:
            self._fill(against or ROOT, against is not None)
            self._make_environment()
        except BaseException:
            self.remove()
            raise

    def write(self, mutant: Mutant) -> str:
        """Apply it to what is unchanged; says why that makes no mutant, if it does not."""
        for path, text in mutant.applied().items():
            self._put(path, text)
        found = self._ask("import dibs, dibs.aio, dibs.testing.contract, dibs.backends.sqlite.store")
        return "" if found.returncode == 0 else f"cannot be imported: {found.stderr.strip().splitlines()[-1:]}"

    def restore(self, mutant: Mutant) -> None:
        for change in mutant.changes:
            self._put(change.path, (SOURCE / change.path).read_text(encoding="utf-8"))

    def run(self, stage: Stage, *more: str) -> Outcome:
        if self._stopped:
            raise RuntimeError("the run was ended")
        count = stage.workers
        words = [word for word in stage.arguments if not is_path(word) or self._has(word)]
        if not any(is_path(word) for word in words):
            return Outcome((), hung=False, trouble=NOTHING)
        command = [
            str(self._python), "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:randomly", "-p", "no:cacheprovider",
            "--timeout", str(self._limits.test), *(("-n", str(count), "--dist", "loadgroup") if count else ()),
            *words, *more,
        ]  # fmt: skip
        process = self._process = subprocess.Popen(
            command, cwd=self.root, env=_variables(self.root), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=self._limits.run)
        except subprocess.TimeoutExpired:
            return Outcome((), hung=True, trouble="")
        finally:
            _end(process)
        return _judged(process.returncode, said)

    def _has(self, path: str) -> bool:
        return (self.root / path.partition("::")[0]).exists()

    def stop(self) -> None:
        """From another thread: end what runs, and begin nothing more."""
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            _end(self._process)

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _fill(self, tree: Path, is_other: bool) -> None:
        for file in _files(tree):
            if not is_other or not file.startswith("src/dibs/") or file.startswith(_SUITE):
                self._take(tree, file)
        if is_other:
            for file in _files(ROOT):
                if file.startswith("src/dibs/") and not file.startswith(_SUITE):
                    self._take(ROOT, file)

    def _take(self, tree: Path, file: str) -> None:
        if (tree / file).is_file():
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / file, self.root / file)

    def _make_environment(self) -> None:
        home = self.root / ".venv"
        venv.create(home, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
        # Directories that are named in a .pth file are not looked through for further .pth files.
        lines = [str(self.root / "src"), sysconfig.get_path("purelib")]
        (packages / "copy.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for program in Path(sys.prefix, "bin").iterdir():
            ours = home / "bin" / program.name
            if not ours.exists() and program.is_file():
                text = program.read_bytes()
                ours.write_bytes(
                    text.replace(sys.prefix.encode(), str(home).encode(), 1) if text[:2] == b"#!" else text
                )
                ours.chmod(0o755)
        found = self._ask("import dibs; print(dibs.__file__)", "-I").stdout
        if not found.startswith(str(self.root)):
            raise RuntimeError(f"the copy would not be tested: dibs is imported from {found.strip()}")

    def _ask(self, program: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._python), *flags, "-c", program]
        return subprocess.run(
            command, cwd=self.root, env=_variables(self.root), text=True, capture_output=True, check=False
        )

    def _put(self, path: str, text: str) -> None:
        file = self.root / "src" / "dibs" / path
        file.write_text(text, encoding="utf-8")
        # Python tells a compiled file's age in seconds: one of the mutant before could pass for this one's.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def is_path(argument: str) -> bool:
    return argument.startswith(("tests/", "src/"))


def _files(tree: Path) -> list[str]:
    """Tracked ones, and new ones that are not ignored, as they are now."""
    command = ["git", "-C", str(tree), "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    return listed.split("\0")[:-1]


def _variables(root: Path) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")}
    more = {"PYTHONPATH": str(root / "tests"), "DIBS_REQUIRE_SERVERS": "1"}
    return {**ours, **more, "PATH": f"{root / '.venv' / 'bin'}:{os.environ['PATH']}"}


def _judged(status: int, said: str) -> Outcome:
    found = {re.sub(r"@[\w./-]+$", "", match[1]): match[2] or "" for match in _FAILED.finditer(said)}
    if status in (0, _NO_TESTS):
        return Outcome((), hung=False, trouble="" if status == 0 else NOTHING)
    if status in (1, 2) and found:
        return Outcome(tuple(found), hung="Timeout" in next(iter(found.values())), trouble="")
    return Outcome((), hung=False, trouble=f"pytest ended with {status}: {' / '.join(said.strip().splitlines()[-3:])}")


def _end(process: subprocess.Popen[str]) -> None:
    """With all that it started in its group; servers have a guardian of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
