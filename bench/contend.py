#!/usr/bin/env python3
"""Contention: four processes want one lock.

  bench/contend.py [--only contend_nohold | --only contend_hold5ms]

contend_nohold   Take, give back, at once again: acquisitions/s, and how evenly they fall (Jain's index: 1 = all alike).
                 Each holder compares its token with its predecessor's, kept in shared memory: one that is not higher is
                 a fall, and means that the order was not kept. Bars: 0.6 x filelock's rate, no fall.
contend_hold5ms  The holder sleeps 5 ms. Hand-off: from just before `release` is called until the next process has the
                 lock, on the one monotonic clock of the machine. Beside it stands a bare wake: a process that sleeps in
                 `recv` on a Unix datagram socket, from just before `sendto` until `recv` has returned.
                 Bars: p50 at most 7 bare wakes, p99 at most a tenth of filelock's. Who polls hands over rarely, as
                 the last holder mostly comes back first; the longest wait for the lock shows what that means.

An overlap, two holders at once, is counted everywhere and would be a defect.
"""

from __future__ import annotations

import mmap
import socket
import struct
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from crew import Failed, together
from measure import Report, Settings, main, microseconds, p50, percentile

PROCESSES = 4
SECONDS = (4.0, 0.7)
"""How long a turn lasts, in a full run and in a quick one."""
FAIR, UNFAIR, FILELOCK, WAKE = "dibs fair", "dibs unfair", "filelock.FileLock", "bare Unix-socket wake"
_ENOUGH = 10
_WORD = struct.Struct("dqq")
"""Shared by all holders of a run: when the last one called release, which process it was, its token."""
_INSIDE = _WORD.size
"""Where the byte stands that is 1 while somebody holds."""


@dataclass
class Outcome:
    """What one contender did, over all rounds."""

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
"""Makes the lock that one process uses; what must be closed goes on the stack."""


def contend_nohold(report: Report, settings: Settings) -> None:
    outcomes = compare(report, settings, embedded(settings), hold=0.0)
    for kind, outcome in outcomes.items():
        report.line(kind, rates(outcome))
    if FAIR in outcomes:
        fair = outcomes[FAIR]
        if FILELOCK in outcomes:
            peer = (FILELOCK, outcomes[FILELOCK].rate())
            report.against("acquisitions/s at least 0.6 x filelock's", fair.rate(), peer, "per-s", least=0.6)
        report.limit("no token falls behind its predecessor's", fair.falls, "n", most=0)


def contend_hold5ms(report: Report, settings: Settings) -> None:
    wakes: list[float] = []
    outcomes = compare(
        report, settings, embedded(settings), hold=0.005,
        before=lambda: wakes.extend(bare_wakes(settings.directory, settings.choose(100, 50))),
    )  # fmt: skip
    report.line(WAKE, microseconds(wakes))
    for kind, outcome in outcomes.items():
        report.line(kind, handoffs(outcome))
    if FAIR in outcomes:
        gaps = outcomes[FAIR].gaps
        wake = (WAKE, p50(wakes) * 1e6)
        report.against("p50 of a hand-off at most 7 bare wakes", p50(gaps) * 1e6, wake, "us", most=7.0)
        with report.or_left_out("the bar on p99"):
            theirs = outcomes[FILELOCK].gaps
            if len(theirs) < _ENOUGH:
                raise Failed(f"filelock handed over {len(theirs)} times only: its p99 says nothing")
            peer = (f"{FILELOCK}, of {len(theirs)} hand-offs", percentile(theirs, 0.99) * 1e6)
            ours = percentile(gaps, 0.99) * 1e6
            report.against("p99 of a hand-off at most a tenth of filelock's", ours, peer, "us", most=0.1)


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


def embedded(settings: Settings) -> dict[str, Contender]:
    """What the rows of this script compare."""
    return {kind: processes(make) for kind, make in embedded_locks(settings).items()}


def embedded_locks(settings: Settings) -> dict[str, Maker]:
    url, path = settings.sqlite("contend"), str(settings.directory / "contend.lock")
    return {
        FAIR: lambda stack: _client(url, stack).lock("fair"),
        UNFAIR: lambda stack: _client(url, stack).lock("unfair", fair=False),
        FILELOCK: lambda stack: _file_lock(path),
    }


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


def _client(url: str, stack: ExitStack) -> Any:
    import dibs

    return stack.enter_context(dibs.connect(url))


def _file_lock(path: str) -> Any:
    import filelock

    return filelock.FileLock(path)


def bare_wakes(directory: Path, turns: int) -> list[float]:
    """One-way times of a datagram that two processes throw to and fro, with a pause that lets the other fall asleep."""
    with mmap.mmap(-1, mmap.PAGESIZE) as shared, ExitStack() as stack:
        ends = []
        for number in range(2):
            end = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            path = directory / f"wake-{number}"
            stack.callback(path.unlink)
            end.bind(str(path))
            end.settimeout(30.0)
            ends.append((end, str(path)))
        (one, at_one), (other, at_other) = ends
        calls = [(one, at_other, True, shared, turns), (other, at_one, False, shared, turns)]
        return [gap for gaps in together(play, calls) for gap in gaps]


def play(
    start: Callable[[], None], mine: socket.socket, other: str, serves: bool, shared: mmap.mmap, turns: int
) -> list[float]:
    clock, gaps = time.perf_counter, []
    mine.settimeout(None)  # a time-out would put a poll before each recv
    start()
    for turn in range(turns * 2):
        if (turn % 2 == 0) == serves:
            time.sleep(0.005)
            _WORD.pack_into(shared, 0, clock(), 0, 0)
            mine.sendto(b"x", other)
        else:
            mine.recv(16)
            now = clock()
            gaps.append(now - _WORD.unpack_from(shared)[0])
    return gaps


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


ROWS = {"contend_nohold": contend_nohold, "contend_hold5ms": contend_hold5ms}

if __name__ == "__main__":
    main(__doc__, ROWS)
