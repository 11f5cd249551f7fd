"""Semaphores, in the layout of Curator's InterProcessSemaphoreV2: a queue in `locks`, permits as nodes in `leases`.

Only the first claim in `locks` may add to `leases`, so the number of permits that it counts there can only fall. If its
own permits fit, they are made and its place in `locks` is removed, in one transaction. Until then it watches `leases`;
all others watch the node before them.

The data of the directory itself is the number of permits, which the first claim writes; Java ignores it. `mutex` there
means that the name is a lock in this layout (InterProcessSemaphoreMutex). The ticket of a claim is that of its place in
`locks`; its permits have it in their data.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.backends.zookeeper import lock_queue
from dibs.backends.zookeeper.directory import Replies, Shared
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
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, checked, children_of, node_of
from dibs.backends.zookeeper.wire.session import CHILDREN, DATA, PendingRequest
from dibs.core.deadline import FOREVER
from dibs.core.rule import Claim, fits
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError

MOST = 1000
"""The most permits of one claim: each is a node, and one request makes all of them."""


class _State(NamedTuple):
    locks: Listing | None
    """None: not requested, because the claim is known to be first."""
    leases: list[str]
    size: bytes
    version: int
    foreign: list[str]
    epoch: int


class SemaphoreQueue:
    def __init__(self, executor: ZookeeperExecutor, runtime: Runtime) -> None:
        self._executor = executor
        self._runtime = runtime

    async def enter(self, node_claim: NodeClaim, until: float) -> None:
        claim, executor, queue = node_claim.claim, self._executor, node_claim.queue
        if claim.weight > MOST:
            raise StoreError(f"{claim.weight} permits are more than {MOST} nodes", step="ask for fewer at once")
        node_claim.needs_permits = True
        making = lock_queue.creation(executor, node_claim, LOCK)
        if queue.is_crowded and queue.size == _size(claim):  # the number of its node may tell which node is ahead
            thens = [node_claim.made, node_claim.numbered]
            created, _ = await executor.ask([making, codec.exists(queue.path)], until, thens=thens)
            if created.error != codec.NO_NODE:
                await lock_queue.check_created(executor, node_claim, created, until)
                if not node_claim.is_judged:
                    await self.look(node_claim, until)
                return
        asking = [making, *_looking(node_claim)]
        created, *looked = await executor.ask(asking, until, thens=[node_claim.made])
        if created.error == codec.NO_NODE:
            # A lock that uses the directory itself would take `locks` and `leases` for contenders.
            await self._await_own_kind(node_claim, _state(Replies(looked, 0.0, node_claim.epoch)), until)
            created, *looked = await executor.ask_in([queue.path], asking, until, [node_claim.made])
        await lock_queue.check_created(executor, node_claim, created, until)
        state = _state(Replies(looked, 0.0, node_claim.epoch))
        if state.locks is not None and isinstance(children := looked[0].value, Children):
            queue.learn(state.locks, children.stat)
        await self._go_on(node_claim, state, until)

    async def look(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        if node_claim.holds:
            return
        node_claim.stale = True  # until the reply: if there is none, the next renewal looks again
        ahead = node_claim.follow()
        if ahead:
            return
        if ahead is None:
            state = _state(await self._executor.share(_shared(node_claim), until, since))
        else:
            calls = await self._executor.ask(_looking(node_claim)[1:], until)
            state = _state_behind(None, calls, node_claim.epoch)
        await self._go_on(node_claim, state, until)

    async def peek(self, node_claim: NodeClaim, until: float) -> tuple[bool, tuple[str, str] | None]:
        """Whether a claim without a node would hold, and the node to watch until then."""
        synced = node_claim.queue.shared(
            "synced", lambda: [codec.sync(node_claim.directory), *_looking(node_claim)], listed=1
        )
        state = await self._await_own_kind(node_claim, _state(await self._executor.share(synced, until), 1), until)
        queue = state.locks.queue if state.locks is not None else []
        if not (queue or state.leases):
            return True, None
        _check_size(node_claim.claim, state)
        if queue:
            return False, (DATA, f"{node_claim.directory}/{LOCKS_NODE}/{queue[-1].name}")
        free = fits(len(state.leases), node_claim.claim.weight, node_claim.claim.capacity)
        return free, (CHILDREN, f"{node_claim.directory}/{LEASES_NODE}")

    async def find(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        """After a lost reply. If all permits exist, the claim holds, as one transaction made them; otherwise its place
        counts."""
        executor = self._executor
        found = await lock_queue.own_nodes(executor, node_claim, self.directories(node_claim.directory), until, since)
        ours = lock_queue.of_session(executor, found)
        leases = [path for path in ours if f"/{LEASES_NODE}/" in path]
        places = [path for path in ours if f"/{LOCKS_NODE}/" in path]
        holds = len(leases) >= node_claim.claim.weight
        if await lock_queue.adopt(executor, node_claim, found, leases if holds else places[:1], until):
            if holds:
                node_claim.granted()
            else:
                (node_claim.place,) = node_claim.nodes
                await self.look(node_claim, until)

    @staticmethod
    def directories(directory: str) -> list[str]:
        """Where the nodes of a claim are."""
        return [f"{directory}/{LOCKS_NODE}", f"{directory}/{LEASES_NODE}"]

    async def lighten(self, node_claim: NodeClaim, weight: int, until: float) -> None:
        surplus = node_claim.nodes[weight:]
        if node_claim.holds and surplus:
            node_claim.nodes = node_claim.nodes[:weight]
            await self._executor.delete(surplus, until)

    async def _go_on(self, node_claim: NodeClaim, state: _State, until: float) -> None:
        """Wait for the node ahead, or take permits."""
        try:
            state = await self._await_own_kind(node_claim, state, until)
            node_claim.epoch = state.epoch
            before = "" if state.locks is None else state.locks.before(leaf_of(node_claim.place))
            if before is None:
                node_claim.end()
                return
            if before or state.leases:
                _check_size(node_claim.claim, state)
        except Mismatch:
            await lock_queue.withdraw(self._executor, node_claim, until)
            raise
        node_claim.queue.size = _size(node_claim.claim)
        if before:
            node_claim.wait_for(DATA, f"{node_claim.directory}/{LOCKS_NODE}/{before}")
        else:
            await self._take(node_claim, state, until)

    async def _await_own_kind(self, node_claim: NodeClaim, state: _State, until: float) -> _State:
        """The state once no node of another kind is there. Raises Mismatch if one stays."""
        for attempt in range(lock_queue.LOOKS):
            if not state.foreign:
                return state
            await lock_queue.pause(self._runtime, attempt)
            state = _state(await self._executor.share(_shared(node_claim), until))
        raise lock_queue.mismatch(node_claim, state.foreign[0])

    async def _take(self, node_claim: NodeClaim, state: _State, until: float) -> None:
        """Take permits, as the first in the queue: no other claim adds permits now."""
        claim, leases, directory = node_claim.claim, state.leases, f"{node_claim.directory}/{LEASES_NODE}"
        if state.size != _size(claim):
            self._executor.client.post(codec.put(node_claim.directory, _size(claim), state.version))
        if not fits(len(leases), claim.weight, claim.capacity):
            node_claim.wait_for(CHILDREN, directory)
            # Permits may have been released between the listing and this watch.
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
            if codec.NODE_EXISTS in call.value.errors:  # numbers are so high that they repeat
                await lock_queue.withdraw(self._executor, node_claim, until)
                raise lock_queue.used_up(self._executor, directory)
            node_claim.end(node_claim.place)
            return
        assert isinstance(call.value, list)
        node_claim.nodes, node_claim.data = [path for path in call.value if isinstance(path, str)], data
        node_claim.queue.gone(leaf_of(node_claim.place))
        lock_queue.rotate(self._executor, node_claim.place)
        node_claim.changing = node_claim.doubtful = False
        node_claim.granted()


def is_semaphore(claim: Claim, layout: str | None) -> bool:
    return claim.kind == "semaphore" or (layout is not None and claim.kind == "mutex" and claim.capacity == 1)


def _looking(node_claim: NodeClaim) -> list[Request]:
    """The requests for `_State`."""
    return [
        *map(codec.children, SemaphoreQueue.directories(node_claim.directory)),
        codec.get(node_claim.directory),
        codec.children(node_claim.directory),
    ]


def _shared(node_claim: NodeClaim) -> Shared:
    return node_claim.queue.shared("looking", lambda: _looking(node_claim), listed=0)


def _state(replies: Replies, start: int = 0) -> _State:
    """Read the replies to `_looking`, which begin at number `start`."""
    checked(replies.calls[start], codec.NO_NODE)
    return _state_behind(replies.listing(start), replies.calls[start + 1 :], replies.epoch)


def _state_behind(locks: Listing | None, calls: list[PendingRequest], epoch: int) -> _State:
    """Read the replies to `_looking` without the first one."""
    leases, node, inside = calls
    size = node_of(node)
    foreign = [
        name for name in children_of(inside) if name not in (LOCKS_NODE, LEASES_NODE) and not name.startswith("%")
    ]
    return _State(
        locks,
        children_of(leases),
        b"" if size is None else size.data,
        0 if size is None else size.stat.version,
        foreign + [f"{LOCKS_NODE}/{name}" for name in (locks.strange if locks is not None else ())],
        epoch,
    )


def _misses_leases(calls: list[PendingRequest]) -> bool:
    """Whether nothing was taken because the directory `leases` does not exist."""
    return isinstance(calls[0].value, Refused) and codec.NO_NODE in calls[0].value.errors[:-1]


def size_of(data: bytes) -> int:
    """The number of permits in the data of a directory; 0: dibs did not write it."""
    return int(data) if data.isdigit() and len(data) < 8 else 0


def _size(claim: Claim) -> bytes:
    return b"mutex" if claim.kind == "mutex" else b"%d" % claim.capacity


def _check_size(claim: Claim, state: _State) -> None:
    """Refuse another size. Data in another format is ignored: Java's clients write anything, or nothing."""
    size, own = state.size, _size(claim)
    if size != own and (size == b"mutex" or size_of(size)):
        there = "mutex" if size == b"mutex" else f"semaphore of {int(size)}"
        mine = "mutex" if claim.kind == "mutex" else f"semaphore of {claim.capacity}"
        raise lock_queue.busy_as(there, mine)
