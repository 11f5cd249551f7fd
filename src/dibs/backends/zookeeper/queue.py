"""Lines in one directory: mutexes, elections, read-write locks, guards of stripes. Curator's recipe, in fewer waits.

To stand is a sequential ephemeral node; the list that is asked for in the same breath shows it and all before it (one
session's requests are done in order). A try looks before it stands, so that it leaves no ghost where the name is busy.

A node of another kind before ours is given a moment: it may be a try that is just leaving. Then it is `Mismatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dibs.backends.zookeeper.contenders import (
    LEASES,
    LOCKS,
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
)  # fmt: skip
from dibs.backends.zookeeper.directory import Seen, Shared
from dibs.backends.zookeeper.stands import Stand
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, Node, Refused, refusal
from dibs.backends.zookeeper.wire.port import Port, checked
from dibs.backends.zookeeper.wire.session import DATA, Call, Watch
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.info import printable

GLANCES = 5
_PAUSE = 0.02


async def stood(port: Port, stand: Stand, created: Call, until: float) -> None:
    """Its node was made: it counts if it lives by the session that we have now, and numbers are not used up."""
    if created.error != codec.OK:
        stand.claim.asked = stand.doubtful = False  # the server said no: there is nothing to look for
        raise refusal(created.error)
    if stand.session is None:
        raise StoreUnavailable("the session ended meanwhile")
    if not 0 <= number_of(stand.place) < REFUSE_AT:
        await withdraw(port, stand, until)
        raise used_up(port, stand.place.rpartition("/")[0])
    stand.doubtful = False


def used_up(port: Port, directory: str) -> StoreError:
    """It is removed, if nobody stands there: else that is refused, and the next who leaves will."""
    port.wire.post(codec.delete(directory))
    return StoreError(
        "the sequence numbers of its directory are used up",
        step="try again when nobody holds it or waits for it",
    )


async def removed(port: Port, paths: Sequence[str], until: float, drop: Sequence[Watch] = ()) -> list[bool]:
    """Whether each was still there, as far as that is known. What is dropped first says nothing of it. An answer that
    was lost is asked for again as long as there is time: a connection that broke is mostly there again at once."""
    again = False
    while True:
        try:
            calls = await port.ask([codec.delete(path) for path in paths], until, drop=() if again else drop)
        except StoreUnavailable:
            if not port.may_ask_again(until):
                raise
            again = True
        else:
            return [checked(call, codec.NO_NODE) == codec.OK or again for call in calls]


async def left(port: Port, stand: Stand, until: float) -> bool:
    """Remove its nodes. False: one was not there any more."""
    there = await removed(port, stand.nodes, until, stand.watching())
    stand.queue.gone(leaf_of(stand.place))
    for path in {stand.place, stand.nodes[-1]}:
        rotate(port, path)
    return all(there)


def rotate(port: Port, path: str) -> None:
    """Have numbers as high as in `path` begin again: remove its directory, which the server refuses unless empty."""
    if number_of(path) >= ROTATE_AT:
        port.wire.post(codec.delete(path.rpartition("/")[0]))


async def withdraw(port: Port, stand: Stand, until: float) -> None:
    """It is not to stand after all."""
    stand.gone = True
    await removed(port, stand.nodes, until)
    stand.claim.asked = False


async def own(
    port: Port, stand: Stand, directories: Sequence[str], until: float, since: float = FOREVER
) -> dict[str, Node]:
    """All that bear its id, by their paths; as they were after `since`."""
    shared = stand.queue.shared(
        "found", lambda: [codec.sync(stand.directory), *map(codec.children, directories)], listed=1
    )
    _, *listed = (await port.share(shared, until, since)).calls
    prefix = prefix_of(stand.claim.id)
    paths = [
        f"{directory}/{name}"
        for directory, call in zip(directories, listed, strict=True)
        for name in children_of(call)
        if name.startswith(prefix)
    ]
    calls = await port.ask([codec.get(path) for path in paths], until) if paths else []
    return {path: node for path, call in zip(paths, calls, strict=True) if (node := node_of(call)) is not None}


async def cleared(port: Port, stand: Stand, directories: Sequence[str], until: float) -> bool:
    """Remove whatever bears its id; False: nothing did."""
    found = await own(port, stand, directories, until)
    return bool(found) and any(await removed(port, list(found), until))


async def taken_over(port: Port, stand: Stand, found: dict[str, Node], kept: Sequence[str], until: float) -> bool:
    """After a lost answer: go on with these, remove the rest. False: nothing is left to go on with."""
    surplus = [path for path in found if path not in kept]
    if surplus:
        await removed(port, surplus, until)
    stand.doubtful = stand.changing = False
    if not kept:
        stand.gone = stand.session is not None
        return False
    stand.session, stand.nodes = port.wire.session, list(kept)
    stand.ticket = stand.claim.ticket = min(ticket_of(found[path]) for path in kept)
    return True


def of_session(port: Port, found: dict[str, Node]) -> list[str]:
    """Those that live by the session that we have now: another one's go with it, or are removed."""
    return [path for path, node in found.items() if node.stat.owner == port.wire.session.id]


async def moment(runtime: Runtime, glance: int) -> None:
    """Between two glances at a node of another kind: it may be a try that is just leaving."""
    if glance + 1 < GLANCES:
        await runtime.sleep(_PAUSE)


def children_of(call: Call) -> list[str]:
    """None, if the directory is not there."""
    if checked(call, codec.NO_NODE):
        return []
    assert isinstance(call.value, list)
    return call.value


def node_of(call: Call) -> Node | None:
    if checked(call, codec.NO_NODE):
        return None
    assert isinstance(call.value, Node)
    return call.value


def mismatch(stand: Stand, foreign: str) -> Mismatch:
    found = parse(foreign)
    kind = "semaphore" if foreign in (LOCKS, LEASES) else None if found is None else found.kind
    if kind is None:
        return Mismatch(
            f"its directory holds {printable(foreign[:80])!r}, which belongs to no lock at this path",
            step="use this path for nothing else, and no path below it",
        )
    size = f" of {found.capacity}" if found is not None and kind == "striped" else ""
    own = f" of {stand.claim.capacity}" if stand.claim.kind in ("semaphore", "striped") else ""
    return busy_as(f"{kind}{size}", f"{stand.claim.kind}{own}")


def busy_as(there: str, wanted: str) -> Mismatch:
    return Mismatch(
        f"busy as {there}, not as {wanted}", step="use one kind and size for one name, or wait until its queue is empty"
    )


class Queue:
    def __init__(self, port: Port, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    async def enter(self, stand: Stand, until: float) -> None:
        claim, port, queue = stand.claim, self._port, stand.queue
        stand.look_again, stand.word = self.look_again, word_of(claim)
        stand.data = written(claim.about, port.wire.session.timeout)
        node = f"{stand.directory}/{prefix_of(claim.id)}{stand.word}"
        making = codec.create(node, stand.data, port.acl, codec.EPHEMERAL_SEQUENTIAL)
        stand.asks()
        if queue.is_crowded:
            created, _ = await port.ask_in(
                [stand.directory],
                [making, codec.exists(stand.directory)],
                until,
                [stand.made, partial(stand.numbered, stand.granted)],
            )
            await stood(port, stand, created, until)
            if not stand.placed:
                await self.look(stand, until)
            return
        created, listed = await port.ask_in(
            [stand.directory], [making, codec.children(stand.directory)], until, [stand.made]
        )
        await stood(port, stand, created, until)
        checked(listed)
        if isinstance(children := listed.value, Children):
            listing = Listing(children)
            queue.learn(listing, children.stat)
            await self._judge(stand, listing, stand.epoch, until)

    def judged(self, stand: Stand, listing: Listing) -> bool:
        """Hold, or wait for the right one. False: that needs a closer look."""
        verdict = listing.judge(_name(stand), stand.claim)
        if verdict.stands and not verdict.foreign:
            self._apply(stand, verdict)
        return stand.placed

    async def look(self, stand: Stand, until: float, since: float = FOREVER) -> None:
        """List again, and wait for the right one, or hold."""
        stand.stale = True  # until that is answered: if it is not, the next renewal looks
        seen = await self._port.share(_listing(stand), until, since)
        checked(seen.calls[0], codec.NO_NODE)
        await self._judge(stand, seen.listing(0), seen.epoch, until)

    def look_again(self, stand: Stand) -> None:
        """List again without waiting. The reader judges the reply, so only a claim that may go on is woken."""

        def listed(seen: Seen) -> None:
            if stand.over or stand.gone or stand.holds:
                return
            if seen.calls[0].error != codec.OK:
                stand.unanswered(seen.calls[0])
            elif stand.session is None:
                self._look_from_outside(stand, seen.listing(0))
            else:
                stand.epoch = seen.epoch
                verdict = seen.listing(0).judge(_name(stand), stand.claim)
                if verdict.foreign:
                    stand.tell_look()
                elif verdict.holds:
                    stand.now_holds()
                else:
                    self._apply(stand, verdict)

        stand.stale = True  # until that is answered
        _listing(stand).ask(listed)

    async def peek(self, stand: Stand, until: float) -> tuple[bool, tuple[str, str] | None]:
        """Whether a claim without a node would hold, and the node to watch until it might."""
        stand.look_again = self.look_again
        for glance in range(GLANCES):
            seen = await self._port.share(_synced(stand), until)
            checked(seen.calls[1], codec.NO_NODE)
            holds, last, foreign = seen.listing(1).would_hold(stand.claim)
            if not foreign or await self._cleared(stand, foreign, until):
                return holds, (DATA, f"{stand.directory}/{last}") if last else None
            await moment(self._runtime, glance)
        raise mismatch(stand, foreign)

    async def find(self, stand: Stand, until: float, since: float = FOREVER) -> None:
        """After a lost answer: take over what is ours and lives by our session, remove the rest."""
        found = await own(self._port, stand, [stand.directory], until, since)
        first = min(of_session(self._port, found), key=lambda path: parse(path) or path, default=None)
        if await taken_over(self._port, stand, found, [] if first is None else [first], until):
            stand.place = stand.place or stand.nodes[0]
            await self.look(stand, until)

    def directories(self, directory: str) -> list[str]:
        """Where the nodes of a claim stand."""
        return [directory]

    async def lighten(self, stand: Stand, weight: int, until: float) -> None:
        """A writer becomes a reader, in its place: the READ that bears its number comes as the WRIT goes."""
        (writing,) = stand.nodes
        mine = parse(writing)
        if mine is None or stand.claim.kind != "rw" or mine.word == READ or weight >= mine.weight:
            return
        reading = f"{stand.directory}/{prefix_of(stand.claim.id)}{READ}{mine.number}"
        data = written(stand.claim.about, self._port.wire.session.timeout, stand.ticket)
        change = codec.multi([codec.create(reading, data, self._port.acl, codec.EPHEMERAL), codec.delete(writing)])
        stand.changing = stand.doubtful = True  # the end of the WRIT is no news now
        (call,) = await self._port.ask([change], until)
        checked(call)
        if isinstance(call.value, Refused) and reading not in await own(self._port, stand, [stand.directory], until):
            stand.end(writing)
            return
        stand.nodes, stand.data = [reading], data
        stand.changing = stand.doubtful = False
        stand.watch_own()

    async def _judge(self, stand: Stand, listing: Listing, epoch: int, until: float) -> None:
        for glance in range(GLANCES):
            stand.epoch = epoch
            verdict = listing.judge(_name(stand), stand.claim)
            if not verdict.foreign or await self._cleared(stand, verdict.foreign, until):
                self._apply(stand, verdict)
                return
            await moment(self._runtime, glance)
            seen = await self._port.share(_listing(stand), until)
            checked(seen.calls[0], codec.NO_NODE)
            listing, epoch = seen.listing(0), seen.epoch
        await withdraw(self._port, stand, until)
        raise mismatch(stand, verdict.foreign)

    def _apply(self, stand: Stand, verdict: Verdict) -> None:
        if verdict.holds:
            stand.granted()
        elif verdict.stands:
            stand.wait_for(DATA, f"{stand.directory}/{verdict.watch}")
        else:
            stand.end()

    def _look_from_outside(self, stand: Stand, listing: Listing) -> None:
        holds, last, foreign = listing.would_hold(stand.claim)
        if holds or foreign or not last:
            stand.tell_look()
        else:
            stand.wait_for(DATA, f"{stand.directory}/{last}")

    async def _cleared(self, stand: Stand, foreign: str, until: float) -> bool:
        """Remove the empty directories of a semaphore that is no longer used: they are no other kind."""
        if foreign not in (LOCKS, LEASES):
            return False
        (listed,) = await self._port.ask([codec.children(stand.directory)], until)
        parts = [part for part in (LOCKS, LEASES) if part in children_of(listed)]
        if not parts:
            return True
        emptying = codec.multi([codec.delete(f"{stand.directory}/{part}") for part in parts])
        (call,) = await self._port.ask([emptying], until)
        return checked(call) == codec.OK and not isinstance(call.value, Refused)


def _name(stand: Stand) -> str:
    return leaf_of(stand.nodes[0])


def _listing(stand: Stand) -> Shared:
    return stand.queue.shared("listing", lambda: [codec.children(stand.directory)], listed=0)


def _synced(stand: Stand) -> Shared:
    return stand.queue.shared(
        "synced", lambda: [codec.sync(stand.directory), codec.children(stand.directory)], listed=1
    )
