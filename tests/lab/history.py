"""Read the files of a run into a history of uses.

Lines by their `op`: `acquire` before the call and `acquired` after it (outcome ok, busy or unknown), `seen` for a look
at a hold (valid, and a lower bound of its deadline), `act` before a change of the resource, `release` and `released`
around that call, `line` for a look at a queue, `born` and `gone` around a thread, `fault`, `crash`. The nemesis writes
`killed` (dated before the signal), `heal` and faults of its own.

A use is valid from the first instant at which its holder knew it, to the earliest of its last known deadline, the call
of its release and the death of its process. If a hold was seen lost before its deadline, it counts as valid until the
last look that found it so. All of these err on the lock's side.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lab.surface import clock

NEVER = math.inf
Line = dict[str, Any]


class Span(NamedTuple):
    """Half open: at its end it is over."""

    begin: float
    end: float


@dataclass(slots=True)
class Use:
    proc: str
    thread: str
    n: int
    name: str
    kind: str
    capacity: int
    weight: int
    fair: bool
    timeout: float
    body: str
    called: float
    returned: float = NEVER
    outcome: str = "unknown"
    token: int = 0
    known: float = NEVER
    """The first instant at which it was surely valid."""
    valid_at: float = -NEVER
    """The last one."""
    deadline: float = -NEVER
    told: float = NEVER
    """The first instant at which it was surely lost."""
    acted: float = -NEVER
    """The last instant at which it had not yet stopped using what it guards."""
    release_called: float = NEVER
    release_returned: float = NEVER
    release_outcome: str = "unknown"
    died: float = NEVER

    @property
    def id(self) -> str:
        return f"{self.proc}/{self.thread}/{self.n}"

    @property
    def granted(self) -> bool:
        return self.outcome == "ok"

    @property
    def exclusive(self) -> bool:
        return self.weight >= self.capacity

    @property
    def taken_away(self) -> bool:
        return self.told < self.deadline

    @property
    def valid(self) -> Span | None:
        end = min(self.deadline, self.release_called, self.died)
        if self.taken_away:
            end = min(end, self.valid_at)
        return Span(self.known, end) if self.known < end else None

    @property
    def late(self) -> Span | None:
        """When it still used what it guards though its own deadline had passed."""
        begin, end = max(self.deadline, self.known), min(self.acted, self.died)
        return Span(begin, end) if begin < end else None

    def __str__(self) -> str:
        return f"{self.id} ({self.name}, {self.weight} of {self.capacity}, token {self.token})"

    def look(self, line: Line) -> None:
        at = line["at"]
        if line["valid"]:
            self.known = min(self.known, at)
            self.valid_at = max(self.valid_at, at)
            self.deadline = max(self.deadline, line["deadline"])
        else:
            self.told = min(self.told, at)


class Sight(NamedTuple):
    """A look at a queue between two instants: uses and their places."""

    name: str
    called: float
    returned: float
    waiting: list[tuple[str, int]]


@dataclass
class History:
    uses: list[Use] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    died: dict[str, float] = field(default_factory=dict)
    """By process: just before it was killed."""
    born: dict[tuple[str, str], float] = field(default_factory=dict)
    healed: float | None = None
    ended: float = 0.0

    @property
    def grants(self) -> list[Use]:
        return [use for use in self.uses if use.granted]

    @property
    def hand_overs(self) -> int:
        """Grants that followed one of somebody else on the same name."""
        last: dict[str, tuple[str, str]] = {}
        count = 0
        for use in sorted(self.grants, key=lambda use: use.returned):
            who = (use.proc, use.thread)
            count += last.get(use.name, who) != who
            last[use.name] = who
        return count


def read(directory: Path) -> History:
    """All files of a run, up to now: while the one is read, what happens is written in the others."""
    made, now = History(), clock()
    uses: dict[tuple[str, str, int], Use] = {}
    for path in sorted(directory.glob("*.jsonl")):
        for line in lines_of(path.read_bytes(), str(path)):
            if line["at"] <= now:
                _note(made, uses, line)
    for use in uses.values():
        use.died = made.died.get(use.proc, NEVER)
    made.uses = sorted(uses.values(), key=lambda use: use.called)
    return made


def lines_of(text: bytes, where: str) -> Iterator[Line]:
    """A line that was torn off at the end of a file never happened; a bad one before it is an error."""
    *whole, _ = text.split(b"\n")
    for number, line in enumerate(whole, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}, line {number}: {error}") from None


def _note(made: History, uses: dict[tuple[str, str, int], Use], line: Line) -> None:
    who = (line["proc"], line["thread"], line["n"])
    at = line["at"]
    made.ended = max(made.ended, at)
    match line["op"]:
        case "acquire":
            asked = {key: line[key] for key in ("name", "kind", "capacity", "weight", "fair", "timeout", "body")}
            uses[who] = Use(*who, **asked, called=at)
        case "acquired":
            use = uses[who]
            use.returned, use.outcome, use.token = at, line["outcome"], line.get("token", 0)
            if use.granted:
                use.look(line)
                use.acted = at
        case "seen":
            uses[who].look(line)
        case "act":
            uses[who].acted = max(uses[who].acted, at)
        case "release":
            uses[who].look(line)
            uses[who].release_called = at
        case "released":
            uses[who].release_returned, uses[who].release_outcome = at, line["outcome"]
        case _:
            _note_other(made, line)


def _note_other(made: History, line: Line) -> None:
    match line["op"]:
        case "queue":
            waiting = [(use, place) for use, place in line["waiting"]]
            made.sights.append(Sight(line["name"], line["at"], line["returned"], waiting))
        case "fault":
            made.faults[line["kind"]] += 1
        case "crash":
            made.crashes.append(f"{line['proc']}/{line['thread']}/{line['n']}: {line['error']}")
        case "left":
            made.left += line["names"]
        case "killed":
            made.died[line["victim"]] = line["at"]
        case "heal":
            made.healed = line["at"]
        case "born":
            made.born[line["proc"], line["thread"]] = line["at"]


def by_name(uses: Iterable[Use]) -> dict[str, list[Use]]:
    found: dict[str, list[Use]] = {}
    for use in uses:
        found.setdefault(use.name, []).append(use)
    return found
