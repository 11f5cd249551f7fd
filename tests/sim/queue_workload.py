"""A workload of locks of all kinds: one to three names, one or several at once."""

from __future__ import annotations

from functools import cache
from typing import Any

from dibs.core.grants import Hold
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.multi import Multi
from dibs.core.kinds.options import Options
from dibs.core.rule import RW_CAPACITY
from sim.workload import Process, Users, Workload

LEASES = (1.0, 2.0, 2.0, 3.0)
PERMITS = 3


class QueueWorkload(Workload):
    def __init__(self, users: Users) -> None:
        super().__init__(users)
        kinds = ["mutex", "mutex", "rw", "semaphore"]
        count = self._dice.choice((1, 1, 2, 2, 3))
        self.names = {name: self._dice.choice(kinds) for name in ("a", "b", "c")[:count]}

    def enough(self, seat: int, process: Process) -> bool:
        return self._users.todo[seat] <= process.taking and self._users.faults.through()

    async def use(self, process: Process) -> bool:
        names = list(self.names)
        if len(names) > 1 and self._dice.random() < 0.3:
            return await self._use_several(process, self._dice.sample(names, 2))
        name = self._dice.choice(names)
        more = {"weight": RW_CAPACITY} if self.names[name] == "rw" and self._dice.random() < 0.5 else {}
        lock = self._lock(process, name, **more)
        if lock.request.kind == "semaphore":
            lock = lock.permits(self._dice.randint(1, PERMITS))
        holds = await process.take(lock, lock.begin(self._users.patience()))
        for hold in holds:
            try:
                await self._body(process, lock, hold)
            finally:
                await process.give(lock, hold)
        return bool(holds)

    def _lock(self, process: Process, name: str, **more: Any) -> Lock:
        """A lock of the kind that this name has in every process."""
        dice, kind = self._dice, self.names[name]
        options = some_options(users=self._users)
        if kind == "rw":
            more = {"kind": "rw", "capacity": RW_CAPACITY, "share": True, "weight": 1, **more}
        elif kind == "semaphore":
            more = {"kind": "semaphore", "capacity": PERMITS}
        else:
            more = {"share": dice.random() < 0.4}
        return Lock(process.client, name, options, **more)

    async def _use_several(self, process: Process, names: list[str]) -> bool:
        multi = Multi([self._lock(process, name) for name in names], None, lambda hold, lock: hold)
        hold = multi.begin(self._users.patience())
        holds = await process.take(multi, hold)
        if holds:
            await process.runtime.sleep(self._users.length())
            for part in holds:
                process.let_go(part)
            await hold.release()
        return bool(holds)

    async def _body(self, process: Process, lock: Lock, hold: Hold) -> None:
        await process.runtime.sleep(self._users.length())
        if lock.share and self._dice.random() < 0.7:
            for again in await process.take(lock, lock.begin(None)):
                try:
                    await process.runtime.sleep(self._users.length() / 4)
                finally:
                    await process.give(lock, again)
        if lock.weight == RW_CAPACITY and self._dice.random() < 0.4:
            await lock.downgrade(hold)
            await process.runtime.sleep(self._users.length() / 4)


def some_options(users: Users) -> Options:
    dice = users.dice
    return _options(
        dice.choice(LEASES), dice.random() < 0.75, None if dice.random() < 0.85 else False,
        1.5 if dice.random() < 0.05 else None,
    )  # fmt: skip


@cache
def _options(lease: float, renew: bool, fair: bool | None, max_hold: float | None) -> Options:
    return Options(lease=lease, renew=renew, fair=fair, max_hold=max_hold)
