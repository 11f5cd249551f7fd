"""The `memory://` store: queues in the memory of this process, for tests and for the simulator.

`memory://` is one store per process, and each `memory://name` another. All clients of this process with that URL share
it, sync and async. A forked child starts with empty queues. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from heapq import heappop, heappush
from math import inf
from time import time
from typing import ClassVar, TypeVar

from dibs.backends.common import atomic_cells, atomic_queue
from dibs.backends.common.atomic_queue import QUEUES, Tombs, Wake
from dibs.core.cells import UNSET_CELL, CellKey, Cells, CellValue, Write
from dibs.core.deadline import FOREVER
from dibs.core.queue import (
    ATOMIC_TRY,
    CELLS,
    ELECTION,
    FAIR,
    LEASES,
    PERMITS,
    RECORDS,
    RW,
    VOTES,
    ClientIdentity,
    Leave,
    Place,
    Signal,
    Voter,
    read_signal,
)
from dibs.core.rule import Claim, Entry, Standing
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreError
from dibs.info import Finding, LockInfo
from dibs.runtime.threads import mutex
from dibs.url import Url

T = TypeVar("T")


class World:
    """One memory store: `Stamped` of atomic_queue and `CellTable` of atomic_cells."""

    poll_interval = float("inf")

    def __init__(self, name: str) -> None:
        self.name = name
        self.inboxes: dict[bytes, Inbox] = {}
        self.last_ticket = 0
        self.reset()

    def reset(self) -> None:
        self.mutex = mutex()
        self.queues: dict[str, dict[int, Entry]] = {}
        self.places: dict[bytes, Entry] = {}
        self.tombs = Tombs()
        self.outside: dict[str, dict[bytes, tuple[bytes, float]]] = {}
        """The unfair waiters of each name: by id, the client and the instant when the entry ends."""
        self.cells: dict[CellKey, CellValue] = {}
        self.writes: dict[bytes, int] = {}
        self.ends: list[tuple[float, bytes]] = []
        self.watchers: dict[CellKey, dict[bytes, bytes]] = {}

    def wake(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            inbox = self.inboxes.get(wake.client)
            if inbox is not None:
                inbox.deliver(wake.id, wake.signal.value)

    def queue(self, name: str) -> Iterable[Entry]:
        there = self.queues.get(name)
        return there.values() if there else atomic_queue.NOBODY

    def find(self, name: str, claims: Sequence[Claim]) -> dict[bytes, Entry]:
        return {claim.id: self.places[claim.id] for claim in claims if claim.id in self.places}

    def add(self, name: str, entry: Entry) -> None:
        self.queues.setdefault(name, {})[entry.ticket] = entry
        self.places[entry.id] = entry

    def write(self, name: str, entries: Sequence[Entry]) -> None:
        """Does nothing: verbs change the entries of the queue in place."""

    def remove(self, name: str, entry: Entry) -> None:
        queue = self.queues.get(name)
        if queue is not None:
            queue.pop(entry.ticket, None)
            if not queue:
                self.queues.pop(name, None)
        self.places.pop(entry.id, None)

    def ticket(self, now: float) -> int:
        self.last_ticket += 1
        return self.last_ticket

    def restamp(self, name: str, entry: Entry, token: int) -> None:
        self.remove(name, entry)
        entry.ticket = token
        self.add(name, entry)
        self.last_ticket = max(self.last_ticket, token)

    def dead(self, client: bytes) -> bool:
        return False

    def bury(self, id: bytes, until: float, now: float) -> None:
        self.tombs.bury(id, until, now)

    def buried(self, id: bytes) -> bool:
        return id in self.tombs

    def unfair_waiters(self, name: str) -> list[tuple[bytes, bytes]]:
        there = self.outside.get(name)
        return [(client, id) for id, (client, _) in there.items()] if there else []

    def wait_unfair(self, name: str, claim: Claim, until: float) -> None:
        now, there = until - claim.waiting, self.outside.get(name, {})
        self.outside[name] = {id: (client, over) for id, (client, over) in there.items() if over > now}
        self.outside[name][claim.id] = (claim.client, until)

    def come_in(self, name: str, id: bytes) -> None:
        there = self.outside.get(name)
        if there is not None and there.pop(id, None) is not None and not there:
            del self.outside[name]

    def cell(self, cell_key: CellKey) -> CellValue:
        return self.cells.get(cell_key, UNSET_CELL)

    def keep(self, cell_key: CellKey, cell_value: CellValue) -> None:
        self.cells[cell_key] = cell_value

    def written(self, write: Write) -> int | None:
        return self.writes.get(write.id)

    def note(self, write: Write, version: int, now: float) -> None:
        while self.ends and self.ends[0][0] < now:
            self.writes.pop(heappop(self.ends)[1], None)
        heappush(self.ends, (write.by, write.id))
        self.writes[write.id] = version

    def watch(self, cell_key: CellKey, client: bytes, key: bytes) -> None:
        self.watchers.setdefault(cell_key, {})[key] = client

    def unwatch(self, cell_key: CellKey, key: bytes) -> None:
        there = self.watchers.get(cell_key)
        if there is not None and there.pop(key, None) is not None and not there:
            del self.watchers[cell_key]

    def dismiss(self, cell_key: CellKey) -> list[tuple[bytes, bytes]]:
        return [(client, key) for key, client in self.watchers.pop(cell_key, {}).items()]


_worlds: dict[str, World] = {}


class MemoryStore:
    """One client's view of a memory store."""

    backend: ClassVar[str] = "memory"
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, VOTES, RECORDS})

    def __init__(self, url: Url) -> None:
        if url.port is not None or url.username is not None or url.query or url.path not in ("", "/"):
            raise ValueError("a memory store's URL is memory:// or memory://name")
        self.shown = f"memory://{url.host}"
        self._world = _worlds.setdefault(url.host, World(url.host))
        self._client_id: bytes | None = None

    def open(self, runtime: Runtime, me: ClientIdentity) -> Voter:
        self._world.inboxes[me.id] = me.inbox
        self._client_id = me.id
        return MemoryQueue(self._world, runtime, me)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return MemoryCells(self._world, runtime, me)

    def close(self) -> None:
        if self._client_id is not None:
            self._world.inboxes.pop(self._client_id, None)

    def before_fork(self) -> None:
        """Does nothing: a child cannot damage shared resources."""

    def after_fork(self, child: bool) -> None:
        if child:
            self._world.reset()


class _Steps:
    """Atomic steps, and waits for a change."""

    def __init__(self, world: World, runtime: Runtime, me: ClientIdentity) -> None:
        self._world = world
        self._runtime = runtime
        self._client_id = me.id
        self._inbox = me.inbox

    def _write(self, verb: Callable[..., tuple[T, list[Wake]]], *arguments: object) -> T:
        """Run a verb in one atomic step, then wake the waiters that it names."""
        with self._world.mutex:
            reply, wakes = verb(self._world, *arguments, self._runtime.now())
        self._world.wake(wakes)
        return reply

    async def _wait(self, cell_key: CellKey, key: bytes, until: float) -> None:
        """Wait for the message to a watcher, then remove it."""
        try:
            await self._inbox.wait(key, until)
        finally:
            with self._world.mutex:
                self._world.unwatch(cell_key, key)

    def close(self) -> None:
        """Does nothing: there are no local resources."""


class MemoryQueue(_Steps):
    """`Queue` over a world; only `watch` and `await_change` wait."""

    def take_now(self, claim: Claim, place: Place, until: float) -> Standing | None:
        world, name = self._world, claim.name
        with world.mutex:
            now = self._runtime.now()
            if name in world.queues or claim.asked or now > claim.by or claim.kind == ELECTION:
                return None
            claim.asked = True
            world.last_ticket = claim.ticket = ticket = world.last_ticket + 1
            entry = Entry(
                ticket, claim.id, claim.client, claim.kind, claim.capacity, claim.weight,
                now + claim.lease, now, now, False, claim.description,
            )  # fmt: skip
            world.queues[name] = {ticket: entry}
            world.places[claim.id] = entry
        return Standing(ticket, True, claim.lease, FOREVER, False)

    def leave_now(self, claim: Claim, until: float) -> bool | None:
        world, name = self._world, claim.name
        with world.mutex:
            queue = world.queues.get(name)
            if queue is None or len(queue) > 1 or name in world.outside or claim.kind == ELECTION:
                return None
            entry = world.places.get(claim.id)
            if entry is None or entry.ticket not in queue:
                return None
            del world.queues[name], world.places[claim.id]
        return True

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        return self._write(atomic_queue.join, claim, place)

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        return self._write(atomic_queue.renew, claims)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        self._write(atomic_queue.amend, claim, weight)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        return self._write(atomic_queue.leave, claim, answered)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        return self._write(atomic_queue.leave_all, leaving)

    async def connect(self, until: float) -> None:
        """Does nothing: there is no connection."""

    def round_trip(self) -> float:
        return 0.0

    async def stamp(self, claim: Claim, token: int, until: float) -> bool:
        return self._write(atomic_queue.stamp, claim, token)

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        return inf  # the data is lost only with the process, and all its clients

    async def clock(self, until: float) -> float:
        return time()

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._inbox.wait(claim.id, until))

    async def inspect(self, name: str, until: float) -> LockInfo:
        with self._world.mutex:
            return atomic_queue.view(self._world, name, self._runtime.now(), datetime.now(UTC))

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        with self._world.mutex:
            found = sorted(name for name in self._world.queues if name.startswith(prefix) and name > after)
            queues = ((name, list(self._world.queue(name))) for name in found)
            return atomic_queue.page(self._world, queues, self._runtime.now(), datetime.now(UTC))

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return self._write(atomic_queue.revoke, name, token)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return self._write(atomic_queue.evict, name, token)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        cell_key = CellKey(QUEUES, name)
        with self._world.mutex:
            foremost, over = atomic_queue.foremost(self._world, name, self._runtime.now())
            if foremost != seen:
                return
            self._world.watch(cell_key, self._client_id, key)
        await self._wait(cell_key, key, min(over, until))

    async def identity(self, until: float) -> str:
        return f"memory:{self._world.name}"

    async def doctor(self, until: float) -> list[Finding]:
        return [
            Finding("about", "the memory of this process"),
            Finding("promise", "at most one valid holder among the threads and tasks of this process"),
            Finding("promise", "first come, first served"),
            Finding("promise", "tokens rise strictly, from 1, for the life of this process"),
            Finding("note", "one process only: another process has its own store, even with the same URL",
                    "use sqlite:/// or a server for locks that processes share"),
            Finding("note", "nothing survives this process, and the tokens of the next one start again",
                    "do not use these tokens with a resource that outlives the process"),
        ]  # fmt: skip


class MemoryCells(_Steps):
    """`Cells` over a world."""

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        return self._world.cell(cell_key)

    async def put(self, write: Write, until: float) -> int:
        return self._write(atomic_cells.put, write)

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        with self._world.mutex:
            if self._world.cell(cell_key).version != version:
                return
            self._world.watch(cell_key, self._client_id, key)
        await self._wait(cell_key, key, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        with self._world.mutex:
            return atomic_cells.admit(self._world, name, token, shared)
