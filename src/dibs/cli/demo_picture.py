"""The demo's picture, as lines of styled pieces: one lane per worker, the progress above, the last events below.

    57 of 125 turns   56 handovers   3.0 s

      worker-1  #####.....  12/25  -o----o----o----o-  2nd in the queue
    > worker-3  ###.......   8/25  ---o----x-------o-  holds, token 1794742691617824

The strip in the middle is the lock's way through the lanes, one column per take, the latest at the right: in the order
of the tokens, as the workers' reports overtake each other. What a worker does is the store's word, unless its process
cannot do anything at all. Whatever the size of the terminal, the picture fits: first the strip goes, then the bars,
then the events. Nothing here writes; demo_screen.py does.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dibs.cli.demo_resource import Record
from dibs.cli.demo_show import BOLD, DIM, GREEN, RED, YELLOW, Event, painted
from dibs.cli.talk import ordinal
from dibs.info import LockInfo

Piece = tuple[str, str]
"""A text and its style."""
Line = list[Piece]

_EVENTS = 5
_LONGEST_DOING = len("holds, token 1794742691617824")
_STRIP, _BAR = range(8, 41), range(5, 21)
"""How wide they may be; narrower, they are left out."""
_REMEMBERED = 1.5
"""Seconds for which a refusal is shown: the worker joins the queue again at once."""
_OTHERWISE = {
    "": "starting",
    "restarted": "killed, restarted",
    "continued": "continues past its lease",
    "done": "done",
}
"""What a worker is doing that the store knows nothing of, by what happened last."""


@dataclass(frozen=True)
class Marks:
    holds: str
    took: str
    killed: str
    paused: str
    refused: str
    lane: str
    done: str
    left: str

    def __str__(self) -> str:
        return "".join(vars(self).values())


FINE = Marks(holds="►", took="●", killed="✕", paused="‖", refused="!", lane="─", done="█", left="░")
ASCII = Marks(holds=">", took="o", killed="x", paused="=", refused="!", lane="-", done="#", left=".")


@dataclass(frozen=True)
class Doing:
    text: str
    style: str = ""
    mark: str = " "


@dataclass
class Picture:
    names: Sequence[str]
    turns: int
    marks: Marks
    events: list[Event] = field(default_factory=list)
    """Those that stay to be read."""
    last: dict[str, str] = field(default_factory=dict)
    """What happened to each worker last."""
    refused: dict[str, float] = field(default_factory=dict)
    """When its write was."""
    takes: list[tuple[int, str]] = field(default_factory=list)
    """Who took the lock, in the order of the tokens."""
    fates: dict[int, str] = field(default_factory=dict)
    """What became of a hold, by its token: the mark of it."""
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
        for token, taker in takes:
            fate = self.fates.get(token)
            line += [(self.marks.lane, DIM) if taker != name else (fate, RED) if fate else (self.marks.took, GREEN)]
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
        if hold is not None and what != "restarted":  # that is still the hold of the process before
            return Doing(f"holds, token {hold.token}", GREEN, self.marks.holds)
        if at < self.refused.get(name, -_REMEMBERED) + _REMEMBERED:
            return Doing("its write was refused", YELLOW, self.marks.refused)
        if place is not None:
            return Doing(f"{ordinal(place)} in the queue")
        return Doing(_OTHERWISE.get(what, "between two turns"), DIM)


def fitted(line: Line, columns: int, *, colour: bool) -> str:
    """The line as text, cut at the terminal's edge."""
    text = ""
    for piece, style in line:
        text += painted(piece[: max(columns, 0)], style if colour else "")
        columns -= len(piece)
    return text


def _stacked(progress: Line, lanes: list[Line], events: list[Line], rows: int) -> list[Line]:
    """One above the other, with what matters least left out where there are too few rows."""
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
    """So much of what is wanted as makes sense; 0 is nothing."""
    return min(wanted, sizes[-1]) if wanted >= sizes[0] else 0


def _changes(takes: Sequence[tuple[int, str]]) -> int:
    return sum(one != other for (_, one), (_, other) in pairwise(takes))
