"""The demo on a terminal: one lane per worker, the progress above, the last events below; wiped at the end.

    57 of 125 turns   56 handovers   3.0 s

      worker-1  #####.....  12/25  -o----o----o----o-  2nd in the queue
    > worker-3  ###.......   8/25  ---o----x-------o-  holds, token 1794742691617824

The strip shows the last takes of the lock, in the order of the tokens, one column each. On a small terminal first the
strip is left out, then the bars, then the events.

A frame is one write: hide the cursor, turn wrapping off, go to the saved first row, draw, turn both on again. Between
frames the terminal is unchanged, so nothing needs repair after Ctrl-Z or a kill. Ctrl-C discards unread output, so rows
are never counted back. When the size has changed, the screen is cleared. After a stop the picture continues below.
"""

from __future__ import annotations

import argparse
import locale
import os
import signal
import sys
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import NamedTuple

from dibs.cli.demo_show import BOLD, DIM, GREEN, RED, YELLOW, Event, Lines, Outcome, painted, write
from dibs.cli.demo_worker import Record
from dibs.cli.output import ordinal
from dibs.info import LockInfo

Piece = tuple[str, str]
"""A text and its style."""
Line = list[Piece]

_EVENTS = 5
_LONGEST_DOING = len("holds, token 1794742691617824")
_STRIP, _BAR = range(8, 41), range(5, 21)
"""Allowed widths; if there is less room, they are left out."""
_REMEMBERED = 1.5
"""Seconds for which a refusal is shown, although the worker joins the queue again at once."""
_OTHERWISE = {"": "starting", "restarted": "killed, restarted", "continued": "continues past its lease", "done": "done"}
"""State of a worker that is not in the queue, by its last event."""


class Marks(NamedTuple):
    holds: str
    took: str
    killed: str
    paused: str
    refused: str
    lane: str
    done: str
    left: str


FINE = Marks(holds="►", took="●", killed="✕", paused="‖", refused="!", lane="─", done="█", left="░")
ASCII = Marks(holds=">", took="o", killed="x", paused="=", refused="!", lane="-", done="#", left=".")


class Doing(NamedTuple):
    text: str
    style: str = ""
    mark: str = " "


@dataclass
class Picture:
    names: Sequence[str]
    turns: int
    marks: Marks
    events: list[Event] = field(default_factory=list)
    """Events with a text."""
    last: dict[str, str] = field(default_factory=dict)
    """The last event of each worker."""
    refused: dict[str, float] = field(default_factory=dict)
    """When the write of a worker was refused."""
    takes: list[tuple[int, str]] = field(default_factory=list)
    """Tokens and workers, in the order of the tokens."""
    fates: dict[int, str] = field(default_factory=dict)
    """Marks of holds that ended badly, by token."""
    handovers: int = 0

    def heed(self, event: Event) -> None:
        if event.text:
            self.events.append(event)
        if event.what == "took" and event.token is not None:
            self._note_take(event.token, event.worker)
        if event.what in ("killed", "paused", "refused") and event.token is not None:
            self.fates[event.token] = getattr(self.marks, event.what)
        if event.what == "refused":
            self.refused[event.worker] = event.at
        self.last[event.worker] = event.what

    def _note_take(self, token: int, worker: str) -> None:
        place = bisect(self.takes, (token, worker))
        first = max(place - 1, 0)
        neighbours = self.takes[first : place + 1]
        self.takes.insert(place, (token, worker))
        self.handovers += _changes(self.takes[first : place + 2]) - _changes(neighbours)

    def drawn(self, at: float, info: LockInfo, record: Record, columns: int, rows: int) -> list[Line]:
        lanes = self._lanes(at, info, record, columns)
        return _stacked(self._progress(at, record), lanes, [_event(one) for one in self.events], rows)

    def _progress(self, at: float, record: Record) -> Line:
        done = sum(record.turns.values())
        line = [(f"  {done} of {len(self.names) * self.turns} turns", BOLD)]
        line += [(f"   {self.handovers} handovers   {at:.1f} s", "")]
        return line + ([(f"   {record.overlaps} overlaps", RED)] if record.overlaps else [])

    def _lanes(self, at: float, info: LockInfo, record: Record, columns: int) -> list[Line]:
        width, count = max(map(len, self.names)), 2 * len(str(self.turns)) + 1
        room = columns - len("  > ") - width - len("  ") - count - len("  ") - _LONGEST_DOING
        bar = _within(_BAR, room // 3 if room > 2 * _STRIP[0] else room - len("  "))
        strip = _within(_STRIP, room - bar - len("  ") * 2)
        return [self._lane(name, self._doing(name, at, info), record, (width, bar, strip)) for name in self.names]

    def _lane(self, name: str, doing: Doing, record: Record, widths: tuple[int, int, int]) -> Line:
        width, bar, strip = widths
        done = record.turns.get(name, 0)
        line = [(f"  {doing.mark} ", doing.style), (f"{name:<{width}}  ", BOLD if doing.mark != " " else "")]
        if bar:
            full = bar * done // self.turns
            line += [(self.marks.done * full, GREEN), (self.marks.left * (bar - full) + "  ", DIM)]
        line += [(f"{done:>{len(str(self.turns))}}/{self.turns}  ", "")]
        if strip:
            line += [*self._strip(name, strip), ("  ", "")]
        return [*line, (doing.text, doing.style)]

    def _strip(self, name: str, width: int) -> Line:
        takes = self.takes[-width:]
        line: Line = [(self.marks.lane * (width - len(takes)), DIM)]
        for token, caller in takes:
            fate = self.fates.get(token)
            line += [(self.marks.lane, DIM) if caller != name else (fate, RED) if fate else (self.marks.took, GREEN)]
        return line

    def _doing(self, name: str, at: float, info: LockInfo) -> Doing:
        what = self.last.get(name, "")
        hold = next((one for one in info.holders if one.owner == name), None)
        place = next((place for place, one in enumerate(info.waiters, 1) if one.owner == name), None)
        if what == "killed":
            return Doing("killed", RED, self.marks.killed)
        if what == "paused":
            left = hold.remaining if hold else 0.0
            text = f"paused, lease ends in {left:.1f} s" if left > 0 else "paused past its lease"
            return Doing(text, YELLOW, self.marks.paused)
        if hold is not None and what != "restarted":  # else it is the hold of the killed process
            return Doing(f"holds, token {hold.token}", GREEN, self.marks.holds)
        if at < self.refused.get(name, -_REMEMBERED) + _REMEMBERED:
            return Doing("its write was refused", YELLOW, self.marks.refused)
        if place is not None:
            return Doing(f"{ordinal(place)} in the queue")
        return Doing(_OTHERWISE.get(what, "between two turns"), DIM)


def fitted(line: Line, columns: int, *, colour: bool) -> str:
    """The line as text, cut at that width."""
    text = ""
    for piece, style in line:
        text += painted(piece[: max(columns, 0)], style if colour else "")
        columns -= len(piece)
    return text


def _stacked(progress: Line, lanes: list[Line], events: list[Line], rows: int) -> list[Line]:
    """All rows; the least important are left out if there is no room."""
    airy: list[Line] = [[], progress, [], *lanes]
    if len(airy) <= rows:
        room = max(min(rows - len(airy) - 1, _EVENTS), 0)
        latest = events[max(len(events) - room, 0) :]
        return [*airy, [], *latest] if latest else airy
    if 1 + len(lanes) <= rows:
        return [progress, *lanes]
    shown = max(rows - 2, 0)
    return [progress, *lanes[:shown], [(f"    and {len(lanes) - shown} more", DIM)]][: max(rows, 0)]


def _event(event: Event) -> Line:
    return [(f"{event.at:6.2f} s  ", DIM), (event.text, "")]


def _within(sizes: range, wanted: int) -> int:
    """The wanted size, at most the largest one; 0 if it is below the smallest."""
    return min(wanted, sizes[-1]) if wanted >= sizes[0] else 0


def _changes(takes: Sequence[tuple[int, str]]) -> int:
    return sum(one != other for (_, one), (_, other) in pairwise(takes))


_BETWEEN_FRAMES = 0.05
_BEGIN, _END = "\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h"
_HOME, _REST_OF_LINE, _ALL_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_SAVE, _RESTORE = "\x1b7", "\x1b8"
"""The cursor's position; between frames it is that of the first row."""


class Screen:
    def __init__(self, lines: Lines, *, colour: bool) -> None:
        self._lines = lines
        self._colour = colour
        self._picture: Picture | None = None
        self._size = (0, 0)
        self._resumed = False
        self._next_at = 0.0

    def begin(self, options: argparse.Namespace, names: Sequence[str]) -> None:
        self._lines.begin(options, names)
        self._picture = Picture(names, options.turns, FINE if _can_say("".join(FINE)) else ASCII)
        self._size = _size()
        write(_SAVE)
        signal.signal(signal.SIGCONT, self._resume)

    def _resume(self, _: int, __: FrameType | None) -> None:
        self._resumed = True

    def event(self, event: Event) -> None:
        assert self._picture is not None
        self._picture.heed(event)
        if event.text or event.what == "done":
            self._next_at = 0.0  # rare, so draw each one

    def glance(self, at: float, info: LockInfo, record: Record) -> None:
        if at < self._next_at or self._picture is None:
            return
        self._next_at = at + _BETWEEN_FRAMES
        back = self._back()
        columns, rows = self._size
        # The last column stays free, as some terminals wrap there anyway. The last row is for the cursor.
        frame = [
            fitted(line, columns - 1, colour=self._colour)
            for line in self._picture.drawn(at, info, record, columns - 1, rows - 1)
        ]
        room = "\n" * len(frame) + "\x1b[A" * len(frame)  # scroll first, so that the saved row stays valid
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
        """The control codes that go to the first row of the picture."""
        before, self._size = self._size, _size()
        if self._resumed:
            self._resumed = False
            return "\r"
        return _RESTORE if self._size == before else _HOME + _ALL_BELOW


def _can_say(text: str) -> bool:
    """By stdout and the locale: in the C locale Python writes UTF-8 even if the terminal does not expect it."""
    try:
        for encoding in (sys.stdout.encoding, locale.getencoding()):
            text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _size() -> tuple[int, int]:
    """Columns and rows; 80 by 24 if unknown."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:  # closed: the next write fails
        columns = rows = 0
    return columns or 80, rows or 24
