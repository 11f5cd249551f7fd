"""How a process reaches the server: `Queue` and `Cells` as a client of a real store would write them.

The server's clock is its own: `claim.by` and `write.by`, instants of the client, are turned into the store's time once
each, from the times that came with replies, rounding early. Who watches for a change is put down at the server, is told
by a signal, and looks for itself now and then, as signals get lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar

from dibs.backends.common.atomic_queue import QUEUES
from dibs.backends.memory import MemoryStore
from dibs.core.cells import CellKey, CellValue, Write
from dibs.core.queue import ClientIdentity, Leave, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.info import Finding, LockInfo
from sim.clockwork import Shared
from sim.network import Channel, Courier, Network, StoreTime
from sim.world import POLL_INTERVAL, SimInbox, SimRuntime


class SimStore:
    """One client's way to the server: see core/queue.py."""

    backend: ClassVar[str] = "sim"
    capabilities: ClassVar[frozenset[str]] = MemoryStore.capabilities
    shown = "sim://"

    def __init__(self, network: Network) -> None:
        self.network = network
        self.time = StoreTime()
        self.by: dict[bytes, float] = {}
        self.unwatched: deque[tuple[CellKey, bytes]] = deque()
        """Whom the server need not tell any more: it hears of it with the next who watches."""

    def open(self, runtime: SimRuntime, me: ClientIdentity) -> SimExecutor:
        assert isinstance(me.inbox, SimInbox)
        self.time.heard(self.network.server.node.now(), runtime.now())
        self.network.server.world.inboxes[me.id] = Courier(self.network, me.inbox, runtime.node)
        return SimExecutor(self, runtime, me)

    def open_cells(self, runtime: SimRuntime, me: ClientIdentity) -> SimCells:
        return SimCells(self, runtime, me)

    def in_its_time(self, wish: Claim | Write) -> float:
        """`by`, fixed once: what the store remembers of an id lasts as long as what is on its way with it counts."""
        by = self.by.get(wish.id)
        if by is None:
            by = self.by[wish.id] = self.time.early(wish.by)
        return by

    def close(self) -> None:
        self.by.clear()

    def before_fork(self) -> None:
        """Nothing is open that a child could harm."""

    def after_fork(self, child: bool) -> None:
        if child:
            self.by = {}
            self.unwatched = deque()


class SimExecutor(Shared):
    """`Queue` (core/queue.py) over the network."""

    def __init__(self, store: SimStore, runtime: SimRuntime, me: ClientIdentity) -> None:
        network = store.network
        self._ask = Channel(network, runtime, store.time).ask
        self._store = store
        self._watcher = network.watcher
        self._me = me
        self._dice = network.sim.dice("free path")
        self._lookout = Lookout(store, runtime, me, self._ask)

    def take_now(self, claim: Claim, place: Place, until: float) -> Coroutine[Any, Any, Standing | None] | None:
        """Every other time: both paths are tried."""
        return self.join(claim, place, until) if self._dice.random() < 0.5 else None

    def leave_now(self, claim: Claim, until: float) -> Coroutine[Any, Any, bool] | None:
        return self.leave(claim, True, until) if self._dice.random() < 0.5 else None

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        claim.asked = True
        standing = await self._ask("join", self._wire(claim), place, until=until)
        return self._learn(claim, standing)

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        self._watcher.renewing(claims)
        standings = await self._ask("renew", [self._wire(claim) for claim in claims], until=until)
        return [self._learn(claim, standing) for claim, standing in zip(claims, standings, strict=True)]

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        await self._ask("amend", self._wire(claim), weight, until=until)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        stood = await self._ask("leave", self._wire(claim), answered, until=until)
        self._watcher.left(claim)
        return bool(stood)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[None]:
        wire = [(self._wire(claim), answered) for claim, answered in leaving]
        answers: list[None] = await self._ask("leave_all", wire, until=until)
        for claim, _ in leaving:
            self._watcher.left(claim)
        return answers

    async def connect(self, until: float) -> None:
        """A connection of this world costs nothing."""

    def round_trip(self) -> float:
        return 0.0

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def inspect(self, name: str, until: float) -> LockInfo:
        self._lookout.looks()
        return await self._ask("inspect", name, until=until)  # type: ignore[no-any-return]

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        return await self._ask("page", prefix, after, until=until)  # type: ignore[no-any-return]

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await self._ask("revoke", name, token, until=until)  # type: ignore[no-any-return]

    async def evict(self, name: str, token: int, until: float) -> bool:
        return await self._ask("evict", name, token, until=until)  # type: ignore[no-any-return]

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._lookout.watch(CellKey(QUEUES, name), seen, key, until)

    async def identity(self, until: float) -> str:
        return "sim"

    async def doctor(self, until: float) -> list[Finding]:
        return []

    def close(self) -> None:
        """A connection of this world costs nothing."""

    def _wire(self, claim: Claim) -> Claim:
        """The claim as the server reads it from the wire."""
        return Claim(
            claim.id, claim.name, claim.kind, claim.capacity, claim.weight, claim.lease, claim.waiting,
            self._store.in_its_time(claim), claim.client, claim.description, True, claim.ticket,
        )  # fmt: skip

    @staticmethod
    def _learn(claim: Claim, standing: Standing | None) -> Standing | None:
        if standing is not None and standing.ticket:
            claim.ticket = standing.ticket
        return standing


class SimCells(Shared):
    """`Cells` (core/cells.py) over the network."""

    def __init__(self, store: SimStore, runtime: SimRuntime, me: ClientIdentity) -> None:
        self._ask = Channel(store.network, runtime, store.time).ask
        self._store = store
        self._watcher = store.network.server.cell_watcher
        self._lookout = Lookout(store, runtime, me, self._ask)

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        self._lookout.looks()
        cell_value: CellValue = await self._ask("get", cell_key, until=until)
        self._watcher.looked(cell_value)
        return cell_value

    async def put(self, write: Write, until: float) -> int:
        self._watcher.writes(write, self._store.time.here)
        write.asked = True
        wire = Write(write.cell_key, write.value, write.version, write.id, self._store.in_its_time(write), asked=True)
        return await self._ask("put", wire, until=until)  # type: ignore[no-any-return]

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        await self._lookout.watch(cell_key, version, key, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        return await self._ask("admit", name, token, shared, until=until)  # type: ignore[no-any-return]

    def close(self) -> None:
        """A connection of this world costs nothing."""


class Lookout:
    """Waiting for a change, as whoever is told of it and cannot rely on that."""

    def __init__(self, store: SimStore, runtime: SimRuntime, me: ClientIdentity, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._store = store
        self._now = runtime.now
        self._me = me
        self.looks = store.network.server.cell_watcher.looks

    async def watch(self, cell_key: CellKey, seen: int, key: bytes, until: float) -> None:
        self.looks()
        if await self.put_down(cell_key, seen, key, until):
            return
        try:
            while (now := self._now()) < until:
                if await self._me.inbox.wait(key, min(until, now + POLL_INTERVAL)) is not None:
                    return
                if await self._ask("changed", cell_key, seen, until=until):
                    return
        finally:
            self._store.unwatched.append((cell_key, key))  # an interrupt awaits nothing

    async def put_down(self, cell_key: CellKey, seen: int, key: bytes, until: float) -> bool:
        """Look and be put down, in one step at the server. True: there was a change already."""
        over = list(self._store.unwatched)
        self._store.unwatched.clear()
        return await self._ask("watch", cell_key, seen, key, self._me.id, over, until=until)  # type: ignore[no-any-return]
