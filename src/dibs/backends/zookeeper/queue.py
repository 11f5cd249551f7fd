"""Lines in one directory: mutexes, elections, read-write locks, guards of stripes. Curator's recipe, in fewer waits.

To stand is a sequential ephemeral node; the list that is asked for in the same breath shows it and all before it (one
session's requests are done in order). A try looks before it stands, so that it leaves no ghost where the name is busy.

A node of another kind before ours is given a moment: it may be a try that is just leaving. Then it is `Mismatch`.
"""

from __future__ import annotations

from functools import partial

from dibs.backends.zookeeper import shown
from dibs.backends.zookeeper.contenders import (
    LEASES,
    LOCKS,
    READ,
    Listing,
    Verdict,
    leaf_of,
    parse,
    prefix_of,
    word_of,
)  # fmt: skip
from dibs.backends.zookeeper.nodes import (
    GLANCES,
    children_of,
    cleared,
    mismatch,
    moment,
    of_session,
    own,
    removed,
    rotate,
    stood,
    taken_over,
    withdraw,
)  # fmt: skip
from dibs.backends.zookeeper.stands import Stand
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, Refused
from dibs.backends.zookeeper.wire.port import Port, checked
from dibs.backends.zookeeper.wire.session import Call
from dibs.backends.zookeeper.wire.shared import Seen, Shared
from dibs.backends.zookeeper.wire.watches import DATA
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Runtime


class Queue:
    def __init__(self, port: Port, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    async def enter(self, stand: Stand, until: float) -> None:
        claim, port, queue = stand.claim, self._port, stand.queue
        stand.look_again, stand.word = self.look_again, word_of(claim)
        stand.data = shown.written(claim.about, port.wire.session.timeout)
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
        listings: list[Listing] = []

        def listed(call: Call) -> None:
            if not isinstance(children := call.value, Children):
                return
            if children == [leaf_of(stand.place)]:  # as it mostly is
                queue.learn_one(children[0], stand.word, children.stat.czxid)
                stand.granted()
            else:
                listings.append(Listing(children))
                queue.learn(listings[-1], children.stat)

        created, listing = await port.ask_in(
            [stand.directory], [making, codec.children(stand.directory)], until, [stand.made, listed]
        )
        await stood(port, stand, created, until)
        checked(listing)
        if not stand.placed:
            await self._judge(stand, listings[-1], stand.epoch, until)

    def judged(self, stand: Stand, listing: Listing) -> bool:
        """Hold, or wait for the right one. False: that needs a closer look."""
        verdict = listing.judge(_name(stand), stand.claim)
        if verdict.foreign or not verdict.stands:
            return False
        if verdict.holds:
            stand.granted()
        else:
            self._apply(stand, verdict)
        return True

    async def look(self, stand: Stand, until: float, since: float = FOREVER) -> None:
        """List again, and wait for the right one, or hold."""
        stand.stale = True  # until that is answered: if it is not, the next renewal looks
        seen = await self._port.share(_listing(stand), until, since)
        checked(seen.calls[0], codec.NO_NODE)
        await self._judge(stand, seen.listing(0), seen.epoch, until)

    def look_again(self, stand: Stand) -> None:
        """The same by whoever reads, without waiting: so only who may go on is woken."""

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
        """Of one that does not stand: would it hold? And what to watch until it might."""
        stand.look_again = self.look_again
        for glance in range(GLANCES):
            seen = await self._port.share(_synced(stand), until)
            checked(seen.calls[1], codec.NO_NODE)
            holds, last, foreign = seen.listing(1).would_hold(stand.claim)
            if not foreign or await self._cleared(stand, foreign, until):
                return holds, (DATA, f"{stand.directory}/{last}") if last else None
            await moment(self._runtime, glance)
        raise mismatch(stand, foreign)

    async def leave(self, stand: Stand, until: float) -> bool:
        """False: its node was not there any more."""
        there = await removed(self._port, stand.nodes, until, stand.watching())
        stand.queue.gone(_name(stand))
        rotate(self._port, stand.place, stand.directory)
        return all(there)

    async def find(self, stand: Stand, until: float, since: float = FOREVER) -> None:
        """After a lost answer: take over what is ours and lives by our session, remove the rest."""
        found = await own(self._port, stand, [stand.directory], until, since)
        first = min(of_session(self._port, found), key=lambda path: parse(path) or path, default=None)
        if await taken_over(self._port, stand, found, [] if first is None else [first], until):
            stand.place = stand.place or stand.nodes[0]
            await self.look(stand, until)

    async def clear(self, stand: Stand, until: float) -> bool:
        return await cleared(self._port, stand, self.directories(stand.directory), until)

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
        data = shown.written(stand.claim.about, self._port.wire.session.timeout, stand.ticket)
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
                if verdict.holds:
                    stand.granted()
                else:
                    self._apply(stand, verdict)
                return
            await moment(self._runtime, glance)
            seen = await self._port.share(_listing(stand), until)
            checked(seen.calls[0], codec.NO_NODE)
            listing, epoch = seen.listing(0), seen.epoch
        await withdraw(self._port, stand, until)
        raise mismatch(stand, verdict.foreign)

    def _apply(self, stand: Stand, verdict: Verdict) -> None:
        """To one that does not hold."""
        if verdict.stands:
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
        """What a semaphore left behind when nobody used it any more is no other kind."""
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
