"""Semaphores, in the layout of Curator's InterProcessSemaphoreV2: a line in `locks`, permits as nodes in `leases`.

Only who is first in `locks` may add to `leases`, so what it counts there can only fall: if its permits fit, they come
and its place in `locks` goes, in one step. Until then it watches `leases`, and all others the one before them.

How many permits there are stands in the data of the directory itself: Java does not look at it. The first to come
writes it. `mutex` there says that the name is a lock in this layout (InterProcessSemaphoreMutex).
The ticket of a claim is that of its place in `locks`; its permits bear it in their data.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from dibs.backends.zookeeper.contenders import LEASE, LEASES, LOCK, LOCKS, Listing, leaf_of, prefix_of, written
from dibs.backends.zookeeper.directory import Seen, Shared
from dibs.backends.zookeeper.queue import (
    GLANCES,
    busy_as,
    children_of,
    mismatch,
    moment,
    node_of,
    of_session,
    own,
    removed,
    stood,
    taken_over,
    used_up,
    withdraw,
)  # fmt: skip
from dibs.backends.zookeeper.stands import Stand
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, Refused, Request
from dibs.backends.zookeeper.wire.port import Port, checked
from dibs.backends.zookeeper.wire.session import CHILDREN, DATA, Call
from dibs.core.deadline import FOREVER
from dibs.core.rule import Claim, fits
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError

MOST = 1000
"""Permits that one claim may have here: each is a node, and all of them come in one request."""


class _Seen(NamedTuple):
    locks: Listing | None
    """None: it was not asked for, as the claim is known to be first."""
    leases: list[str]
    size: bytes
    version: int
    strange: list[str]
    epoch: int


class Permits:
    def __init__(self, port: Port, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    async def enter(self, stand: Stand, until: float) -> None:
        claim, port = stand.claim, self._port
        if claim.weight > MOST:
            raise StoreError(f"{claim.weight} permits are more than {MOST} nodes", step="ask for fewer at once")
        stand.data = written(claim.about, port.wire.session.timeout)
        stand.word, stand.first = LOCK, Stand.tell_look
        node = f"{stand.directory}/{LOCKS}/{prefix_of(claim.id)}{LOCK}"
        making = codec.create(node, stand.data, port.acl, codec.EPHEMERAL_SEQUENTIAL)
        stand.asks()
        if stand.queue.is_crowded and stand.queue.size == _size(claim):  # its number may tell which node is ahead
            numbered = partial(stand.numbered, _nothing)
            created, _ = await port.ask([making, codec.exists(stand.queue.path)], until, thens=[stand.made, numbered])
            if created.error != codec.NO_NODE:
                await stood(port, stand, created, until)
                if not stand.placed:
                    await self.look(stand, until)
                return
        created, *looked = await port.ask([making, *_looking(stand)], until, thens=[stand.made])
        if created.error == codec.NO_NODE:
            # A lock that uses the directory itself would take our own directories there for contenders.
            await self._unlike(stand, _seen(Seen(looked, 0.0, stand.epoch)), until)
            created, *looked = await port.ask_in([stand.queue.path], [making, *_looking(stand)], until, [stand.made])
        await stood(port, stand, created, until)
        seen = _seen(Seen(looked, 0.0, stand.epoch))
        if seen.locks is not None and isinstance(children := looked[0].value, Children):
            stand.queue.learn(seen.locks, children.stat)
        await self._go_on(stand, seen, until)

    async def look(self, stand: Stand, until: float, since: float = FOREVER) -> None:
        if stand.holds:
            return
        stand.stale = True  # until that is answered: if it is not, the next renewal looks
        firsts: list[bool] = []
        if stand.stands and stand.follow(lambda: firsts.append(True)) and not firsts:
            return
        if firsts:
            calls = await self._port.ask(_looking(stand)[1:], until)
            seen = _seen_behind(None, calls, stand.epoch)
        else:
            seen = _seen(await self._port.share(_shared(stand), until, since))
        await self._go_on(stand, seen, until)

    async def peek(self, stand: Stand, until: float) -> tuple[bool, tuple[str, str] | None]:
        synced = stand.queue.shared("synced", lambda: [codec.sync(stand.directory), *_looking(stand)], listed=1)
        seen = await self._unlike(stand, _seen(await self._port.share(synced, until), 1), until)
        line = seen.locks.line if seen.locks is not None else []
        if not (line or seen.leases):
            return True, None
        _check_size(stand.claim, seen)
        if line:
            return False, (DATA, f"{stand.directory}/{LOCKS}/{line[-1].name}")
        free = fits(len(seen.leases), stand.claim.weight, stand.claim.capacity)
        return free, (CHILDREN, f"{stand.directory}/{LEASES}")

    async def find(self, stand: Stand, until: float, since: float = FOREVER) -> None:
        """After a lost answer. Permits that are all there hold, as they came in one step; else its place counts."""
        found = await own(self._port, stand, self.directories(stand.directory), until, since)
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

    @staticmethod
    def directories(directory: str) -> list[str]:
        return [f"{directory}/{LOCKS}", f"{directory}/{LEASES}"]

    async def lighten(self, stand: Stand, weight: int, until: float) -> None:
        surplus = stand.nodes[weight:]
        if stand.holds and surplus:
            stand.nodes = stand.nodes[:weight]
            await removed(self._port, surplus, until)

    async def _go_on(self, stand: Stand, seen: _Seen, until: float) -> None:
        """Go as far as the listing allows."""
        try:
            seen = await self._unlike(stand, seen, until)
        except Mismatch:
            await withdraw(self._port, stand, until)
            raise
        stand.epoch = seen.epoch
        before = "" if seen.locks is None else seen.locks.before(leaf_of(stand.place))
        if before is None:
            stand.end()
            return
        if before or seen.leases:
            try:
                _check_size(stand.claim, seen)
            except Mismatch:
                await withdraw(self._port, stand, until)
                raise
        stand.queue.size = _size(stand.claim)
        if before:
            stand.wait_for(DATA, f"{stand.directory}/{LOCKS}/{before}")
        else:
            await self._take(stand, seen, until)

    async def _unlike(self, stand: Stand, seen: _Seen, until: float) -> _Seen:
        """The listing, once no node of another kind is there; Mismatch: one stays."""
        for glance in range(GLANCES):
            if not seen.strange:
                return seen
            await moment(self._runtime, glance)
            seen = _seen(await self._port.share(_shared(stand), until))
        raise mismatch(stand, seen.strange[0])

    async def _take(self, stand: Stand, seen: _Seen, until: float) -> None:
        """First in line: nobody else adds permits now."""
        claim, leases, directory = stand.claim, seen.leases, f"{stand.directory}/{LEASES}"
        if seen.size != _size(claim):
            self._port.wire.post(codec.put(stand.directory, _size(claim), seen.version))
        if not fits(len(leases), claim.weight, claim.capacity):
            stand.wait_for(CHILDREN, directory)
            # What went between that list and this watch would be missed otherwise.
            (listed,) = await self._port.ask([codec.children(directory)], until)
            if not fits(len(children_of(listed)), claim.weight, claim.capacity):
                return
            stand.stop_waiting()
        data = written(claim.about, self._port.wire.session.timeout, stand.ticket, held=True)
        node = f"{directory}/{prefix_of(claim.id)}{LEASE}"
        lease = codec.create(node, data, self._port.acl, codec.EPHEMERAL_SEQUENTIAL)
        taking = codec.multi([*[lease] * claim.weight, codec.delete(stand.place)])
        stand.changing = stand.doubtful = True  # the end of its place is no news now
        (call,) = await self._port.ask_in([directory], [taking], until, missing=_misses_leases)
        checked(call)
        if isinstance(call.value, Refused):
            stand.changing = stand.doubtful = False
            await self._refused(stand, call.value.errors, until)
            return
        assert isinstance(call.value, list)
        stand.nodes, stand.data = [path for path in call.value if isinstance(path, str)], data
        stand.queue.gone(leaf_of(stand.place))
        stand.changing = stand.doubtful = False
        stand.granted()

    async def _refused(self, stand: Stand, errors: tuple[int, ...], until: float) -> None:
        """No permits: our place was removed, or numbers are so high that they repeat."""
        if codec.NODE_EXISTS in errors:
            await withdraw(self._port, stand, until)
            raise used_up(self._port, f"{stand.directory}/{LEASES}")
        stand.end(stand.place)


def is_semaphore(claim: Claim, layout: str | None) -> bool:
    return claim.kind == "semaphore" or (layout is not None and claim.kind == "mutex" and claim.capacity == 1)


def _looking(stand: Stand) -> list[Request]:
    return [
        *map(codec.children, Permits.directories(stand.directory)),
        codec.get(stand.directory),
        codec.children(stand.directory),
    ]


def _shared(stand: Stand) -> Shared:
    return stand.queue.shared("looking", lambda: _looking(stand), listed=0)


def _seen(seen: Seen, start: int = 0) -> _Seen:
    """Read the replies to `_looking`, which begin at number `start`."""
    checked(seen.calls[start], codec.NO_NODE)
    return _seen_behind(seen.listing(start), seen.calls[start + 1 :], seen.epoch)


def _seen_behind(locks: Listing | None, looked: list[Call], epoch: int) -> _Seen:
    leases, node, inside = looked
    size = node_of(node)
    strange = [name for name in children_of(inside) if name not in (LOCKS, LEASES) and not name.startswith("%")]
    return _Seen(
        locks,
        children_of(leases),
        b"" if size is None else size.data,
        0 if size is None else size.stat.version,
        strange + [f"{LOCKS}/{name}" for name in (locks.strange if locks is not None else ())],
        epoch,
    )


def _misses_leases(calls: list[Call]) -> bool:
    """Nothing was taken, as the directory of permits is not there."""
    return isinstance(calls[0].value, Refused) and codec.NO_NODE in calls[0].value.errors[:-1]


def _nothing() -> None:
    """It is first, and has yet to look whether there are permits."""


def size_of(data: bytes) -> int:
    """How many permits that says there are; 0: nothing that we would write."""
    return int(data) if data.isdigit() and len(data) < 8 else 0


def _size(claim: Claim) -> bytes:
    return b"mutex" if claim.kind == "mutex" else b"%d" % claim.capacity


def _check_size(claim: Claim, seen: _Seen) -> None:
    """Ignore data in another format: Java's clients write anything, or nothing."""
    size, own = seen.size, _size(claim)
    if size != own and (size == b"mutex" or size_of(size)):
        there = "mutex" if size == b"mutex" else f"semaphore of {int(size)}"
        mine = "mutex" if claim.kind == "mutex" else f"semaphore of {claim.capacity}"
        raise busy_as(there, mine)
