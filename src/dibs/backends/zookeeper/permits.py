"""Semaphores, in the layout of Curator's InterProcessSemaphoreV2: a line in `locks`, permits as nodes in `leases`.

Only who is first in `locks` may add to `leases`, so what it counts there can only fall: if its permits fit, they come
and its place in `locks` goes, in one step. Until then it watches `leases`, and all others the one before them.

How many permits there are stands in the data of the directory itself: Java does not look at it. The first to come
writes it. `mutex` there says that the name is a lock in this layout (InterProcessSemaphoreMutex).
The ticket of a claim is that of its place in `locks`; its permits bear it in their data.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.backends.zookeeper import shown
from dibs.backends.zookeeper.contenders import LEASE, LEASES, LOCK, LOCKS, in_order, prefix_of
from dibs.backends.zookeeper.nodes import (
    GLANCES,
    busy_as,
    children_of,
    cleared,
    mismatch,
    moment,
    node_of,
    of_session,
    own,
    removed,
    rotate,
    stood,
    taken_over,
    used_up,
    withdraw,
)  # fmt: skip
from dibs.backends.zookeeper.stands import Stand
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Refused, Request
from dibs.backends.zookeeper.wire.port import Port, checked
from dibs.backends.zookeeper.wire.session import Call
from dibs.backends.zookeeper.wire.watches import CHILDREN, DATA
from dibs.core.rule import Claim, fits
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError

MOST = 1000
"""Permits that one claim may have here: each is a node, and all of them come in one request."""


class _Seen(NamedTuple):
    locks: list[str]
    leases: list[str]
    size: bytes
    version: int
    strange: list[str]
    ready: bool
    """Permits have a directory."""


class Permits:
    def __init__(self, port: Port, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    async def enter(self, stand: Stand, until: float) -> None:
        claim, port = stand.claim, self._port
        if claim.weight > MOST:
            raise StoreError(f"{claim.weight} permits are more than {MOST} nodes", step="ask for fewer at once")
        stand.data = shown.written(claim.about, port.wire.session.timeout)
        node = f"{stand.directory}/{LOCKS}/{prefix_of(claim.id)}{LOCK}"
        claim.asked = stand.doubtful = True
        entering = [codec.create(node, stand.data, port.acl, codec.EPHEMERAL_SEQUENTIAL), *_looking(stand)]
        created, *looked = await port.ask(entering, until)
        if created.error == codec.NO_NODE:
            # Whoever stands in the directory itself would take our own directories there for contenders.
            await self._unlike(stand, looked, until)
            created, *looked = await port.ask_in(_parts(stand), entering, until)
        await stood(port, stand, created, until)
        stand.doubtful = False
        await self._go_on(stand, looked, until)

    async def look(self, stand: Stand, until: float) -> None:
        if not stand.holds:
            await self._go_on(stand, await self._port.ask(_looking(stand), until), until)

    async def peek(self, stand: Stand, until: float) -> tuple[bool, tuple[str, str] | None]:
        _, *looked = await self._port.ask([codec.sync(stand.directory), *_looking(stand)], until)
        seen = await self._unlike(stand, looked, until)
        if not (seen.locks or seen.leases):
            return True, None
        _check_size(stand.claim, seen)
        if seen.locks:
            return False, (DATA, f"{stand.directory}/{LOCKS}/{seen.locks[-1]}")
        free = fits(len(seen.leases), stand.claim.weight, stand.claim.capacity)
        return free, (CHILDREN, f"{stand.directory}/{LEASES}")

    async def leave(self, stand: Stand, until: float) -> bool:
        there = await removed(self._port, stand.nodes, until, stand.watching())
        locks, leases = _parts(stand)
        rotate(self._port, stand.place, locks)
        rotate(self._port, stand.nodes[-1], leases)
        return all(there)

    async def find(self, stand: Stand, until: float) -> None:
        """After a lost answer. Permits that are all there hold, as they came in one step; else its place counts."""
        found = await own(self._port, stand, _parts(stand), until)
        ours = of_session(self._port, found)
        leases = [path for path in ours if f"/{LEASES}/" in path]
        places = [path for path in ours if f"/{LOCKS}/" in path]
        holds = len(leases) >= stand.claim.weight
        if await taken_over(self._port, stand, found, leases if holds else places[:1], until):
            if holds:
                stand.granted()
            else:
                (stand.place,) = stand.nodes
                await self.look(stand, until)

    async def clear(self, stand: Stand, until: float) -> bool:
        return await cleared(self._port, stand, _parts(stand), until)

    async def lighten(self, stand: Stand, weight: int, until: float) -> None:
        surplus = stand.nodes[weight:]
        if stand.holds and surplus:
            stand.nodes = stand.nodes[:weight]
            await removed(self._port, surplus, until)

    async def _go_on(self, stand: Stand, looked: list[Call], until: float) -> None:
        """As far as what was seen lets it."""
        try:
            seen = await self._unlike(stand, looked, until)
        except Mismatch:
            await withdraw(self._port, stand, until)
            raise
        place = stand.place.rpartition("/")[2]
        if place not in seen.locks:
            stand.end()
            return
        before = seen.locks[: seen.locks.index(place)]
        if before or seen.leases:
            try:
                _check_size(stand.claim, seen)
            except Mismatch:
                await withdraw(self._port, stand, until)
                raise
        if before:
            stand.wait_for(DATA, f"{stand.directory}/{LOCKS}/{before[-1]}", len(before))
        else:
            await self._take(stand, seen, until)

    async def _unlike(self, stand: Stand, looked: list[Call], until: float) -> _Seen:
        """What was seen, once nobody stands there as something else; Mismatch: somebody stays."""
        for glance in range(GLANCES):
            seen = _seen(looked)
            if not seen.strange:
                return seen
            await moment(self._runtime, glance)
            looked = await self._port.ask(_looking(stand), until)
        raise mismatch(stand, seen.strange[0])

    async def _take(self, stand: Stand, seen: _Seen, until: float) -> None:
        """First in line: nobody else adds permits now."""
        claim, leases, directory = stand.claim, seen.leases, f"{stand.directory}/{LEASES}"
        if seen.size != _size(claim):
            self._port.wire.post(codec.put(stand.directory, _size(claim), seen.version))
        if not fits(len(leases), claim.weight, claim.capacity):
            stand.wait_for(CHILDREN, directory, len(leases))
            # What went between that list and this watch would be missed otherwise.
            (listed,) = await self._port.ask([codec.children(directory)], until)
            if not fits(len(children_of(listed)), claim.weight, claim.capacity):
                return
            stand.stop_waiting()
        data = shown.written(claim.about, self._port.wire.session.timeout, stand.ticket, held=True)
        node = f"{directory}/{prefix_of(claim.id)}{LEASE}"
        lease = codec.create(node, data, self._port.acl, codec.EPHEMERAL_SEQUENTIAL)
        if not seen.ready:
            await self._port.make([directory], until)
        stand.changing = stand.doubtful = True  # the end of its place is no news now
        (call,) = await self._port.ask([codec.multi([*[lease] * claim.weight, codec.delete(stand.place)])], until)
        checked(call)
        if isinstance(call.value, Refused):
            stand.changing = stand.doubtful = False
            await self._refused(stand, call.value.errors, until)
            return
        assert isinstance(call.value, list)
        stand.nodes, stand.data = [path for path in call.value if isinstance(path, str)], data
        stand.changing = stand.doubtful = False
        stand.granted()

    async def _refused(self, stand: Stand, errors: tuple[int, ...], until: float) -> None:
        """No permits: their directory was removed, or our place was, or numbers are so high that they repeat."""
        if codec.NODE_EXISTS in errors:
            await withdraw(self._port, stand, until)
            raise used_up(self._port, f"{stand.directory}/{LEASES}")
        stand.stale = codec.NO_NODE in errors[:-1]
        if not stand.stale:
            stand.end(stand.place)


def is_semaphore(claim: Claim, layout: str | None) -> bool:
    return claim.kind == "semaphore" or (layout is not None and claim.kind == "mutex" and claim.capacity == 1)


def _parts(stand: Stand) -> list[str]:
    return [f"{stand.directory}/{LOCKS}", f"{stand.directory}/{LEASES}"]


def _looking(stand: Stand) -> list[Request]:
    return [*map(codec.children, _parts(stand)), codec.get(stand.directory), codec.children(stand.directory)]


def _seen(looked: list[Call]) -> _Seen:
    line, other = in_order(children_of(looked[0]))
    size = node_of(looked[2])
    strange = [name for name in children_of(looked[3]) if name not in (LOCKS, LEASES) and not name.startswith("%")]
    return _Seen(
        [one.name for one in line],
        children_of(looked[1]),
        b"" if size is None else size.data,
        0 if size is None else size.stat.version,
        strange + [f"{LOCKS}/{name}" for name in other],
        looked[1].error == codec.OK,
    )


def size_of(data: bytes) -> int:
    """How many permits that says there are; 0: nothing that we would write."""
    return int(data) if data.isdigit() and len(data) < 8 else 0


def _size(claim: Claim) -> bytes:
    return b"mutex" if claim.kind == "mutex" else b"%d" % claim.capacity


def _check_size(claim: Claim, seen: _Seen) -> None:
    """What is not one of ours says nothing: Java's clients write what they like, or nothing."""
    size, own = seen.size, _size(claim)
    if size != own and (size == b"mutex" or size_of(size)):
        there = "mutex" if size == b"mutex" else f"semaphore of {int(size)}"
        mine = "mutex" if claim.kind == "mutex" else f"semaphore of {claim.capacity}"
        raise busy_as(there, mine)
