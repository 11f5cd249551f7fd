"""The demo on a terminal: the picture is redrawn in place, and wiped at the end for what stays to be read.

A frame is one write. It hides the cursor and turns wrapping off, goes back to the picture's first row, draws, and turns
both on again: between two frames the terminal is as it was found, so nothing has to be put right after a stop (Ctrl-Z)
or a kill. Ctrl-C discards the output that the terminal has not read yet, so nobody knows how many rows of the last
frame were drawn: the first row is saved in the terminal, never counted back to. The size is asked for each time; when
it has changed nobody knows where the old rows are now, and the screen is begun anew. After a stop the picture goes on
below what the shell has said.
"""

from __future__ import annotations

import argparse
import locale
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from dibs.cli.demo_picture import ASCII, FINE, Picture, fitted
from dibs.cli.demo_proof import Outcome
from dibs.cli.demo_resource import Record
from dibs.cli.demo_show import Event, Lines, write
from dibs.info import LockInfo

_BETWEEN_FRAMES = 0.05
_BEGIN, _END = "\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h"
_HOME, _REST_OF_LINE, _ALL_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_SAVE, _RESTORE = "\x1b7", "\x1b8"
"""The cursor's position: between two frames that of the picture's first row."""


class Screen:
    def __init__(self, lines: Lines, *, colour: bool) -> None:
        self._lines = lines
        """For what stays."""
        self._colour = colour
        self._picture: Picture | None = None
        self._size = (0, 0)
        self._resumed = False
        self._next_at = 0.0

    def begin(self, options: argparse.Namespace, names: Sequence[str]) -> None:
        self._lines.begin(options, names)
        self._picture = Picture(names, options.turns, FINE if _can_say(str(FINE)) else ASCII)
        self._size = _size()
        write(_SAVE)
        signal.signal(signal.SIGCONT, self._resume)

    def _resume(self, _: int, __: FrameType | None) -> None:
        self._resumed = True

    def event(self, event: Event) -> None:
        assert self._picture is not None
        self._picture.heed(event)
        if event.text or event.what == "done":
            self._next_at = 0.0  # these are rare, and each is seen

    def glance(self, at: float, info: LockInfo, record: Record) -> None:
        if at < self._next_at or self._picture is None:
            return
        self._next_at = at + _BETWEEN_FRAMES
        back = self._back()
        columns, rows = self._size
        # The last column stays free: some terminals wrap there all the same. The last row is the cursor's.
        frame = [
            fitted(line, columns - 1, colour=self._colour)
            for line in self._picture.drawn(at, info, record, columns - 1, rows - 1)
        ]
        room = "\n" * len(frame) + "\x1b[A" * len(frame)  # scrolls first: afterwards the saved row stays where it is
        drawn = "".join(f"{text}{_REST_OF_LINE}\r\n" for text in frame)
        write(_BEGIN + back + room + _SAVE + drawn + _ALL_BELOW + _END)

    def give_up(self, why: str) -> None:
        self.close()
        self._lines.give_up(why)

    def prove(self, outcome: Outcome) -> None:
        self.close()
        self._lines.prove(outcome)

    def close(self) -> None:
        picture, self._picture = self._picture, None
        if picture is None:
            return
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        write(self._back() + _ALL_BELOW + _END)
        for event in picture.events:
            self._lines.event(event)

    def _back(self) -> str:
        """What leads to the first row of the picture, on the screen as it is now."""
        before, self._size = self._size, _size()
        if self._resumed:
            self._resumed = False
            return "\r"
        return _RESTORE if self._size == before else _HOME + _ALL_BELOW


def is_live() -> bool:
    """Whether stdout is a terminal that can redraw."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def has_colour() -> bool:
    return is_live() and not os.environ.get("NO_COLOR")


def _can_say(text: str) -> bool:
    """Both must be able to: in the C locale Python writes UTF-8 to a terminal that may know nothing of it."""
    try:
        for encoding in (sys.stdout.encoding, locale.getencoding()):
            text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _size() -> tuple[int, int]:
    """Columns and rows; a terminal that does not know them is taken for the usual one."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:  # it was closed: the next write will say so
        columns = rows = 0
    return columns or 80, rows or 24
