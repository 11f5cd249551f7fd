"""Queues in one directory: mutexes, elections, read-write locks, guards of stripes. Curator's recipe in fewer waits.

A claim makes a sequential ephemeral node and lists the directory in the same write. One session's requests are done in
order, so the listing shows the new node and all before it. A try looks first, and makes no node if the name is busy.

A node of another kind before ours gets a moment, as it may be a try that is just leaving. Then it is a `Mismatch`.

The functions above `LockQueue` are for semaphores, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.zookeeper import queue_rule
from dibs.backends.zookeeper.directory import Replies, Shared
from dibs.backends.zookeeper.node_claims import NodeClaim
from dibs.backends.zookeeper.queue_rule import LEASES_NODE, LOCKS_NODE, Listing, Verdict, leaf_of, prefix_of, written
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, Node, Refused, Request
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, checked, children_of, node_of
from dibs.backends.zookeeper.wire.session import DATA, PendingRequest
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.info import printable

LOOKS = 5
"""How often a node of another kind is looked at before it is a Mismatch."""
_PAUSE = 0.02


def creation(executor: ZookeeperExecutor, node_claim: NodeClaim, word: str) -> Request:
    """The request that makes the node of a claim. It must be sent at once."""
    claim, node_claim.word = node_claim.claim, word
    node_claim.data = written(claim.description, executor.client.session.timeout)
    node_claim.asks()
    path = f"{node_claim.queue.path}/{prefix_of(claim.id)}{word}"
    return codec.create(path, node_claim.data, executor.acl, codec.EPHEMERAL_SEQUENTIAL)


async def check_created(
    executor: ZookeeperExecutor, node_claim: NodeClaim, created: PendingRequest, until: float
) -> None:
    """A new node counts if it belongs to the current session and its number is not too high."""
    if created.error != codec.OK:
        node_claim.claim.asked = node_claim.doubtful = False  # the server refused: there is no node to look for
        raise codec.refusal(created.error)
    if node_claim.session is None:
        raise StoreUnavailable("the session ended meanwhile")
    if not 0 <= queue_rule.number_of(node_claim.place) < queue_rule.REFUSE_AT:
        await withdraw(executor, node_claim, until)
        raise used_up(executor, node_claim.place.rpartition("/")[0])
    node_claim.doubtful = False


def used_up(executor: ZookeeperExecutor, directory: str) -> StoreError:
    """Try to remove a directory with too high numbers. The server refuses that while it has nodes; the next claim that
    leaves tries again."""
    executor.client.post(codec.delete(directory))
    return StoreError(
        "the sequence numbers of its directory are used up",
        step="try again when nobody holds it or waits for it",
    )


def rotate(executor: ZookeeperExecutor, path: str) -> None:
    """If the number of a node is high, remove its directory, so that numbers start again. The server refuses that
    unless it is empty."""
    if queue_rule.number_of(path) >= queue_rule.ROTATE_AT:
        executor.client.post(codec.delete(path.rpartition("/")[0]))


async def withdraw(executor: ZookeeperExecutor, node_claim: NodeClaim, until: float) -> None:
    """Remove a claim that must not stay in the queue."""
    node_claim.gone = True
    await executor.delete(node_claim.nodes, until)
    node_claim.claim.asked = False


async def own_nodes(
    executor: ZookeeperExecutor, node_claim: NodeClaim, directories: Sequence[str], until: float, since: float = FOREVER
) -> dict[str, Node]:
    """All nodes of a claim by their paths, as listed after `since`."""
    shared = node_claim.queue.shared(
        "found", lambda: [codec.sync(node_claim.directory), *map(codec.children, directories)], listed=1
    )
    _, *listed = (await executor.share(shared, until, since)).calls
    prefix = prefix_of(node_claim.claim.id)
    paths = [
        f"{directory}/{name}"
        for directory, call in zip(directories, listed, strict=True)
        for name in children_of(call)
        if name.startswith(prefix)
    ]
    calls = await executor.ask([codec.get(path) for path in paths], until) if paths else []
    return {path: node for path, call in zip(paths, calls, strict=True) if (node := node_of(call)) is not None}


async def adopt(
    executor: ZookeeperExecutor, node_claim: NodeClaim, found: dict[str, Node], kept: Sequence[str], until: float
) -> bool:
    """After a lost reply: continue with the `kept` nodes of those found, and delete the others. False: none is kept."""
    surplus = [path for path in found if path not in kept]
    if surplus:
        await executor.delete(surplus, until)
    node_claim.doubtful = node_claim.changing = False
    if not kept:
        node_claim.gone = node_claim.session is not None
        return False
    node_claim.session, node_claim.nodes = executor.client.session, list(kept)
    node_claim.ticket = node_claim.claim.ticket = min(queue_rule.ticket_of(found[path]) for path in kept)
    return True


def of_session(executor: ZookeeperExecutor, found: dict[str, Node]) -> list[str]:
    """The nodes that belong to the current session; those of another session end with it, or are deleted."""
    return [path for path, node in found.items() if node.stat.owner == executor.client.session.id]


async def pause(runtime: Runtime, attempt: int) -> None:
    """Give a node of another kind time to leave."""
    if attempt + 1 < LOOKS:
        await runtime.sleep(_PAUSE)


def mismatch(node_claim: NodeClaim, foreign: str) -> Mismatch:
    found = queue_rule.parse(foreign)
    kind = "semaphore" if foreign in (LOCKS_NODE, LEASES_NODE) else None if found is None else found.kind
    if kind is None:
        return Mismatch(
            f"its directory holds {printable(foreign[:80])!r}, which belongs to no lock at this path",
            step="use this path for nothing else, and no path below it",
        )
    size = f" of {found.capacity}" if found is not None and kind == "striped" else ""
    own = f" of {node_claim.claim.capacity}" if node_claim.claim.kind in ("semaphore", "striped") else ""
    return busy_as(f"{kind}{size}", f"{node_claim.claim.kind}{own}")


def busy_as(there: str, wanted: str) -> Mismatch:
    return Mismatch(
        f"busy as {there}, not as {wanted}", step="use one kind and size for one name, or wait until its queue is empty"
    )


class LockQueue:
    def __init__(self, executor: ZookeeperExecutor, runtime: Runtime) -> None:
        self._executor = executor
        self._runtime = runtime

    async def enter(self, node_claim: NodeClaim, until: float) -> None:
        executor, directory = self._executor, node_claim.directory
        node_claim.look_again = self.look_again
        making = creation(executor, node_claim, queue_rule.word_of(node_claim.claim))
        if node_claim.queue.is_crowded:
            thens = [node_claim.made, node_claim.numbered]
            created, _ = await executor.ask_in([directory], [making, codec.exists(directory)], until, thens)
            await check_created(executor, node_claim, created, until)
            if not node_claim.is_judged:
                await self.look(node_claim, until)
            return
        asking = [making, codec.children(directory)]
        created, listed = await executor.ask_in([directory], asking, until, [node_claim.made])
        await check_created(executor, node_claim, created, until)
        checked(listed)
        if isinstance(children := listed.value, Children):
            listing = Listing(children)
            node_claim.queue.learn(listing, children.stat)
            await self._judge(node_claim, listing, node_claim.epoch, until)

    def judge_now(self, node_claim: NodeClaim, listing: Listing) -> bool:
        """Hold, or wait for the right node, if the listing shows no node of another kind."""
        verdict = listing.judge(leaf_of(node_claim.nodes[0]), node_claim.claim)
        if verdict.is_listed and not verdict.foreign:
            self._apply(node_claim, verdict)
        return node_claim.is_judged

    async def look(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        """List the directory again, and hold or wait for the right node."""
        node_claim.stale = True  # until the reply: if there is none, the next renewal looks again
        replies = await self._executor.share(_listing(node_claim), until, since)
        checked(replies.calls[0], codec.NO_NODE)
        await self._judge(node_claim, replies.listing(0), replies.epoch, until)

    def look_again(self, node_claim: NodeClaim) -> None:
        """List the directory again without waiting. The reader judges the reply, and wakes only a claim that can go
        on."""

        def listed(replies: Replies) -> None:
            if node_claim.over or node_claim.gone or node_claim.holds:
                return
            if replies.calls[0].error != codec.OK:
                node_claim.unanswered(replies.calls[0])
            elif node_claim.session is None:
                self._look_unfair(node_claim, replies.listing(0))
            else:
                node_claim.epoch = replies.epoch
                verdict = replies.listing(0).judge(leaf_of(node_claim.nodes[0]), node_claim.claim)
                if verdict.foreign:
                    node_claim.tell_look()
                elif verdict.holds:
                    node_claim.now_holds()
                else:
                    self._apply(node_claim, verdict)

        node_claim.stale = True  # until the reply
        _listing(node_claim).ask(listed)

    async def peek(self, node_claim: NodeClaim, until: float) -> tuple[bool, tuple[str, str] | None]:
        """Whether a claim without a node would hold, and the node to watch until then."""
        directory = node_claim.directory
        node_claim.look_again = self.look_again
        synced = node_claim.queue.shared("synced", lambda: [codec.sync(directory), codec.children(directory)], listed=1)
        for attempt in range(LOOKS):
            replies = await self._executor.share(synced, until)
            checked(replies.calls[1], codec.NO_NODE)
            holds, last, foreign = replies.listing(1).would_hold(node_claim.claim)
            if not foreign or await self._remove_empty(node_claim, foreign, until):
                return holds, (DATA, f"{directory}/{last}") if last else None
            await pause(self._runtime, attempt)
        raise mismatch(node_claim, foreign)

    async def find(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        """After a lost reply: adopt the claim's node of the current session, and delete all others."""
        found = await own_nodes(self._executor, node_claim, [node_claim.directory], until, since)
        first = min(of_session(self._executor, found), key=lambda path: queue_rule.parse(path) or path, default=None)
        if await adopt(self._executor, node_claim, found, [] if first is None else [first], until):
            node_claim.place = node_claim.place or node_claim.nodes[0]
            await self.look(node_claim, until)

    @staticmethod
    def directories(directory: str) -> list[str]:
        """Where the nodes of a claim are."""
        return [directory]

    async def lighten(self, node_claim: NodeClaim, weight: int, until: float) -> None:
        """Turn a writer into a reader in its place: a READ with the same number replaces the WRIT."""
        (writing,) = node_claim.nodes
        mine = queue_rule.parse(writing)
        if mine is None or node_claim.claim.kind != "rw" or mine.word == queue_rule.READ or weight >= mine.weight:
            return
        reading = f"{node_claim.directory}/{prefix_of(node_claim.claim.id)}{queue_rule.READ}{mine.number}"
        data = written(node_claim.claim.description, self._executor.client.session.timeout, node_claim.ticket)
        change = codec.multi([codec.create(reading, data, self._executor.acl, codec.EPHEMERAL), codec.delete(writing)])
        node_claim.changing = node_claim.doubtful = True  # the end of the WRIT is no news now
        (call,) = await self._executor.ask([change], until)
        checked(call)
        if isinstance(call.value, Refused) and reading not in await own_nodes(
            self._executor, node_claim, [node_claim.directory], until
        ):
            node_claim.end(writing)
            return
        node_claim.nodes, node_claim.data = [reading], data
        node_claim.changing = node_claim.doubtful = False
        node_claim.watch_own()

    async def _judge(self, node_claim: NodeClaim, listing: Listing, epoch: int, until: float) -> None:
        for attempt in range(LOOKS):
            node_claim.epoch = epoch
            verdict = listing.judge(leaf_of(node_claim.nodes[0]), node_claim.claim)
            if not verdict.foreign or await self._remove_empty(node_claim, verdict.foreign, until):
                self._apply(node_claim, verdict)
                return
            await pause(self._runtime, attempt)
            replies = await self._executor.share(_listing(node_claim), until)
            checked(replies.calls[0], codec.NO_NODE)
            listing, epoch = replies.listing(0), replies.epoch
        await withdraw(self._executor, node_claim, until)
        raise mismatch(node_claim, verdict.foreign)

    def _apply(self, node_claim: NodeClaim, verdict: Verdict) -> None:
        if verdict.holds:
            node_claim.granted()
        elif verdict.is_listed:
            node_claim.wait_for(DATA, f"{node_claim.directory}/{verdict.watch}")
        else:
            node_claim.end()

    def _look_unfair(self, node_claim: NodeClaim, listing: Listing) -> None:
        holds, last, foreign = listing.would_hold(node_claim.claim)
        if holds or foreign or not last:
            node_claim.tell_look()
        else:
            node_claim.wait_for(DATA, f"{node_claim.directory}/{last}")

    async def _remove_empty(self, node_claim: NodeClaim, foreign: str, until: float) -> bool:
        """If `foreign` is a directory of an unused semaphore, remove it; it is no other kind."""
        if foreign not in (LOCKS_NODE, LEASES_NODE):
            return False
        (listed,) = await self._executor.ask([codec.children(node_claim.directory)], until)
        parts = [part for part in (LOCKS_NODE, LEASES_NODE) if part in children_of(listed)]
        if not parts:
            return True
        emptying = codec.multi([codec.delete(f"{node_claim.directory}/{part}") for part in parts])
        (call,) = await self._executor.ask([emptying], until)
        return checked(call) == codec.OK and not isinstance(call.value, Refused)


def _listing(node_claim: NodeClaim) -> Shared:
    return node_claim.queue.shared("listing", lambda: [codec.children(node_claim.directory)], listed=0)
