"""Many schedules, one after the other, and what was found, said so that anyone can see it again.

python tests/sim/explore.py SEED             replays one schedule of locks and prints its trace
python tests/sim/explore.py SEED "margin"    the same without a safeguard (tests/sim/broken.py)
python tests/sim/explore.py cells SEED       a schedule of latch, cell, fence and election; likewise without a safeguard
python tests/sim/explore.py quorum SEED      a schedule of a quorum; likewise without a safeguard
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from sim import quorum, schedule
from sim.broken import broken
from sim.invariants import Violation
from sim.schedule import CELLS, QUEUES, Outcome

QUORUM = "quorum"
RUNS: dict[str, Callable[..., Outcome]] = {
    QUEUES: schedule.run, CELLS: partial(schedule.run, of=CELLS), QUORUM: quorum.run,
}  # fmt: skip
TAIL = 60
"""Lines of a trace that are shown with a failure; the replay shows all."""


class Found(NamedTuple):
    of: str
    """The kind of schedule."""
    seed: int
    what: str
    crashed: bool
    """It was an exception that nobody expected, and no invariant."""


class Sum(NamedTuple):
    """The result of many schedules."""

    schedules: int
    handed: int
    steps: int
    faults: Counter[str]
    overlaps_after_steps: int
    found: list[Found]

    def __add__(self, other: Sum) -> Sum:  # type: ignore[override]  # a sum of sums, not a longer tuple
        return Sum(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


NOTHING = Sum(0, 0, 0, Counter(), 0, [])


def explore(first: int, count: int, *, of: str = QUEUES, until_found: bool = False) -> Sum:
    """Schedules `first` to `first + count - 1`. What goes wrong in one is kept and the next one comes."""
    total = NOTHING
    for seed in range(first, first + count):
        try:
            outcome = RUNS[of](seed)
        except Violation as violation:
            total += Sum(1, 0, 0, Counter(), 0, [_found(of, seed, violation)])
            if until_found:
                break
        else:
            faults = Counter(outcome.faults)
            total += Sum(1, outcome.handed, outcome.steps, faults, outcome.overlaps_after_steps, [])
    return total


def _found(of: str, seed: int, violation: Violation) -> Found:
    return Found(of, seed, str(violation), crashed=violation.__cause__ is not None)


def told(found: Found, without: str | None = None) -> str:
    """A failure as a reader needs it: what, the command that shows it again, and how it came to it."""
    which = str(found.seed) if found.of == QUEUES else f"{found.of} {found.seed}"
    command = f"python tests/sim/explore.py {which}" + (f' "{without}"' if without else "")
    lines = trace_of(found.seed, without, found.of)
    return "\n".join([found.what, f"replay: {command}", *lines[-TAIL:]])


def trace_of(seed: int, without: str | None = None, of: str = QUEUES) -> list[str]:
    with broken(without) if without else nullcontext():
        try:
            trace = RUNS[of](seed, trace=True).trace
            end = "nothing was violated"
        except Violation as violation:
            trace = violation.trace
            end = f"VIOLATION {violation}"
    assert trace is not None
    return [*(f"{at:10.4f}  {node:8}{text}" for at, node, text in trace), end]


def main(args: list[str]) -> int:
    of = args.pop(0) if args and args[0] in RUNS else QUEUES
    if not args or not args[0].isdigit():
        print(__doc__)
        return 64
    lines = trace_of(int(args[0]), args[1] if len(args) > 1 else None, of)
    print("\n".join(lines))
    return int(lines[-1].startswith("VIOLATION"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
