"""Check a history. A checker reports a violation only if the history proves it.

- *overlap*: more weight valid at one instant than the capacity, by the holders' own deadlines. A holder that acted
  after its deadline beside a valid one is counted (`past`), but is no violation: only a fence can prevent it.
- *taken*: a hold was seen lost before its own deadline. Only a break or lost data may do that.
- *token*: of two exclusive grants, the one that returned before the other was called has the lower token; no token
  comes twice.
- *fence*: a change was accepted although a higher token had been seen.
- *fifo*: see fairness.py.
- *liveness*: a thread got nothing within the time allowed after healing.
- *leak*: something is left after all clients closed. *error*: a worker got an exception that no user may get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from lab.fairness import overtakes
from lab.history import History, Use, by_name
from lab.resource import Tally

CLASSES = ("overlap", "taken", "token", "fence", "fifo", "liveness", "leak", "error")


class Violation(NamedTuple):
    kind: str
    text: str
    uses: tuple[str, ...] = ()


@dataclass
class Verdict:
    violations: list[Violation] = field(default_factory=list)
    past: int = 0
    """Uses that acted after their own deadline beside a valid holder."""
    recovery: float | None = None
    """How long after healing the last thread waited for its first grant."""

    @property
    def guilty(self) -> dict[str, int]:
        counts = dict.fromkeys(CLASSES, 0)
        for violation in self.violations:
            counts[violation.kind] += 1
        return counts

    def text(self, most: int = 5) -> str:
        shown = []
        for kind in CLASSES:
            found = [violation.text for violation in self.violations if violation.kind == kind]
            shown += [f"{kind}: {text}" for text in found[:most]]
            shown += [f"{kind}: and {len(found) - most} more"] if len(found) > most else []
        return "\n".join(shown)


def judge(history: History, *, within: float, fenced: Sequence[Tally] = (), left: Sequence[str] = ()) -> Verdict:
    """`within`: how long everybody may wait after healing; `left`: what a look at the closed store found."""
    verdict = Verdict()
    for uses in by_name(history.grants).values():
        found, late = overlaps(uses)
        verdict.violations += found
        verdict.past += late
        verdict.violations += tokens(uses)
        verdict.violations += [Violation("fifo", text, ids) for text, ids in overtakes(uses, history.sights)]
    verdict.violations += takings(history)
    verdict.violations += stale(fenced)
    verdict.violations += unserved(history, within)
    verdict.violations += [Violation("leak", f"left behind: {thing}") for thing in (*history.left, *left)]
    verdict.violations += [Violation("error", text) for text in history.crashes]
    verdict.recovery = recovery(history)
    return verdict


class _Turn(NamedTuple):
    """Something begins or ends; ends come first, because a span is over at its end."""

    at: float
    begins: bool
    number: int
    late: bool
    use: Use


def overlaps(uses: Sequence[Use]) -> tuple[list[Violation], int]:
    """One sweep over the grants of one name: excess of valid weight, and how many acted late beside valid ones."""
    found: list[Violation] = []
    valid: dict[int, Use] = {}
    late: dict[int, Use] = {}
    beside: set[int] = set()
    for turn in sorted(_turns(uses)):
        inside = late if turn.late else valid
        if not turn.begins:
            del inside[turn.number]
            continue
        inside[turn.number] = turn.use
        if not turn.late and _too_many(valid):
            found.append(_overlap(turn, list(valid.values())))
        beside |= {n for n, use in late.items() if valid and _too_many({**valid, n: use})}
    return found, len(beside)


def _turns(uses: Sequence[Use]) -> Iterator[_Turn]:
    for number, use in enumerate(uses):
        for span, late in ((use.valid, False), (use.late, True)):
            if span is not None:
                yield _Turn(span.begin, True, number, late, use)
                yield _Turn(span.end, False, number, late, use)


def _too_many(inside: dict[int, Use]) -> bool:
    """One capacity and one kind at a time, and no more weight than it."""
    kinds = {(use.kind, use.capacity) for use in inside.values()}
    return len(kinds) > 1 or sum(use.weight for use in inside.values()) > next(iter(kinds))[1]


def _overlap(turn: _Turn, inside: list[Use]) -> Violation:
    who = "; ".join(
        f"{use} valid for {span.end - turn.at:.4f} s more" for use in inside if (span := use.valid) is not None
    )
    return Violation("overlap", f"{turn.use.name} at {turn.at:.6f}: {who}", tuple(use.id for use in inside))


def takings(history: History) -> list[Violation]:
    return [
        Violation("taken", f"{use} was seen lost {use.deadline - use.told:.4f} s before its own deadline", (use.id,))
        for use in history.grants
        if use.taken_away
    ]


def tokens(uses: Sequence[Use]) -> list[Violation]:
    """The grants of one name, in the order of their calls, each against the highest that had returned before it."""
    first: dict[int, Use] = {}
    found = [
        _pair("token", first[use.token], use, "have the same token")
        for use in uses
        if first.setdefault(use.token, use) is not use
    ]
    returned: list[tuple[float, int, Use]] = []
    highest: Use | None = None
    for number, use in enumerate(use for use in sorted(uses, key=lambda use: use.called) if use.exclusive):
        while returned and returned[0][0] < use.called:
            _, _, done = heappop(returned)
            highest = done if highest is None or done.token > highest.token else highest
        if highest is not None and highest.token > use.token:
            found.append(_pair("token", highest, use, "the later one has the lower token"))
        heappush(returned, (use.returned, number, use))
    return found


def _pair(kind: str, one: Use, other: Use, what: str) -> Violation:
    return Violation(kind, f"{one} and {other}: {what}", (one.id, other.id))


def stale(fenced: Sequence[Tally]) -> list[Violation]:
    return [
        Violation("fence", f"{tally.stale} of {tally.acknowledged} accepted changes came with a stale token")
        for tally in fenced
        if tally.stale
    ]


def unserved(history: History, within: float) -> list[Violation]:
    """None if the run ended before the time was over."""
    if history.healed is None or history.ended < history.healed + within:
        return []
    served = _served(history)
    return [
        Violation("liveness", f"{proc}/{thread} got nothing within {within:g} s after healing")
        for (proc, thread), born in history.born.items()
        if born < history.healed and proc not in history.died and served.get((proc, thread), within) >= within
    ]


def recovery(history: History) -> float | None:
    return max(_served(history).values(), default=None)


def _served(history: History) -> dict[tuple[str, str], float]:
    first: dict[tuple[str, str], float] = {}
    if history.healed is None:
        return first
    for use in history.grants:
        if use.returned > history.healed:
            who = (use.proc, use.thread)
            first[who] = min(first.get(who, use.returned), use.returned - history.healed)
    return first
