"""A workload of latch, cell, fence and election; one or two of them in each schedule.

The fence is shown tokens of real holds of a lock, mostly while these last, and also when a holder stood still too long
and comes back. Every process may follow: the latch, generation after generation, and the election. After the last fault
each seat does a little more, so that what must be prompt then has something to be prompt about.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dibs.backends.common.atomic_queue import QUEUES
from dibs.core.cells import CELL, FENCE, LATCH, CellKey
from dibs.core.kinds.election import Election
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.primitives import Cell, Fence, Latch
from dibs.core.queue import ELECTION
from dibs.core.rule import RW_CAPACITY
from dibs.errors import DibsError
from sim.clockwork import Interrupted
from sim.deeds import DONE, NOT_DONE, UNKNOWN, Deed
from sim.queue_workload import some_options
from sim.workload import ENOUGH, SEATS, Process, Users, Workload

PATIENCE = (0.3, 0.3, 1.0, 3.0)
AFTERWARDS = 2
"""The operations of a seat after the last fault."""
IDLE = 0.2
SETTLING = 2.6
"""Seconds in which whoever follows has asked again, whatever it missed."""


class CellsWorkload(Workload):
    def __init__(self, users: Users) -> None:
        super().__init__(users)
        dice = self._dice
        self._seen = users.network.server.cell_watcher
        self.retry = dice.choice(PATIENCE)
        uses = {"latch": self._latch, "cell": self._cell, "fence": self._fence, "election": self._election}
        follows = {"latch": self._follow_latch, "election": self._follow_election}
        kinds = {"fence": dice.choice(("mutex", "rw")), "election": ELECTION}
        things = dice.sample(list(uses), dice.choice((1, 2)))
        self._uses = [uses[it] for it in things]
        self._follows = [follows[it] for it in things if it in follows]
        self.names = {it: kinds[it] for it in things if it in kinds}
        self._is_quiet = False
        self._left = [AFTERWARDS] * SEATS

    def follow(self, process: Process) -> list[Coroutine[Any, Any, None]]:
        return [following(process) for following in self._follows if self._dice.random() < 0.7]

    def enough(self, seat: int, process: Process) -> bool:
        if not self._is_quiet:
            return False
        self._left[seat] -= 1
        return self._left[seat] < 0 and self.done() >= ENOUGH

    def check(self) -> None:
        super().check()
        self._seen.check()

    def becomes_quiet(self) -> None:
        self._is_quiet = True
        super().becomes_quiet()
        self._seen.becomes_quiet()

    def ends(self) -> None:
        sim = self._users.sim
        sim.run(self._seen.settled, sim.now + SETTLING, self.check)
        self._seen.finish()

    def done(self) -> int:
        return self._seen.ended + super().done()

    async def use(self, process: Process) -> bool:
        if not self._is_quiet and self._users.faults.through():
            await process.runtime.sleep(IDLE)  # the last fault is over soon
            return True
        await process.runtime.sleep(self._users.length() / 2)
        return await self._dice.choice(self._uses)(process)

    @contextmanager
    def _deed(
        self, process: Process, verb: str, cell_key: CellKey, amount: int = 0, timeout: float | None = None
    ) -> Iterator[Deed]:
        """A deed whose end says nothing of doubt was done, or was not done."""
        deed = self._seen.begins(process.node, verb, cell_key, amount, timeout)
        try:
            yield deed
        except Interrupted:
            self._seen.ends(deed, UNKNOWN)
            raise
        except DibsError as error:
            self._seen.ends(deed, UNKNOWN if "not known" in error.what else NOT_DONE)
            raise
        self._seen.ends(deed, DONE)

    async def _latch(self, process: Process) -> bool:
        """The state of the server suggests an operation; the dice decide."""
        latch, cell_key, draw = Latch(process.client, "latch"), CellKey(LATCH, "latch"), self._dice.random()
        is_open = (self._users.network.server.world.cell(cell_key).value or b" 0").endswith(b" 0")
        if draw < 0.2:
            await self._wait(process, latch, self._dice.choice((0.0, 0.05, 1.0, 2.0)), self._dice.random() < 0.5)
        elif draw < (0.8 if is_open else 0.3):
            count = self._dice.choice((1, 1, 1, 2, 3))
            with self._deed(process, "arm", cell_key, count):
                await latch.arm(count)
        else:
            n = self._dice.choice((1, 1, 2))
            with self._deed(process, "count", cell_key, n):
                await latch.count_down(n)
        return True

    async def _wait(self, process: Process, latch: Latch, timeout: float | None, armed: bool) -> None:
        with self._deed(process, "wait", CellKey(LATCH, latch.name), timeout=timeout) as deed:
            deed.armed = armed
            self._seen.waited(deed, await latch.wait(timeout, armed))

    async def _follow_latch(self, process: Process) -> None:
        latch = Latch(process.client, "latch")
        while not process.client.closed:
            with suppress(DibsError, Interrupted):
                await self._wait(process, latch, None, armed=True)

    async def _cell(self, process: Process) -> bool:
        cell, cell_key, draw = Cell(process.client, "cell"), CellKey(CELL, "cell"), self._dice.random()
        if draw < 0.5:
            with self._deed(process, "update", cell_key) as deed:
                _, version = await cell.update(lambda value: (value or b"") + deed.word())
                self._seen.changed(deed, version)
            return True
        with self._deed(process, "get", cell_key, timeout=self.retry):
            value, version = await cell.get()
        if draw < 0.8:
            await process.runtime.sleep(self._users.length() / 10)
            with self._deed(process, "set", cell_key, timeout=self.retry) as deed:
                self._seen.changed(deed, await cell.set((value or b"") + deed.word(), version))
        return True

    async def _fence(self, process: Process) -> bool:
        reads, more = False, {}
        if self.names["fence"] == "rw":
            reads = self._dice.random() < 0.5
            more = {"kind": "rw", "capacity": RW_CAPACITY, "weight": 1 if reads else RW_CAPACITY}
        lock = Lock(process.client, "fence", some_options(self._users), **more)
        holds = await process.take(lock, lock.begin(self._users.patience()))
        for hold in holds:
            try:
                for _ in range(self._dice.randint(1, 3)):
                    await process.runtime.sleep(self._users.length())
                    await self._admit(process, hold.token, reads)
            finally:
                await process.give(lock, hold)
        return bool(holds)

    async def _admit(self, process: Process, token: int, shared: bool) -> None:
        fence, verb = Fence(process.client, "fence"), "admit shared" if shared else "admit"
        with self._deed(process, verb, CellKey(FENCE, "fence"), token, self.retry):
            await fence.admit(token, shared, None)

    async def _election(self, process: Process) -> bool:
        election = Election(process.client, "election", some_options(self._users))
        if self._dice.random() < 0.2:
            with self._deed(process, "leader", CellKey(QUEUES, "election"), timeout=self.retry):
                await election.leader()
            return True
        lock = election.lead()
        holds = await process.take(lock, lock.begin(self._users.patience()))
        for hold in holds:
            try:
                await process.runtime.sleep(self._users.length())
            finally:
                await process.give(lock, hold)
        return bool(holds)

    async def _follow_election(self, process: Process) -> None:
        election = Election(process.client, "election", some_options(self._users))
        while not process.client.closed:
            following = self._seen.follows(process.node, CellKey(QUEUES, "election"))
            seen: int | None = None
            try:
                while True:
                    _, seen = await election.change(seen)
                    self._seen.yields(following, seen)
            except (DibsError, Interrupted) as error:
                self._users.sim.note(process.node.name, f"{type(error).__name__}: {error}")
            finally:
                self._seen.follows_no_more(following)
