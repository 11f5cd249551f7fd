"""Lines in one directory: mutexes, elections, read-write locks, guards of stripes. Curator's recipe, in fewer waits.

To stand is a sequential ephemeral node; the list that is asked for in the same breath shows it and all before it (one
session's requests are done in order). A try looks before it stands, so that it leaves no ghost where the name is busy.

A node of another kind before ours is given a moment: it may be a try that is just leaving. Then it is `Mismatch`.
"""

from __future__ import annotations

from dibs.backends.zookeeper import shown
from dibs.backends.zookeeper.contenders import (
    LEASES,
    LOCKS,
    READ,
    Verdict,
    judge,
    parse,
    prefix_of,
    word_of,
    would_hold,
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
from dibs.backends.zookeeper.wire.codec import Refused
from dibs.backends.zookeeper.wire.port import Port, checked
from dibs.backends.zookeeper.wire.session import Call
from dibs.backends.zookeeper.wire.watches import DATA
from dibs.core.runtime import Runtime


class Queue:
    def __init__(self, port: Port, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    async def enter(self, stand: Stand, until: float) -> None:
        claim, port = stand.claim, self._port
        stand.look_again = self.look_again
        stand.data = shown.written(claim.about, port.wire.session.timeout)
        node = f"{stand.directory}/{prefix_of(claim.id)}{word_of(claim)}"
        claim.asked = stand.doubtful = True
        created, listed = await port.ask_in(
            [stand.directory],
            [codec.create(node, stand.data, port.acl, codec.EPHEMERAL_SEQUENTIAL), codec.children(stand.directory)],
            until,
        )
        await stood(port, stand, created, until)
        stand.doubtful = False
        await self._judge(stand, children_of(listed), until)

    async def look(self, stand: Stand, until: float) -> None:
        """List again, and wait for the right one, or hold."""
        (listed,) = await self._port.ask([codec.children(stand.directory)], until)
        await self._judge(stand, children_of(listed), until)

    def look_again(self, stand: Stand) -> None:
        """The same by whoever reads, without waiting: so only who may go on is woken."""

        def listed(call: Call) -> None:
            if stand.over or stand.gone or stand.holds:
                return
            if call.error != codec.OK:
                stand.unanswered(call)
            elif stand.session is None:
                self._look_from_outside(stand, children_of(call))
            else:
                verdict = judge(children_of(call), _name(stand), stand.claim)
                if verdict.foreign:
                    stand.tell_look()
                elif verdict.holds:
                    stand.now_holds()
                else:
                    self._apply(stand, verdict)

        self._port.wire.post(codec.children(stand.directory), listed)

    async def peek(self, stand: Stand, until: float) -> tuple[bool, tuple[str, str] | None]:
        """Of one that does not stand: would it hold? And what to watch until it might."""
        stand.look_again = self.look_again
        for glance in range(GLANCES):
            calls = await self._port.ask([codec.sync(stand.directory), codec.children(stand.directory)], until)
            holds, last, foreign = would_hold(children_of(calls[1]), stand.claim)
            if not foreign or await self._cleared(stand, foreign, until):
                return holds, (DATA, f"{stand.directory}/{last}") if last else None
            await moment(self._runtime, glance)
        raise mismatch(stand, foreign)

    async def leave(self, stand: Stand, until: float) -> bool:
        """False: its node was not there any more."""
        there = await removed(self._port, stand.nodes, until, stand.watching())
        rotate(self._port, stand.place, stand.directory)
        return all(there)

    async def find(self, stand: Stand, until: float) -> None:
        """After a lost answer: take over what is ours and lives by our session, remove the rest."""
        found = await own(self._port, stand, [stand.directory], until)
        first = min(of_session(self._port, found), key=lambda path: parse(path) or path, default=None)
        if await taken_over(self._port, stand, found, [] if first is None else [first], until):
            stand.place = stand.place or stand.nodes[0]
            await self.look(stand, until)

    async def clear(self, stand: Stand, until: float) -> bool:
        return await cleared(self._port, stand, [stand.directory], until)

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

    async def _judge(self, stand: Stand, children: list[str], until: float) -> None:
        for glance in range(GLANCES):
            verdict = judge(children, _name(stand), stand.claim)
            if not verdict.foreign or await self._cleared(stand, verdict.foreign, until):
                if verdict.holds:
                    stand.granted()
                else:
                    self._apply(stand, verdict)
                return
            await moment(self._runtime, glance)
            (listed,) = await self._port.ask([codec.children(stand.directory)], until)
            children = children_of(listed)
        await withdraw(self._port, stand, until)
        raise mismatch(stand, verdict.foreign)

    def _apply(self, stand: Stand, verdict: Verdict) -> None:
        """To one that does not hold."""
        if verdict.stands:
            stand.wait_for(DATA, f"{stand.directory}/{verdict.watch}", verdict.lower)
        else:
            stand.end()

    def _look_from_outside(self, stand: Stand, children: list[str]) -> None:
        holds, last, foreign = would_hold(children, stand.claim)
        if holds or foreign or not last:
            stand.tell_look()
        else:
            stand.wait_for(DATA, f"{stand.directory}/{last}", 0)

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
    return stand.nodes[0].rpartition("/")[2]
