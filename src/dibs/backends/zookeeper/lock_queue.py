"""Queues in one directory: mutexes, elections, read-write locks, guards of stripes. Curator's recipe, in fewer waits.

To stand is a sequential ephemeral node; the list that is asked for in the same breath shows it and all before it (one
session's requests are done in order). A try looks before it stands, so that it leaves no ghost where the name is busy.

A node of another kind before ours is given a moment: it may be a try that is just leaving. Then it is `Mismatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dibs.backends.zookeeper.directory import Seen, Shared
from dibs.backends.zookeeper.node_claims import NodeClaim
from dibs.backends.zookeeper.queue_rule import (  # fmt: skip
    LEASES_NODE,
    LOCKS_NODE,
    READ,
    REFUSE_AT,
    ROTATE_AT,
    Listing,
    Verdict,
    leaf_of,
    number_of,
    parse,
    prefix_of,
    ticket_of,
    word_of,
    written,
)
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, Node, Refused, refusal
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, checked
from dibs.backends.zookeeper.wire.session import DATA, PendingRequest, Watch
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.info import printable

GLANCES = 5
_PAUSE = 0.02


async def stood(executor: ZookeeperExecutor, node_claim: NodeClaim, created: PendingRequest, until: float) -> None:
    """Its node was made: it counts if it lives by the session that we have now, and numbers are not used up."""
    if created.error != codec.OK:
        node_claim.claim.asked = node_claim.doubtful = False  # the server said no: there is nothing to look for
        raise refusal(created.error)
    if node_claim.session is None:
        raise StoreUnavailable("the session ended meanwhile")
    if not 0 <= number_of(node_claim.place) < REFUSE_AT:
        await withdraw(executor, node_claim, until)
        raise used_up(executor, node_claim.place.rpartition("/")[0])
    node_claim.doubtful = False


def used_up(executor: ZookeeperExecutor, directory: str) -> StoreError:
    """It is removed, if nobody stands there: else that is refused, and the next who leaves will."""
    executor.client.post(codec.delete(directory))
    return StoreError(
        "the sequence numbers of its directory are used up",
        step="try again when nobody holds it or waits for it",
    )


async def removed(
    executor: ZookeeperExecutor, paths: Sequence[str], until: float, drop: Sequence[Watch] = ()
) -> list[bool]:
    """Whether each was still there, as far as that is known. What is dropped first says nothing of it. An answer that
    was lost is asked for again as long as there is time: a connection that broke is mostly there again at once."""
    again = False
    while True:
        try:
            calls = await executor.ask([codec.delete(path) for path in paths], until, drop=() if again else drop)
        except StoreUnavailable:
            if not executor.may_ask_again(until):
                raise
            again = True
        else:
            return [checked(call, codec.NO_NODE) == codec.OK or again for call in calls]


async def left(executor: ZookeeperExecutor, node_claim: NodeClaim, until: float) -> bool:
    """Remove its nodes. False: one was not there any more."""
    there = await removed(executor, node_claim.nodes, until, node_claim.watching())
    node_claim.queue.gone(leaf_of(node_claim.place))
    for path in {node_claim.place, node_claim.nodes[-1]}:
        rotate(executor, path)
    return all(there)


def rotate(executor: ZookeeperExecutor, path: str) -> None:
    """Have numbers as high as in `path` begin again: remove its directory, which the server refuses unless empty."""
    if number_of(path) >= ROTATE_AT:
        executor.client.post(codec.delete(path.rpartition("/")[0]))


async def withdraw(executor: ZookeeperExecutor, node_claim: NodeClaim, until: float) -> None:
    """It is not to stand after all."""
    node_claim.gone = True
    await removed(executor, node_claim.nodes, until)
    node_claim.claim.asked = False


async def own(
    executor: ZookeeperExecutor, node_claim: NodeClaim, directories: Sequence[str], until: float, since: float = FOREVER
) -> dict[str, Node]:
    """All that bear its id, by their paths; as they were after `since`."""
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


async def cleared(executor: ZookeeperExecutor, node_claim: NodeClaim, directories: Sequence[str], until: float) -> bool:
    """Remove whatever bears its id; False: nothing did."""
    found = await own(executor, node_claim, directories, until)
    return bool(found) and any(await removed(executor, list(found), until))


async def taken_over(
    executor: ZookeeperExecutor, node_claim: NodeClaim, found: dict[str, Node], kept: Sequence[str], until: float
) -> bool:
    """After a lost answer: go on with these, remove the rest. False: nothing is left to go on with."""
    surplus = [path for path in found if path not in kept]
    if surplus:
        await removed(executor, surplus, until)
    node_claim.doubtful = node_claim.changing = False
    if not kept:
        node_claim.gone = node_claim.session is not None
        return False
    node_claim.session, node_claim.nodes = executor.client.session, list(kept)
    node_claim.ticket = node_claim.claim.ticket = min(ticket_of(found[path]) for path in kept)
    return True


def of_session(executor: ZookeeperExecutor, found: dict[str, Node]) -> list[str]:
    """Those that live by the session that we have now: another one's go with it, or are removed."""
    return [path for path, node in found.items() if node.stat.owner == executor.client.session.id]


async def moment(runtime: Runtime, attempt: int) -> None:
    """Between two glances at a node of another kind: it may be a try that is just leaving."""
    if attempt + 1 < GLANCES:
        await runtime.sleep(_PAUSE)


def children_of(call: PendingRequest) -> list[str]:
    """None, if the directory is not there."""
    if checked(call, codec.NO_NODE):
        return []
    assert isinstance(call.value, list)
    return call.value


def node_of(call: PendingRequest) -> Node | None:
    if checked(call, codec.NO_NODE):
        return None
    assert isinstance(call.value, Node)
    return call.value


def mismatch(node_claim: NodeClaim, foreign: str) -> Mismatch:
    found = parse(foreign)
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
        claim, executor, queue = node_claim.claim, self._executor, node_claim.queue
        node_claim.look_again, node_claim.word = self.look_again, word_of(claim)
        node_claim.data = written(claim.description, executor.client.session.timeout)
        node = f"{node_claim.directory}/{prefix_of(claim.id)}{node_claim.word}"
        making = codec.create(node, node_claim.data, executor.acl, codec.EPHEMERAL_SEQUENTIAL)
        node_claim.asks()
        if queue.is_crowded:
            created, _ = await executor.ask_in(
                [node_claim.directory],
                [making, codec.exists(node_claim.directory)],
                until,
                [node_claim.made, partial(node_claim.numbered, node_claim.granted)],
            )
            await stood(executor, node_claim, created, until)
            if not node_claim.placed:
                await self.look(node_claim, until)
            return
        created, listed = await executor.ask_in(
            [node_claim.directory], [making, codec.children(node_claim.directory)], until, [node_claim.made]
        )
        await stood(executor, node_claim, created, until)
        checked(listed)
        if isinstance(children := listed.value, Children):
            listing = Listing(children)
            queue.learn(listing, children.stat)
            await self._judge(node_claim, listing, node_claim.epoch, until)

    def judged(self, node_claim: NodeClaim, listing: Listing) -> bool:
        """Hold, or wait for the right one. False: that needs a closer look."""
        verdict = listing.judge(_name(node_claim), node_claim.claim)
        if verdict.node_claims and not verdict.foreign:
            self._apply(node_claim, verdict)
        return node_claim.placed

    async def look(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        """List again, and wait for the right one, or hold."""
        node_claim.stale = True  # until that is answered: if it is not, the next renewal looks
        seen = await self._executor.share(_listing(node_claim), until, since)
        checked(seen.calls[0], codec.NO_NODE)
        await self._judge(node_claim, seen.listing(0), seen.epoch, until)

    def look_again(self, node_claim: NodeClaim) -> None:
        """List again without waiting. The reader judges the reply, so only a claim that may go on is woken."""

        def listed(seen: Seen) -> None:
            if node_claim.over or node_claim.gone or node_claim.holds:
                return
            if seen.calls[0].error != codec.OK:
                node_claim.unanswered(seen.calls[0])
            elif node_claim.session is None:
                self._look_unfair(node_claim, seen.listing(0))
            else:
                node_claim.epoch = seen.epoch
                verdict = seen.listing(0).judge(_name(node_claim), node_claim.claim)
                if verdict.foreign:
                    node_claim.tell_look()
                elif verdict.holds:
                    node_claim.now_holds()
                else:
                    self._apply(node_claim, verdict)

        node_claim.stale = True  # until that is answered
        _listing(node_claim).ask(listed)

    async def peek(self, node_claim: NodeClaim, until: float) -> tuple[bool, tuple[str, str] | None]:
        """Whether a claim without a node would hold, and the node to watch until it might."""
        node_claim.look_again = self.look_again
        for attempt in range(GLANCES):
            seen = await self._executor.share(_synced(node_claim), until)
            checked(seen.calls[1], codec.NO_NODE)
            holds, last, foreign = seen.listing(1).would_hold(node_claim.claim)
            if not foreign or await self._cleared(node_claim, foreign, until):
                return holds, (DATA, f"{node_claim.directory}/{last}") if last else None
            await moment(self._runtime, attempt)
        raise mismatch(node_claim, foreign)

    async def find(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        """After a lost answer: take over what is ours and lives by our session, remove the rest."""
        found = await own(self._executor, node_claim, [node_claim.directory], until, since)
        first = min(of_session(self._executor, found), key=lambda path: parse(path) or path, default=None)
        if await taken_over(self._executor, node_claim, found, [] if first is None else [first], until):
            node_claim.place = node_claim.place or node_claim.nodes[0]
            await self.look(node_claim, until)

    def directories(self, directory: str) -> list[str]:
        """Where the nodes of a claim stand."""
        return [directory]

    async def lighten(self, node_claim: NodeClaim, weight: int, until: float) -> None:
        """A writer becomes a reader, in its place: the READ that bears its number comes as the WRIT goes."""
        (writing,) = node_claim.nodes
        mine = parse(writing)
        if mine is None or node_claim.claim.kind != "rw" or mine.word == READ or weight >= mine.weight:
            return
        reading = f"{node_claim.directory}/{prefix_of(node_claim.claim.id)}{READ}{mine.number}"
        data = written(node_claim.claim.description, self._executor.client.session.timeout, node_claim.ticket)
        change = codec.multi([codec.create(reading, data, self._executor.acl, codec.EPHEMERAL), codec.delete(writing)])
        node_claim.changing = node_claim.doubtful = True  # the end of the WRIT is no news now
        (call,) = await self._executor.ask([change], until)
        checked(call)
        if isinstance(call.value, Refused) and reading not in await own(
            self._executor, node_claim, [node_claim.directory], until
        ):
            node_claim.end(writing)
            return
        node_claim.nodes, node_claim.data = [reading], data
        node_claim.changing = node_claim.doubtful = False
        node_claim.watch_own()

    async def _judge(self, node_claim: NodeClaim, listing: Listing, epoch: int, until: float) -> None:
        for attempt in range(GLANCES):
            node_claim.epoch = epoch
            verdict = listing.judge(_name(node_claim), node_claim.claim)
            if not verdict.foreign or await self._cleared(node_claim, verdict.foreign, until):
                self._apply(node_claim, verdict)
                return
            await moment(self._runtime, attempt)
            seen = await self._executor.share(_listing(node_claim), until)
            checked(seen.calls[0], codec.NO_NODE)
            listing, epoch = seen.listing(0), seen.epoch
        await withdraw(self._executor, node_claim, until)
        raise mismatch(node_claim, verdict.foreign)

    def _apply(self, node_claim: NodeClaim, verdict: Verdict) -> None:
        if verdict.holds:
            node_claim.granted()
        elif verdict.node_claims:
            node_claim.wait_for(DATA, f"{node_claim.directory}/{verdict.watch}")
        else:
            node_claim.end()

    def _look_unfair(self, node_claim: NodeClaim, listing: Listing) -> None:
        holds, last, foreign = listing.would_hold(node_claim.claim)
        if holds or foreign or not last:
            node_claim.tell_look()
        else:
            node_claim.wait_for(DATA, f"{node_claim.directory}/{last}")

    async def _cleared(self, node_claim: NodeClaim, foreign: str, until: float) -> bool:
        """Remove the empty directories of a semaphore that is no longer used: they are no other kind."""
        if foreign not in (LOCKS_NODE, LEASES_NODE):
            return False
        (listed,) = await self._executor.ask([codec.children(node_claim.directory)], until)
        parts = [part for part in (LOCKS_NODE, LEASES_NODE) if part in children_of(listed)]
        if not parts:
            return True
        emptying = codec.multi([codec.delete(f"{node_claim.directory}/{part}") for part in parts])
        (call,) = await self._executor.ask([emptying], until)
        return checked(call) == codec.OK and not isinstance(call.value, Refused)


def _name(node_claim: NodeClaim) -> str:
    return leaf_of(node_claim.nodes[0])


def _listing(node_claim: NodeClaim) -> Shared:
    return node_claim.queue.shared("listing", lambda: [codec.children(node_claim.directory)], listed=0)


def _synced(node_claim: NodeClaim) -> Shared:
    return node_claim.queue.shared(
        "synced", lambda: [codec.sync(node_claim.directory), codec.children(node_claim.directory)], listed=1
    )
