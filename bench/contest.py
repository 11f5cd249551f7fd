"""Four processes that want one lock: how a turn of them runs, and what it measures.

Each holder compares its token with its predecessor's, kept in shared memory: one that is not higher is a *fall*, and
means that the order was not kept. An *overlap*, two holders at once, is counted everywhere and would be a defect. A
hand-off lasts from just before `release` is called until the next process has the lock, on the machine's monotonic
clock. Jain's index says how evenly the acquisitions fall: 1 means equal shares.
"""

from __future__ import annotations

import mmap
import struct
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from crew import together
from measure import Report, Settings, microseconds

PROCESSES = 4
SECONDS = (4.0, 0.7)
"""How long a turn lasts, in a full run and in a quick one."""
FAIR, UNFAIR = "dibs fair", "dibs unfair"
_WORD = struct.Struct("dqq")
"""Shared by all holders of a turn: when the last one called release, its process, its token."""
_INSIDE = _WORD.size
"""Offset of the byte that is 1 while a process holds."""


@dataclass
class Outcome:
    """One contender, over all rounds."""

    seconds: float = 0.0
    rounds: list[list[int]] = field(default_factory=list)
    gaps: array[float] = field(default_factory=lambda: array("d"))
    waits: array[float] = field(default_factory=lambda: array("d"))
    tokens: bool = False
    """Whether its locks give any."""
    falls: int = 0
    overlaps: int = 0

    def rate(self) -> float:
        return sum(map(sum, self.rounds)) / self.seconds

    def jain(self) -> float:
        return sum(jain(counts) for counts in self.rounds) / len(self.rounds)

    def add_holds(self, seconds: float, end: int, turns: list[list[tuple[int, int]]]) -> None:
        """One turn of a peer that records its own holds (granted, released; ns), a list for each contender."""
        self.seconds += seconds
        self.rounds.append([sum(granted < end for granted, _ in turn) for turn in turns])
        for turn in turns:
            self.waits.extend((granted - released) / 1e9 for (_, released), (granted, _) in pairwise(turn))
        order = sorted((granted, released, me) for me, turn in enumerate(turns) for granted, released in turn)
        for (_, released, before), (granted, _, me) in pairwise(order):
            self.overlaps += granted < released
            if me != before and granted < end:
                self.gaps.append((granted - released) / 1e9)


Contender = Callable[[Outcome, float, float], None]
"""(outcome, seconds, hold): one turn of all four, which adds to the outcome."""
Maker = Callable[[ExitStack], Any]
"""Makes the lock of one process; resources go on the stack."""


def compare(
    report: Report, settings: Settings, contenders: Mapping[str, Contender], *, hold: float,
    before: Callable[[], None] = lambda: None, seconds: tuple[float, float] = SECONDS,
) -> dict[str, Outcome]:  # fmt: skip
    """All contenders in turn, round after round."""
    a_turn = settings.choose(*seconds)
    outcomes: dict[str, Outcome] = {}
    failed: set[str] = set()
    for _ in range(settings.rounds):
        before()
        for kind, contend in contenders.items():
            if kind not in failed:
                failed.add(kind)
                with report.or_left_out(kind):
                    contend(outcomes.setdefault(kind, Outcome()), a_turn, hold)
                    failed.remove(kind)
    return {kind: outcome for kind, outcome in outcomes.items() if kind not in failed}


def processes(make: Maker, count: int = PROCESSES) -> Contender:
    """Processes that each make a lock of their own."""

    def contend(outcome: Outcome, seconds: float, hold: float) -> None:
        with mmap.mmap(-1, mmap.PAGESIZE) as shared:
            calls = [(make, number + 1, shared, seconds, hold) for number in range(count)]
            answers = together(compete, calls, patience=seconds + 20.0)
        outcome.seconds += seconds
        outcome.rounds.append([count for count, *_ in answers])
        for _, waits, gaps, tokens, falls, overlaps in answers:
            outcome.waits += waits
            outcome.gaps += gaps
            outcome.tokens |= tokens
            outcome.falls += falls
            outcome.overlaps += overlaps

    return contend


def compete(
    start: Callable[[], None], make: Maker, me: int, shared: mmap.mmap, seconds: float, hold: float
) -> tuple[int, array[float], array[float], bool, int, int]:
    """One process: its acquisitions in time, how long each took, the gaps it saw, if it got tokens, falls, overlaps."""
    clock, waits, gaps = time.perf_counter, array("d"), array("d")
    count = falls = overlaps = token = 0
    with ExitStack() as stack:
        lock = make(stack)
        has_token = hasattr(lock.acquire(), "token")
        lock.release()
        start()
        asked = clock()
        end = asked + seconds
        while asked < end:
            held = lock.acquire()
            now = clock()
            waits.append(now - asked)
            overlaps += shared[_INSIDE]
            shared[_INSIDE] = 1
            released, who, before = _WORD.unpack_from(shared)
            if has_token:
                token = held.token
                falls += token <= before
            if now < end:
                count += 1
                if who and who != me:
                    gaps.append(now - released)
            if hold:
                time.sleep(hold)
            shared[_INSIDE] = 0
            _WORD.pack_into(shared, 0, clock(), me, token)
            lock.release()
            asked = clock()
    return count, waits, gaps, has_token, falls, overlaps


def jain(counts: list[int]) -> float:
    squares = len(counts) * sum(count * count for count in counts)
    return sum(counts) ** 2 / squares if squares else 0.0


def rates(outcome: Outcome) -> dict[str, float]:
    return {"rate_per-s": outcome.rate(), "jain_": outcome.jain(), **_disorder(outcome)}


def handoffs(outcome: Outcome) -> dict[str, float]:
    more = {"hand-offs_n": len(outcome.gaps), "longest wait_ms": max(outcome.waits) * 1e3, "jain_": outcome.jain()}
    return {**microseconds(outcome.gaps), **more, **_disorder(outcome)}


def in_order(report: Report, outcomes: Mapping[str, Outcome], ours: str) -> None:
    if ours in outcomes:
        report.limit("no token falls behind its predecessor's", outcomes[ours].falls, "n", most=0)
        report.limit("nobody finds somebody inside", outcomes[ours].overlaps, "n", most=0)


def _disorder(outcome: Outcome) -> dict[str, float]:
    falls = {"falls_n": outcome.falls} if outcome.tokens else {}
    return {**falls, "overlaps_n": outcome.overlaps}
