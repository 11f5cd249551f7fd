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

from dibs.backends import cabinet, ledger
from dibs.backends.ledger import LINES, Tombs, Wake
from dibs.core.cells import UNSET, Cells, Kept, Spot, Write
from dibs.core.deadline import FOREVER
from dibs.core.line import (
    ATOMIC_TRY,
    CELLS,
    ELECTION,
    FAIR,
    LEASES,
    PERMITS,
    RECORDS,
    RW,
    VOTES,
    Leave,
    Me,
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
    """One memory store: the table that the verbs of ledger and cabinet work on."""

    glance = float("inf")

    def __init__(self, name: str) -> None:
        self.name = name
        self.inboxes: dict[bytes, Inbox] = {}
        self.last_ticket = 0
        self.reset()

    def reset(self) -> None:
        self.mutex = mutex()
        self.lines: dict[str, dict[int, Entry]] = {}
        self.places: dict[bytes, Entry] = {}
        self.tombs = Tombs()
        self.outside: dict[str, dict[bytes, tuple[bytes, float]]] = {}
        """The unfair waiters of each name: by id, the client and the instant when the entry ends."""
        self.cells: dict[Spot, Kept] = {}
        self.writes: dict[bytes, int] = {}
        self.ends: list[tuple[float, bytes]] = []
        self.watchers: dict[Spot, dict[bytes, bytes]] = {}

    def wake(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            inbox = self.inboxes.get(wake.client)
            if inbox is not None:
                inbox.deliver(wake.id, wake.signal.value)

    def line(self, name: str) -> Iterable[Entry]:
        there = self.lines.get(name)
        return there.values() if there else ledger.NOBODY

    def find(self, name: str, claims: Sequence[Claim]) -> dict[bytes, Entry]:
        return {claim.id: self.places[claim.id] for claim in claims if claim.id in self.places}

    def add(self, name: str, entry: Entry) -> None:
        self.lines.setdefault(name, {})[entry.ticket] = entry
        self.places[entry.id] = entry

    def write(self, name: str, entries: Sequence[Entry]) -> None:
        """Does nothing: verbs change the entries of the queue in place."""

    def remove(self, name: str, entry: Entry) -> None:
        line = self.lines.get(name)
        if line is not None:
            line.pop(entry.ticket, None)
            if not line:
                self.lines.pop(name, None)
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

    def outsiders(self, name: str) -> list[tuple[bytes, bytes]]:
        there = self.outside.get(name)
        return [(client, id) for id, (client, _) in there.items()] if there else []

    def stay_outside(self, name: str, claim: Claim, until: float) -> None:
        now, there = until - claim.waiting, self.outside.get(name, {})
        self.outside[name] = {id: (client, over) for id, (client, over) in there.items() if over > now}
        self.outside[name][claim.id] = (claim.client, until)

    def come_in(self, name: str, id: bytes) -> None:
        there = self.outside.get(name)
        if there is not None and there.pop(id, None) is not None and not there:
            del self.outside[name]

    def cell(self, spot: Spot) -> Kept:
        return self.cells.get(spot, UNSET)

    def keep(self, spot: Spot, kept: Kept) -> None:
        self.cells[spot] = kept

    def written(self, write: Write) -> int | None:
        return self.writes.get(write.id)

    def note(self, write: Write, version: int, now: float) -> None:
        while self.ends and self.ends[0][0] < now:
            self.writes.pop(heappop(self.ends)[1], None)
        heappush(self.ends, (write.by, write.id))
        self.writes[write.id] = version

    def watch(self, spot: Spot, client: bytes, key: bytes) -> None:
        self.watchers.setdefault(spot, {})[key] = client

    def unwatch(self, spot: Spot, key: bytes) -> None:
        there = self.watchers.get(spot)
        if there is not None and there.pop(key, None) is not None and not there:
            del self.watchers[spot]

    def dismiss(self, spot: Spot) -> list[tuple[bytes, bytes]]:
        return [(client, key) for key, client in self.watchers.pop(spot, {}).items()]


_worlds: dict[str, World] = {}


class MemoryStore:
    """One client's view of a memory store."""

    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, VOTES, RECORDS})

    def __init__(self, url: Url) -> None:
        if url.port is not None or url.username is not None or url.query or url.path not in ("", "/"):
            raise ValueError("a memory store's URL is memory:// or memory://name")
        self.shown = f"memory://{url.host}"
        self._world = _worlds.setdefault(url.host, World(url.host))
        self._me: bytes | None = None

    def open(self, runtime: Runtime, me: Me) -> Voter:
        self._world.inboxes[me.id] = me.inbox
        self._me = me.id
        return MemoryLine(self._world, runtime, me)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        return MemoryCells(self._world, runtime, me)

    def close(self) -> None:
        if self._me is not None:
            self._world.inboxes.pop(self._me, None)

    def before_fork(self) -> None:
        """Does nothing: a child cannot damage shared resources."""

    def after_fork(self, child: bool) -> None:
        if child:
            self._world.reset()


class MemoryLine:
    """Seam 2 over a world; only `watch` and `await_change` wait."""

    def __init__(self, world: World, runtime: Runtime, me: Me) -> None:
        self._world = world
        self._runtime = runtime
        self._me = me

    def take_now(self, claim: Claim, place: Place, until: float) -> Standing | None:
        world, name = self._world, claim.name
        with world.mutex:
            now = self._runtime.now()
            if name in world.lines or claim.asked or now > claim.by or claim.kind == ELECTION:
                return None
            claim.asked = True
            world.last_ticket = claim.ticket = ticket = world.last_ticket + 1
            entry = Entry(
                ticket, claim.id, claim.client, claim.kind, claim.capacity, claim.weight,
                now + claim.lease, now, now, False, claim.about,
            )  # fmt: skip
            world.lines[name] = {ticket: entry}
            world.places[claim.id] = entry
        return Standing(ticket, True, claim.lease, FOREVER, False)

    def leave_now(self, claim: Claim, until: float) -> bool | None:
        world, name = self._world, claim.name
        with world.mutex:
            line = world.lines.get(name)
            if line is None or len(line) > 1 or name in world.outside or claim.kind == ELECTION:
                return None
            entry = world.places.get(claim.id)
            if entry is None or entry.ticket not in line:
                return None
            del world.lines[name], world.places[claim.id]
        return True

    def _write(self, verb: Callable[..., tuple[T, list[Wake]]], *arguments: object) -> T:
        """Run a verb in one atomic step, then wake the waiters that it names."""
        with self._world.mutex:
            reply, wakes = verb(self._world, *arguments, self._runtime.now())
        self._world.wake(wakes)
        return reply

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        return self._write(ledger.join, claim, place)

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        return self._write(ledger.renew, claims)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        with self._world.mutex:
            wakes = ledger.amend(self._world, claim, weight, self._runtime.now())
        self._world.wake(wakes)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        return self._write(ledger.leave, claim, answered)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        return self._write(ledger.leave_all, leaving)

    async def connect(self, until: float) -> None:
        """Does nothing: there is no connection."""

    def round_trip(self) -> float:
        return 0.0

    async def stamp(self, claim: Claim, token: int, until: float) -> bool:
        return self._write(ledger.stamp, claim, token)

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        return inf  # lost memory means a lost process: no client remains

    async def clock(self, until: float) -> float:
        return time()

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def line(self, name: str, until: float) -> LockInfo:
        with self._world.mutex:
            return ledger.view(self._world, name, self._runtime.now(), datetime.now(UTC))

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        with self._world.mutex:
            found = sorted(name for name in self._world.lines if name.startswith(prefix) and name > after)
            lines = ((name, list(self._world.line(name))) for name in found)
            return ledger.page(self._world, lines, self._runtime.now(), datetime.now(UTC))

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return self._write(ledger.revoke, name, token)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return self._write(ledger.evict, name, token)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        spot = Spot(LINES, name)
        with self._world.mutex:
            foremost, over = ledger.foremost(self._world, name, self._runtime.now())
            if foremost != seen:
                return
            self._world.watch(spot, self._me.id, key)
        await _wait(self._world, self._me, spot, key, min(over, until))

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

    def close(self) -> None:
        """Nothing of this machine is held."""


class MemoryCells:
    """Seam 3 over a world."""

    def __init__(self, world: World, runtime: Runtime, me: Me) -> None:
        self._world = world
        self._runtime = runtime
        self._me = me

    async def get(self, spot: Spot, until: float) -> Kept:
        return self._world.cell(spot)

    async def put(self, write: Write, until: float) -> int:
        with self._world.mutex:
            version, wakes = cabinet.put(self._world, write, self._runtime.now())
        self._world.wake(wakes)
        return version

    async def watch(self, spot: Spot, version: int, key: bytes, until: float) -> None:
        with self._world.mutex:
            if self._world.cell(spot).version != version:
                return
            self._world.watch(spot, self._me.id, key)
        await _wait(self._world, self._me, spot, key, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        with self._world.mutex:
            return cabinet.admit(self._world, name, token, shared)

    def close(self) -> None:
        """Nothing of this machine is held."""


async def _wait(world: World, me: Me, spot: Spot, key: bytes, until: float) -> None:
    try:
        await me.inbox.wait(key, until)
    finally:
        with world.mutex:
            world.unwatch(spot, key)
