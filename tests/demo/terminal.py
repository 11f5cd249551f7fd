"""A pseudo-terminal that runs the demo, and a model of its screen.

`Screen` knows the control sequences that the demo may use, and refuses every other one.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from demo.plays import start
from process.children import PATIENCE

_PART = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\x1b([78])|\x1b|[^\x1b]")
_WHOLE = re.compile(r"\x1b\[\??[\d;]*[A-Za-z]|\x1b[78]|[^\x1b]")
_CUT_OFF = re.compile(r"\x1b(?:\[\??[\d;]*)?(?=\x1b|\^C)")
"""Ctrl-C may discard the rest of a sequence: its echo follows, or another sequence."""
_BUFFER = 4095
"""Bytes that Linux keeps for a reader; Ctrl-C discards what is written beyond them."""


class Screen:
    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""] * rows
        self.row = self.column = 0
        self._saved = (0, 0)
        self.cursor = self.wraps = True
        self.styled = False
        self.cut = 0
        """Number of characters that had no room while wrapping was off."""

    def feed(self, text: str) -> None:
        for part in _PART.finditer(text):
            if part[2]:
                self._control(part[1], part[2])
            elif part[3] == "7":
                self._saved = self.row, self.column
            elif part[3] == "8":
                self.row, self.column = self._saved
            else:
                self._character(part[0])

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")

    def resize(self, columns: int, rows: int) -> None:
        """Cut the lines; a terminal that folds them instead does what the demo cannot know."""
        lines = [line[:columns] for line in self.lines]
        gone = max(0, self.row - rows + 1)
        self.lines = [*lines[gone : gone + rows], *[""] * (rows - len(lines[gone : gone + rows]))]
        self.row, self.column = self.row - gone, min(self.column, columns - 1)
        self.columns, self.rows = columns, rows

    def _character(self, one: str) -> None:
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self._down()
        else:
            assert one.isprintable(), f"{one!r} on the screen"
            if self.column >= self.columns:
                if not self.wraps:
                    self.cut += 1
                    return
                self.column = 0
                self._down()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + one + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        if self.row < self.rows - 1:
            self.row += 1
        else:
            self.lines = [*self.lines[1:], ""]

    def _control(self, number: str, what: str) -> None:
        if what == "m":
            self.styled = self.styled or number != "0"
        elif what == "A":
            assert self.row >= int(number or 1), "above the screen"
            self.row -= int(number or 1)
        elif (number, what) == ("", "H"):
            self.row = self.column = 0
        elif (number, what) == ("", "K"):
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif (number, what) == ("", "J"):
            self.lines[self.row] = self.lines[self.row][: self.column]
            self.lines[self.row + 1 :] = [""] * (self.rows - self.row - 1)
        elif number == "?25" and what in "lh":
            self.cursor = what == "h"
        elif number == "?7" and what in "lh":
            self.wraps = what == "h"
        else:
            raise AssertionError(f"unknown sequence {number}{what}")


class Terminal:
    """The user's side of a pseudo-terminal. A frame is the screen each time the cursor is shown."""

    def __init__(self, process: subprocess.Popen[bytes], side: int, screen: Screen) -> None:
        self.process = process
        self.screen = screen
        self.frames: list[str] = []
        self.seen = ""
        self._side: int | None = side
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""

    def read(self) -> bool:
        """Read once; False at the end of the output."""
        assert self._side is not None
        ready, _, _ = select.select([self._side], [], [], PATIENCE)
        assert ready, f"nothing more came; the screen shows\n{self.screen.text()}"
        try:
            said = os.read(self._side, 65536)
        except OSError:  # a terminal whose other side is closed answers with an error instead of an end
            said = b""
        whole = self._decoder.decode(said)
        self.seen += whole
        self._show(whole)
        return bool(said)

    def leave_unread(self) -> None:
        assert self._side is not None
        end, there = time.monotonic() + PATIENCE, 0
        while there < _BUFFER:
            assert time.monotonic() < end, f"only {there} bytes came"
            time.sleep(0.01)
            (there,) = struct.unpack("i", fcntl.ioctl(self._side, termios.FIONREAD, bytes(4)))

    def _show(self, text: str) -> None:
        self._text = _CUT_OFF.sub("", self._text + text)
        *frames, rest = re.split(r"(?<=\x1b\[\?25h)", self._text)
        for frame in frames:
            self.screen.feed(frame)
            assert self.screen.wraps
            self.frames.append(self.screen.text())
        # A sequence may arrive in two halves.
        whole = re.match(rf"(?:{_WHOLE.pattern})*", rest, re.DOTALL)
        assert whole
        self.screen.feed(whole[0])
        self._text = rest[whole.end() :]

    def until(self, condition: Callable[[str], bool]) -> None:
        end, looked = time.monotonic() + PATIENCE, 0
        while not any(map(condition, self.frames[looked:])):
            looked = len(self.frames)
            assert self.read(), f"it ended before; the screen shows\n{self.screen.text()}"
            assert time.monotonic() < end, "no frame shows it"

    def finish(self) -> int:
        while self.read():
            pass
        assert self._text == "", "half a sequence at the end"
        return self.process.wait(PATIENCE)

    def type(self, keys: bytes) -> None:
        assert self._side is not None
        os.write(self._side, keys)

    def resize(self, columns: int, rows: int) -> None:
        assert self._side is not None
        _set_size(self._side, columns, rows)
        self.screen.resize(columns, rows)

    def hang_up(self) -> None:
        if self._side is not None:
            os.close(self._side)
            self._side = None


@contextmanager
def terminal(environment: Mapping[str, str], *options: str, columns: int = 100, rows: int = 40) -> Iterator[Terminal]:
    """Run the demo as a shell in that terminal would; kill it at the end."""
    ours, theirs = os.openpty()
    _set_size(ours, columns, rows)
    process = start(
        environment, *options, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, text=False,
        preexec_fn=_take_terminal,  # it takes no lock that another thread could hold
    )  # fmt: skip
    os.close(theirs)
    there = Terminal(process, ours, Screen(columns, rows))
    try:
        yield there
    finally:
        there.hang_up()
        process.kill()
        process.wait()


def _take_terminal() -> None:
    """Ctrl-C reaches only processes with this controlling terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _set_size(side: int, columns: int, rows: int) -> None:
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
