"""The users of a schedule: three seats, each a process with one or two tasks that run a `Workload`.

A process uses the core as the APIs do. When it dies, another one takes its seat and goes on. A task goes on until its
seat has done enough and every fault has happened. While faults happen, bodies may outlast a lease; after that they are
short, so that whoever still waits then waits for the queue and not for a user.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from copy import deepcopy
from itertools import count
from typing import Any
from weakref import ref

from dibs.core.acquire import queue_grantor
from dibs.core.client import Client
from dibs.core.grants import Frame, Hold
from dibs.core.kinds.hold_stack import Takes
from dibs.core.kinds.lock import Lock
from dibs.errors import DibsError
from sim.clockwork import Interrupted, Node, Sim
from sim.executors import SimStore
from sim.faults import Faults
from sim.invariants import Watcher
from sim.network import Network
from sim.world import FOLLOWER, WATCHDOG, SimRuntime

SEATS, QUOTA = 3, 7
ENOUGH = 20
"""Acquisitions, or other deeds, that make a schedule."""
TASKS = (1, 1, 2)
"""How many tasks a process has: mostly one, as a process with two only makes the others wait longer."""
RETRY = 10.0
SHORT = (0.0005, 0.002, 0.01, 0.05)
LONG = (0.0005, 0.002, 0.02, 0.02, 0.02, 0.5, 1.6)


class Workload:
    """The actions of the users of a schedule, and their invariants."""

    names: dict[str, str]
    """The queues that they use, and the kind that each is of."""
    retry = RETRY
    """How patient their clients are."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._dice = users.dice

    async def use(self, process: Process) -> bool:
        """Once; False: it got nothing."""
        raise NotImplementedError

    def follow(self, process: Process) -> list[Coroutine[Any, Any, None]]:
        """Coroutines that a process runs all the time."""
        return []

    def enough(self, seat: int, process: Process) -> bool:
        """The seat has done its part."""
        raise NotImplementedError

    def check(self) -> None:
        """After every step."""
        self._users.watcher.check()

    def becomes_quiet(self) -> None:
        self._users.watcher.becomes_quiet()

    def ends(self) -> None:
        """Everybody is through, and nothing is closed yet."""

    def done(self) -> int:
        """How much was done, all in all."""
        return self._users.watcher.handed


class Process:
    """One client process: a node, a client, its tasks."""

    def __init__(self, users: Users, name: str, seat: int | None = None, retry: float = RETRY) -> None:
        self._users = users
        self._seat = seat
        dice = users.dice
        self.node = Node(users.sim, name, dice.uniform(10, 1000), dice.uniform(0.96, 1.04))
        self.runtime = SimRuntime(users.sim, self.node)
        self.store = SimStore(users.network)
        self.client = Client(
            self.store, self.runtime, lease=2.0, owner=None, info={}, namespace="", retry=retry,
            identity=("user", name, 1), note="", make_grantor=queue_grantor,
        )  # type: ignore[arg-type]  # fmt: skip
        users.watcher.keeps(self.node, self.client.me, self.client.watchdog.renewing)
        self.hands: list[Hold] = []
        self.taking = 0

    async def take(self, lock: Takes[Any], hold: Any) -> list[Hold]:
        """As an API does; the holds are in the user's hands from the step in which acquire returns."""
        self.taking += 1
        here = Frame()
        try:
            hold.lifeline = ref(here)
            taken = lock.take(hold)
            if taken is not True and taken is not False:
                taken = await taken
            if not taken and not await lock.acquire(hold):
                return []
            hold.lifeline = None
            holds = [hold] if isinstance(hold, Hold) else hold.parts
            for each in holds:
                self._users.watcher.taken(self.node, each)
                self.hands.append(each)
            self.did(len(holds))
            return holds
        except BaseException:
            lock.drop(hold)
            raise
        finally:
            self.taking -= 1

    def did(self, much: int) -> None:
        """So much less is to be done at its seat."""
        if self._seat is not None:
            self._users.todo[self._seat] -= much

    async def give(self, lock: Lock, hold: Hold) -> None:
        self.let_go(hold)
        given = lock.give(hold)
        if given is not True:
            await lock.release(hold, given)

    def let_go(self, hold: Hold) -> None:
        if hold in self.hands:
            self.hands.remove(hold)
            self._users.watcher.given(hold)


class Users:
    """Everybody who uses the store in one schedule; also the `Victim` of its faults."""

    def __init__(
        self, sim: Sim, faults: Faults, watcher: Watcher, network: Network, workload: Callable[[Users], Workload]
    ) -> None:
        self.sim = sim
        self.faults = faults
        self.watcher = watcher
        self.network = network
        self.dice: random.Random = sim.dice("workload")
        self.workload = workload(self)
        self.todo = [QUOTA] * SEATS
        self._coming = 0
        """Seats that are empty because somebody died there: another one is on the way."""
        self.processes: dict[Node, tuple[int, Process]] = {}
        self.children: list[Process] = []
        self._numbers = count(1)
        for seat in range(SEATS):
            self._sit(seat)

    def done(self) -> bool:
        """Nobody has anything to do any more."""
        return (
            self.faults.through()
            and not self._coming
            and all(task.name in (WATCHDOG, FOLLOWER) for process in self.alive() for task in process.node.tasks)
        )

    def nobody_follows(self) -> bool:
        return not any(task.name == FOLLOWER for process in self.alive() for task in process.node.tasks)

    def crash(self, node: Node) -> bool:
        if node not in self.processes:
            return False
        seat, _ = self.processes.pop(node)
        node.die()
        self.watcher.died(node)
        self._coming += 1
        self.sim.at(self.sim.now + self.dice.random(), None, lambda: self._sit_down(seat))
        return True

    def fork(self, node: Node) -> bool:
        """The child has a copy of everything; its parent lives on, or dies in the same instant."""
        if node not in self.processes:
            return False
        _, parent = self.processes[node]
        child = Process(self, f"{node.name}-{next(self._numbers)}")
        child.node.offset, child.node.rate = node.offset, node.rate
        own = {id(parent.node): child.node, id(parent.runtime): child.runtime, id(parent.store): child.store}
        child.client, child.hands = deepcopy((parent.client, parent.hands), own)
        child.client.after_fork(child=True, pid=2)
        self.watcher.keeps(child.node, child.client.me, child.client.watchdog.renewing)
        self.watcher.forked(child.node, child.hands)
        self.children.append(child)
        self.sim.start(child.node, "child", self._child(child))
        return self.dice.random() < 0.5 or self.crash(node)

    def interrupt(self, node: Node) -> bool:
        tasks = [task for task in node.tasks if task.name != WATCHDOG and task.waits()]
        if tasks and not node.dead:
            self.dice.choice(tasks).interrupt()
        return bool(tasks) and not node.dead

    def break_a_lock(self) -> bool:
        there = [process for _, process in self.processes.values()]
        if not there or not self.watcher.hands:
            return False
        process = self.dice.choice(there)
        self.sim.start(process.node, "operator", self._break(process))
        return True

    def clock_stepped(self) -> None:
        self.watcher.stepped = self.network.server.cell_watcher.stepped = True

    def alive(self) -> list[Process]:
        return [process for _, process in self.processes.values()] + self.children

    def length(self) -> float:
        return self.dice.choice(SHORT if self.faults.through() else LONG)

    def patience(self) -> float | None:
        return self.dice.choice((None, None, None, None, 0.0, 0.05, 1.0, 3.0))

    def _sit_down(self, seat: int) -> None:
        self._coming -= 1
        self._sit(seat)

    def _sit(self, seat: int) -> None:
        process = Process(self, f"p{next(self._numbers)}", seat, self.workload.retry)
        self.processes[process.node] = (seat, process)
        for _ in range(self.dice.choice(TASKS)):
            self.sim.start(process.node, "user", self._work(seat, process))
        for following in self.workload.follow(process):
            self.sim.start(process.node, FOLLOWER, following)

    async def _work(self, seat: int, process: Process) -> None:
        while not self.workload.enough(seat, process):
            with suppress(Interrupted):
                if not await self._use_whole(process):
                    await process.runtime.sleep(self.dice.random() * 0.02)

    async def _use_whole(self, process: Process) -> bool:
        """Whatever comes in between: afterwards this task holds nothing. False: it got nothing either."""
        try:
            return await self.workload.use(process)
        except Interrupted:
            for hold in process.hands[:]:
                if hold.caller is self.sim.running:
                    process.let_go(hold)
                    process.client.registry.abandon(hold)
        except DibsError as error:
            self.sim.note(process.node.name, f"{type(error).__name__}: {error}")
        return False

    async def _child(self, child: Process) -> None:
        """A forked child gives back what it believes to hold, and works a little."""
        for hold in list(child.hands):
            child.hands.remove(hold)
            with suppress(DibsError):
                await child.client.registry.release(hold)
        await self._use_whole(child)

    async def _break(self, process: Process) -> None:
        try:
            name = self.dice.choice(list(self.workload.names))
            info = await process.client.inspect(name)
            if info.holders:
                await process.client.break_(name, self.dice.choice(info.holders).token)
        except (DibsError, Interrupted) as error:
            self.sim.note(process.node.name, f"{type(error).__name__}: {error}")
