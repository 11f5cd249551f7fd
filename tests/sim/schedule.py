"""One schedule: a seed, three seats, at least 20 acquisitions, at least 3 faults, then quiet; and what must be true.

`run(seed)` gives what happened, or raises `Violation`. After healing everybody must be served within `BOUND` virtual
seconds; after closing, nothing may be left: no claim of a living process in the store, nothing that a watchdog still
has to do, nobody expected, nothing shared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sim.cells_workload import CellsWorkload
from sim.clockwork import Sim
from sim.faults import FEWEST, KINDS, STEPPED, Faults
from sim.invariants import Violation, Watcher
from sim.network import Network
from sim.queue_workload import QueueWorkload
from sim.workload import ENOUGH, Process, Users, Workload

BOUND = 60.0
WHILE_FAULTY = 200.0
LOOKING_OUT = 6.0
"""Followers may miss the message of a close if they look at that instant; then they look again within this time."""
EVERY_STEPPED = 8
"""One schedule in so many also steps clocks: there two valid holders are possible, and everything else must hold."""
QUEUES, CELLS = "queues", "cells"
WORKLOADS: dict[str, Callable[[Users], Workload]] = {QUEUES: QueueWorkload, CELLS: CellsWorkload}

_log = logging.getLogger("dibs")


class Outcome(NamedTuple):
    seed: int
    handed: int
    faults: tuple[str, ...]
    steps: int
    overlaps_after_steps: int
    trace: list[tuple[float, str, str]] | None


@contextmanager
def judged(sim: Sim) -> Iterator[None]:
    """One schedule: whatever nobody expected is a violation too."""
    _log.disabled = True  # lost renewals are what this is about
    try:
        yield
    except Exception as error:
        violation = error if isinstance(error, Violation) else Violation(f"{type(error).__name__}: {error}")
        violation.trace = sim.trace
        raise violation from (None if error is violation else error)
    finally:
        _log.disabled = False
        sim.bury()


def run(seed: int, trace: bool = False, of: str = QUEUES) -> Outcome:
    """Deterministic: the same seed gives the same steps, whatever machine it runs on."""
    sim = Sim(seed, trace)
    with judged(sim):
        return _run(sim, STEPPED if seed % EVERY_STEPPED == 0 else KINDS, WORKLOADS[of])


def _run(sim: Sim, kinds: Sequence[str], workload: Callable[[Users], Workload]) -> Outcome:
    watcher = Watcher(sim)
    faults = Faults(sim, kinds)
    network = Network(sim, faults, watcher)
    watcher.meet(network.server)
    users = Users(sim, faults, watcher, network, workload)
    faults.meet(users, network)
    check = users.workload.check

    if not sim.run(faults.quiet, WHILE_FAULTY, check):
        raise Violation(f"nothing moves any more, before every fault happened (at {sim.now:.1f} s)")
    users.workload.becomes_quiet()
    if not sim.run(users.done, sim.now + BOUND, check):
        raise Violation(f"not everybody was served within {BOUND:g} s after healing ({_who(users)})")
    users.workload.ends()
    _close(sim, users)
    _check_nothing_is_left(users, network)
    done = users.workload.done()
    if len(faults.happened) < FEWEST or done < ENOUGH:
        raise Violation(f"too little happened: {len(faults.happened)} faults, {done} acquisitions or changes")
    return Outcome(sim.seed, done, tuple(faults.happened), sim.steps, watcher.overlaps_after_steps, sim.trace)


def _close(sim: Sim, users: Users) -> None:
    for process in users.alive():
        sim.start(process.node, "closer", process.client.close())
    if not sim.run(users.done, sim.now + BOUND, users.workload.check):
        raise Violation("closing does not come to an end")
    if not sim.run(users.nobody_follows, sim.now + LOOKING_OUT, users.workload.check):
        raise Violation("somebody goes on following after the client was closed")
    sim.run(lambda: False, sim.now + 2.0, users.workload.check)


def _check_nothing_is_left(users: Users, network: Network) -> None:
    world = network.server.world
    alive = {process.client.me.id: process for process in users.alive()}
    for name, queue in world.queues.items():
        for entry in queue.values():
            if entry.client in alive and not users.watcher.may_stay(entry.id):
                raise Violation(f"{name}: ticket {entry.ticket} stays behind after the client was closed")
    for name, waiting in world.outside.items():
        if any(client in alive and until > network.server.node.now() for client, until in waiting.values()):
            raise Violation(f"{name}: somebody still waits outside after closing")
    for process in alive.values():
        _check_process(process)


def _check_process(process: Process) -> None:
    watchdog, inbox = process.client.watchdog, process.client.me.inbox
    for what, left in (
        ("claims to renew", watchdog.renewing),
        ("claims to remove", watchdog.give_backs._unanswered),
        ("things put down", watchdog.give_backs._posted),
        ("expected messages", inbox.expected),
        ("shared grants", process.client.registry._shared),
    ):
        if left:
            raise Violation(f"{process.node.name}: {len(left)} {what} stay behind after closing")


def _who(users: Users) -> str:
    return ", ".join(
        f"{process.node.name}: {process.taking} asking, {len(process.hands)} in hands" for process in users.alive()
    )
