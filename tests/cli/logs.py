"""Commands that keep a log (logbook.py) under `dibs run`, and what their logs say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cli.commands import COMMAND, Cli
from dibs.cli.main import main
from process.children import PATIENCE, until

LOGBOOK = (sys.executable, "-S", str(Path(__file__).with_name("logbook.py")))


class Logged:
    """`dibs run` with such a command; `around` is put before it, as `sh -c` is."""

    def __init__(
        self, cli: Cli, name: str, *options: str, on_term: str = "ignore", around: tuple[str, ...] = (), **more: str
    ) -> None:
        self._file = cli.directory / f"{name}.log"
        self._errors = cli.directory / f"{name}.stderr"
        words = ("run", name, *options, "--", *around, *LOGBOOK, str(self._file), on_term)
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, *words], env=cli.environment(**more), cwd=cli.directory, stdin=subprocess.PIPE, stderr=errors
            )
        cli._keep(self)

    def begun(self) -> float:
        return self.first("begun")

    def first(self, word: str) -> float:
        return float(until(lambda: self.times(word), what=f"{word} in the log")[0])

    def times(self, word: str) -> list[float]:
        """When it noted that."""
        try:
            lines = self._file.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [float(at) for said, _, at in (line.partition(" ") for line in lines) if said == word]

    @property
    def last_sign(self) -> float:
        return max(self.times("beat") + self.times("begun") + self.times("TERM"))

    def finish(self) -> None:
        """It ends by itself, with 0."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> tuple[int, str]:
        """Its status, and what was said on stderr."""
        return self.process.wait(PATIENCE), self._errors.read_text()

    def discard(self) -> None:
        """The guard ends the command; if even that failed, the end of its stdin does."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self.finish()


def in_this_process(words: Sequence[str]) -> int:
    """`dibs run` where it must not come so far as to start anything: what it is told is no command line."""
    try:
        return main(["run", *words])
    except SystemExit as end:
        return int(end.code or 0)
