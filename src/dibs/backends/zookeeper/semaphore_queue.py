"""Semaphores, in the layout of Curator's InterProcessSemaphoreV2: a queue in `locks`, permits as nodes in `leases`.

Only who is first in `locks` may add to `leases`, so what it counts there can only fall: if its permits fit, they come
and its place in `locks` goes, in one step. Until then it watches `leases`, and all others the one before them.

How many permits there are stands in the data of the directory itself: Java does not look at it. The first to come
writes it. `mutex` there says that the name is a lock in this layout (InterProcessSemaphoreMutex).
The ticket of a claim is that of its place in `locks`; its permits bear it in their data.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from dibs.backends.zookeeper.directory import Seen, Shared
from dibs.backends.zookeeper.lock_queue import (  # fmt: skip
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
)
from dibs.backends.zookeeper.node_claims import NodeClaim
from dibs.backends.zookeeper.queue_rule import (
    LEASE,
    LEASES_NODE,
    LOCK,
    LOCKS_NODE,
    Listing,
    leaf_of,
    prefix_of,
    written,
)
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, Refused, Request
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, checked
from dibs.backends.zookeeper.wire.session import CHILDREN, DATA, PendingRequest
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


class SemaphoreQueue:
    def __init__(self, executor: ZookeeperExecutor, runtime: Runtime) -> None:
        self._executor = executor
        self._runtime = runtime

    async def enter(self, node_claim: NodeClaim, until: float) -> None:
        claim, executor = node_claim.claim, self._executor
        if claim.weight > MOST:
            raise StoreError(f"{claim.weight} permits are more than {MOST} nodes", step="ask for fewer at once")
        node_claim.data = written(claim.description, executor.client.session.timeout)
        node_claim.word, node_claim.first = LOCK, NodeClaim.tell_look
        node = f"{node_claim.directory}/{LOCKS_NODE}/{prefix_of(claim.id)}{LOCK}"
        making = codec.create(node, node_claim.data, executor.acl, codec.EPHEMERAL_SEQUENTIAL)
        node_claim.asks()
        if node_claim.queue.is_crowded and node_claim.queue.size == _size(
            claim
        ):  # its number may tell which node is ahead
            numbered = partial(node_claim.numbered, _nothing)
            created, _ = await executor.ask(
                [making, codec.exists(node_claim.queue.path)], until, thens=[node_claim.made, numbered]
            )
            if created.error != codec.NO_NODE:
                await stood(executor, node_claim, created, until)
                if not node_claim.placed:
                    await self.look(node_claim, until)
                return
        created, *looked = await executor.ask([making, *_looking(node_claim)], until, thens=[node_claim.made])
        if created.error == codec.NO_NODE:
            # A lock that uses the directory itself would take our own directories there for contenders.
            await self._unlike(node_claim, _seen(Seen(looked, 0.0, node_claim.epoch)), until)
            created, *looked = await executor.ask_in(
                [node_claim.queue.path], [making, *_looking(node_claim)], until, [node_claim.made]
            )
        await stood(executor, node_claim, created, until)
        seen = _seen(Seen(looked, 0.0, node_claim.epoch))
        if seen.locks is not None and isinstance(children := looked[0].value, Children):
            node_claim.queue.learn(seen.locks, children.stat)
        await self._go_on(node_claim, seen, until)

    async def look(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        if node_claim.holds:
            return
        node_claim.stale = True  # until that is answered: if it is not, the next renewal looks
        firsts: list[bool] = []
        if node_claim.node_claims and node_claim.follow(lambda: firsts.append(True)) and not firsts:
            return
        if firsts:
            calls = await self._executor.ask(_looking(node_claim)[1:], until)
            seen = _seen_behind(None, calls, node_claim.epoch)
        else:
            seen = _seen(await self._executor.share(_shared(node_claim), until, since))
        await self._go_on(node_claim, seen, until)

    async def peek(self, node_claim: NodeClaim, until: float) -> tuple[bool, tuple[str, str] | None]:
        synced = node_claim.queue.shared(
            "synced", lambda: [codec.sync(node_claim.directory), *_looking(node_claim)], listed=1
        )
        seen = await self._unlike(node_claim, _seen(await self._executor.share(synced, until), 1), until)
        queue = seen.locks.queue if seen.locks is not None else []
        if not (queue or seen.leases):
            return True, None
        _check_size(node_claim.claim, seen)
        if queue:
            return False, (DATA, f"{node_claim.directory}/{LOCKS_NODE}/{queue[-1].name}")
        free = fits(len(seen.leases), node_claim.claim.weight, node_claim.claim.capacity)
        return free, (CHILDREN, f"{node_claim.directory}/{LEASES_NODE}")

    async def find(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        """After a lost answer. Permits that are all there hold, as they came in one step; else its place counts."""
        found = await own(self._executor, node_claim, self.directories(node_claim.directory), until, since)
        ours = of_session(self._executor, found)
        leases = [path for path in ours if f"/{LEASES_NODE}/" in path]
        places = [path for path in ours if f"/{LOCKS_NODE}/" in path]
        holds = len(leases) >= node_claim.claim.weight
        if await taken_over(self._executor, node_claim, found, leases if holds else places[:1], until):
            if holds:
                node_claim.granted()
            else:
                (node_claim.place,) = node_claim.nodes
                await self.look(node_claim, until)

    @staticmethod
    def directories(directory: str) -> list[str]:
        return [f"{directory}/{LOCKS_NODE}", f"{directory}/{LEASES_NODE}"]

    async def lighten(self, node_claim: NodeClaim, weight: int, until: float) -> None:
        surplus = node_claim.nodes[weight:]
        if node_claim.holds and surplus:
            node_claim.nodes = node_claim.nodes[:weight]
            await removed(self._executor, surplus, until)

    async def _go_on(self, node_claim: NodeClaim, seen: _Seen, until: float) -> None:
        """Go as far as the listing allows."""
        try:
            seen = await self._unlike(node_claim, seen, until)
        except Mismatch:
            await withdraw(self._executor, node_claim, until)
            raise
        node_claim.epoch = seen.epoch
        before = "" if seen.locks is None else seen.locks.before(leaf_of(node_claim.place))
        if before is None:
            node_claim.end()
            return
        if before or seen.leases:
            try:
                _check_size(node_claim.claim, seen)
            except Mismatch:
                await withdraw(self._executor, node_claim, until)
                raise
        node_claim.queue.size = _size(node_claim.claim)
        if before:
            node_claim.wait_for(DATA, f"{node_claim.directory}/{LOCKS_NODE}/{before}")
        else:
            await self._take(node_claim, seen, until)

    async def _unlike(self, node_claim: NodeClaim, seen: _Seen, until: float) -> _Seen:
        """The listing, once no node of another kind is there; Mismatch: one stays."""
        for attempt in range(GLANCES):
            if not seen.strange:
                return seen
            await moment(self._runtime, attempt)
            seen = _seen(await self._executor.share(_shared(node_claim), until))
        raise mismatch(node_claim, seen.strange[0])

    async def _take(self, node_claim: NodeClaim, seen: _Seen, until: float) -> None:
        """First in the queue: nobody else adds permits now."""
        claim, leases, directory = node_claim.claim, seen.leases, f"{node_claim.directory}/{LEASES_NODE}"
        if seen.size != _size(claim):
            self._executor.client.post(codec.put(node_claim.directory, _size(claim), seen.version))
        if not fits(len(leases), claim.weight, claim.capacity):
            node_claim.wait_for(CHILDREN, directory)
            # What went between that list and this watch would be missed otherwise.
            (listed,) = await self._executor.ask([codec.children(directory)], until)
            if not fits(len(children_of(listed)), claim.weight, claim.capacity):
                return
            node_claim.stop_waiting()
        data = written(claim.description, self._executor.client.session.timeout, node_claim.ticket, held=True)
        node = f"{directory}/{prefix_of(claim.id)}{LEASE}"
        lease = codec.create(node, data, self._executor.acl, codec.EPHEMERAL_SEQUENTIAL)
        taking = codec.multi([*[lease] * claim.weight, codec.delete(node_claim.place)])
        node_claim.changing = node_claim.doubtful = True  # the end of its place is no news now
        (call,) = await self._executor.ask_in([directory], [taking], until, missing=_misses_leases)
        checked(call)
        if isinstance(call.value, Refused):
            node_claim.changing = node_claim.doubtful = False
            await self._refused(node_claim, call.value.errors, until)
            return
        assert isinstance(call.value, list)
        node_claim.nodes, node_claim.data = [path for path in call.value if isinstance(path, str)], data
        node_claim.queue.gone(leaf_of(node_claim.place))
        node_claim.changing = node_claim.doubtful = False
        node_claim.granted()

    async def _refused(self, node_claim: NodeClaim, errors: tuple[int, ...], until: float) -> None:
        """No permits: our place was removed, or numbers are so high that they repeat."""
        if codec.NODE_EXISTS in errors:
            await withdraw(self._executor, node_claim, until)
            raise used_up(self._executor, f"{node_claim.directory}/{LEASES_NODE}")
        node_claim.end(node_claim.place)


def is_semaphore(claim: Claim, layout: str | None) -> bool:
    return claim.kind == "semaphore" or (layout is not None and claim.kind == "mutex" and claim.capacity == 1)


def _looking(node_claim: NodeClaim) -> list[Request]:
    return [
        *map(codec.children, SemaphoreQueue.directories(node_claim.directory)),
        codec.get(node_claim.directory),
        codec.children(node_claim.directory),
    ]


def _shared(node_claim: NodeClaim) -> Shared:
    return node_claim.queue.shared("looking", lambda: _looking(node_claim), listed=0)


def _seen(seen: Seen, start: int = 0) -> _Seen:
    """Read the replies to `_looking`, which begin at number `start`."""
    checked(seen.calls[start], codec.NO_NODE)
    return _seen_behind(seen.listing(start), seen.calls[start + 1 :], seen.epoch)


def _seen_behind(locks: Listing | None, looked: list[PendingRequest], epoch: int) -> _Seen:
    leases, node, inside = looked
    size = node_of(node)
    strange = [
        name for name in children_of(inside) if name not in (LOCKS_NODE, LEASES_NODE) and not name.startswith("%")
    ]
    return _Seen(
        locks,
        children_of(leases),
        b"" if size is None else size.data,
        0 if size is None else size.stat.version,
        strange + [f"{LOCKS_NODE}/{name}" for name in (locks.strange if locks is not None else ())],
        epoch,
    )


def _misses_leases(calls: list[PendingRequest]) -> bool:
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
