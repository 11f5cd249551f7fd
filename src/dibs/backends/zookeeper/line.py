"""Seam 2 over a session. Requests about nodes of other clients are in view.py.

All claims of a client live as long as its session. `renew` sends one `sync` for all of them: earlier events arrive
before its reply. Then it lists again only where something is unclear. Each claim has as long left as the session has.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.zookeeper import view
from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.contenders import (
    DIGITS,
    LOCKS,
    REFUSE_AT,
    ROTATE_AT,
    Listing,
    leaf_of,
    number_of,
    owner_of,
    prefix_of,
    uuid_of,
    word_of,
    written,
)  # fmt: skip
from dibs.backends.zookeeper.directory import Directory
from dibs.backends.zookeeper.doctor import examine, version_of
from dibs.backends.zookeeper.paths import path_of
from dibs.backends.zookeeper.permits import Permits, is_semaphore
from dibs.backends.zookeeper.queue import Queue, children_of, cleared, left, rotate
from dibs.backends.zookeeper.stands import WATCHED_AFTER, Stand, Stands
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, refusal
from dibs.backends.zookeeper.wire.port import Port, checked
from dibs.backends.zookeeper.wire.session import LOST, Call, Session
from dibs.core.deadline import FOREVER, left_for
from dibs.core.line import LINE, NOWHERE, Leave, Me, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import DibsError, StoreError, StoreUnavailable, Unsupported
from dibs.info import Finding, LockInfo

BUSY = Standing(0, False, 0.0, FOREVER, False)
_DELETE = codec.delete("")
_ROTATE_AT = str(ROTATE_AT)
_REFUSE_AT = b"%d" % REFUSE_AT


class Packed:
    """The requests of `take_now`, packed once for a lock object and a session: all but xids and the id of the claim."""

    def __init__(self, claim: Claim, directory: str, session: Session, port: Port) -> None:
        self.session = session
        self.directory = directory
        self.queue = Directory(port.wire, directory, claim.name)
        self.word = word_of(claim)
        self.data = written(claim.about, session.timeout)
        prefix = prefix_of(claim.id)
        path = f"{directory}/{prefix}{self.word}"
        self.making = codec.create(path, self.data, port.acl, codec.EPHEMERAL_SEQUENTIAL)
        self.listing = codec.children(directory)
        self.list = self.listing.packed()
        self.before, _, self.behind = self.making.packed().partition(uuid_of(claim.id).encode())
        made, leaf = len(path.encode()) + DIGITS, len(prefix) + len(self.word) + DIGITS
        self.sizes, self.shape = codec.shape_of_first(made, leaf)


class ZookeeperLine:
    def __init__(self, port: Port, stands: Stands, runtime: Runtime, me: Me, address: Address) -> None:
        self._port = port
        self._stands = stands
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._address = address
        self._chroot = address.chroot
        self._queue = Queue(port, runtime)
        self._permits = Permits(port, runtime)
        self._is_async = runtime.soon is not None
        """Then the socket is the heart's, and there is no straight line to it."""

    def take_now(  # noqa: C901  (one straight line)
        self, claim: Claim, place: Place, until: float
    ) -> Standing | None:
        """Make the node and list its directory in one straight line. Whatever is not simple is left to `join`, which
        finds the claim as this leaves it."""
        stands, wire, prepared = self._stands, self._port.wire, claim.prepared
        session = wire.session
        packed: Packed | None = None if prepared is None else prepared.request
        if self._is_async or place is not LINE or claim.asked or self._me.lease < claim.lease < session.timeout:
            return None
        if packed is None or packed.session is not session:
            if is_semaphore(claim, self._address.layout) or not session.id:
                return None
            packed = Packed(claim, self._chroot + path_of(claim.name), session, self._port)
            if prepared is not None:
                prepared.request = packed
        stand = stands.begin(claim, packed.directory, packed.directory, packed.queue)
        if len(stand.queue.claims) > 1:  # another one of this client is there: a number may tell more than a listing
            stands.finish(claim.id)
            return None
        stand.look_again, stand.word, stand.data = self._queue.look_again, packed.word, packed.data
        stand.epoch = wire.epoch
        claim.asked = stand.doubtful = True
        digits = claim.id.hex()
        uuid = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()
        calls = Call(packed.making), Call(packed.listing)
        bodies = packed.before + uuid + packed.behind, packed.list
        replies = wire.ask_now(calls, bodies, packed.sizes, until)
        if replies is None:
            claim.asked = False
            stands.finish(claim.id)
            return None
        if replies:
            path, ticket, owner, count, leaf, czxid = packed.shape.unpack(replies)
            number = leaf[-DIGITS:]
            alone = count == 1 and path.endswith(leaf) and leaf.isascii()
            if alone and owner == session.id and number.isdigit() and number < _REFUSE_AT:
                name, now, deadline = leaf.decode(), self._now(), session.deadline
                stand.session, stand.place = session, f"{packed.directory}/{name}"
                stand.nodes, stand.ticket, claim.ticket = [stand.place], ticket, ticket
                stand.doubtful, stand.holds = False, True
                stand.queue.alone = (name, packed.word, czxid)
                stands.note(stand, now + WATCHED_AFTER, stand.watch_own)
                if now < deadline and not session.over:
                    return Standing(ticket, True, left_for(deadline, now), FOREVER, False)
                return stand.standing(now)
            try:
                for call, reply in zip(calls, (replies, replies[packed.sizes[0] :]), strict=True):
                    call.value = call.request.read(codec.Reader(reply, codec.REPLY.size))
            except codec.Garbled as error:
                raise StoreUnavailable(f"the server does not speak ZooKeeper's protocol: {error}") from None
        return self._taken(stand, *calls)

    def _taken(self, stand: Stand, created: Call, listed: Call) -> Standing | None:
        """The outcome where others are there, or something is wrong."""
        claim, wire = stand.claim, self._port.wire
        if not listed.ended or listed.error == LOST:
            raise StoreUnavailable(f"no reply came ({wire.trouble})")
        stand.made(created)
        if stand.session is None and created.error == codec.OK:
            raise StoreUnavailable("the session ended meanwhile")
        if created.error != codec.OK or not 0 <= number_of(stand.place) < REFUSE_AT:
            if stand.place:
                wire.post(codec.delete(stand.place))
            claim.asked = False
            self._stands.finish(claim.id)
            return None  # nothing is left of it: `join` makes the directory, or says what is wrong
        stand.doubtful, stand.stale = False, True
        if isinstance(children := listed.value, Children):
            listing = Listing(children)
            stand.queue.learn(listing, children.stat)
            if self._queue.judged(stand, listing):
                return stand.standing(self._now())
        return None

    def leave_now(self, claim: Claim, until: float) -> bool | None:
        """Delete the node in one straight line."""
        stand = self._stands.find(claim.id)
        if stand is None or self._is_async or stand.doubtful or stand.changing or stand.nodes != [stand.place]:
            return None
        if stand.waiting_for is not None or stand.session is None or stand.session.over:
            return None
        call, path = Call(_DELETE), stand.place.encode()
        body = codec.REQUEST.pack(codec.DELETE, len(path)) + path + codec.ANY_VERSION
        stand.over = True  # first: the event of its own watch, if there is one, is no news
        replies = self._port.wire.ask_now((call,), (body,), (codec.REPLY.size,), until)
        if replies is None:
            stand.over = False
            return None
        if not call.ended or call.error == LOST:
            raise StoreUnavailable(f"no reply came ({self._port.wire.trouble})")
        self._stands.finish(claim.id)
        if stand.queue.claims:
            stand.queue.gone(leaf_of(stand.place))
        if stand.place[-DIGITS:] >= _ROTATE_AT:
            rotate(self._port, stand.place)
        return True if replies else checked(call, codec.NO_NODE) == codec.OK

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        if self._now() > claim.by or self._stands.is_buried(claim.id):
            return None
        stand = self._stands.find(claim.id) or self._stands.begin(claim, *self._where(claim))
        try:
            await self._port.ready(until)
            self._check_lease(claim)
            return await self._stand(stand, place, until)
        except DibsError as error:
            if not (isinstance(error, StoreUnavailable) and claim.asked):
                self._stands.finish(claim.id)
                self._port.wire.send([Call(codec.delete(path)) for path in stand.nodes], drop=stand.watching())
                claim.asked = claim.asked and stand.doubtful
            raise

    async def _stand(self, stand: Stand, place: Place, until: float) -> Standing | None:
        claim = stand.claim
        recipe = self._recipe(claim)
        if stand.doubtful:
            await self._look(stand, until)
        if stand.session is not None:
            await self._refresh([stand], until)
            return stand.standing(self._now())
        if place is not LINE:
            free, watch = await recipe.peek(stand, until)
            if not free:
                return self._stay_out(stand, place, watch)
            stand.stop_waiting()
        await recipe.enter(stand, until)
        if not stand.holds and place is not LINE:
            watch = stand.waiting_for
            await left(self._port, stand, until)
            stand.session, stand.nodes = None, []
            return self._stay_out(stand, place, watch)
        return stand.standing(self._now())

    def _stay_out(self, stand: Stand, place: Place, watch: tuple[str, str] | None) -> Standing:
        if place is NOWHERE:
            self._stands.finish(stand.claim.id)
        else:
            stand.claim.asked = True
            if watch is not None:
                stand.wait_for(*watch)
        return BUSY

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        stands = [self._stands.find(claim.id) for claim in claims]
        await self._refresh([stand for stand in stands if stand is not None], until)
        now = self._now()
        standings = [None if stand is None else stand.standing(now) for stand in stands]
        for claim, standing in zip(claims, standings, strict=True):
            if standing is None:  # nobody leaves what is gone
                self._stands.finish(claim.id)
        return standings

    async def _refresh(self, stands: Sequence[Stand], until: float) -> None:
        there = [stand for stand in stands if stand.stands]
        if not there:
            return
        await self._sync(until)
        for stand in there:
            if stand.holds:
                stand.watch_own()
        if any(stand.unseen for stand in there):
            await self._sync(until)
        since = self._now()
        for stand in there:
            if (stand.doubtful or stand.stale) and stand.stands and stand.looked_at_until <= self._now():
                await self._look(stand, until, since)

    async def _look(self, stand: Stand, until: float, since: float = FOREVER) -> None:
        """With replies to requests that were sent after `since`, if there are any."""
        recipe = self._recipe(stand.claim)
        stand.looked_at_until = until
        try:
            if stand.doubtful:
                await recipe.find(stand, until, since)
            else:
                await recipe.look(stand, until, since)
        finally:
            stand.looked_at_until = 0.0

    async def _sync(self, until: float) -> None:
        """All that the leader knew when it was asked has arrived before the reply."""
        (synced,) = await self._port.ask([codec.sync(self._chroot or "/")], until)
        checked(synced)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        stand = self._stands.find(claim.id)
        if stand is not None and stand.stands:
            await self._recipe(claim).lighten(stand, weight, until)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        if not answered:
            self._stands.bury(claim)
        stand = self._stands.finish(claim.id)
        if not claim.asked:
            return False
        if stand is not None and answered and not stand.doubtful and stand.session is not None:
            if not stand.session.over:
                return await left(self._port, stand, until)
            return False  # what lived by that session is gone, or goes with it
        self._end_watching(stand)
        if stand is not None and stand.session is None and not stand.doubtful:
            return False
        stand = stand or self._stands.stranger(claim, *self._where(claim))
        return await cleared(self._port, stand, self._recipe(claim).directories(stand.directory), until)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        """All nodes that are known go in one pipeline; others are looked for first, each directory listed once."""
        nodes: list[tuple[int, str]] = []
        searched: dict[str, dict[str, int]] = {}
        for number, (claim, answered) in enumerate(leaving):
            if not answered:
                self._stands.bury(claim)
            stand = self._stands.finish(claim.id)
            self._end_watching(stand)
            if not claim.asked:
                continue
            if stand is None or stand.doubtful or (stand.session is not None and not answered):
                for directory in self._recipe(claim).directories(self._chroot + path_of(claim.name)):
                    searched.setdefault(directory, {})[prefix_of(claim.id)] = number
            elif stand.session is not None and not stand.session.over:
                nodes += [(number, path) for path in stand.nodes]
        replies = await self._remove(nodes, until) if nodes else []
        if searched:
            replies += await self._search(searched, until)
        return _by_number(replies, len(leaving))

    def _end_watching(self, stand: Stand | None) -> None:
        if stand is not None and (drop := stand.watching()):
            self._port.wire.send((), drop=drop)

    async def _remove(self, nodes: Sequence[tuple[int, str]], until: float) -> list[tuple[int, StoreError | None]]:
        """Delete nodes; the result for each."""
        replies: list[tuple[int, StoreError | None]] = []
        errors = await self._port.ask_each([codec.delete(path) for _, path in nodes], until)
        for (number, path), error in zip(nodes, errors, strict=True):
            if isinstance(error, StoreUnavailable):
                replies.append((number, error))
            elif error not in (codec.OK, codec.NO_NODE):
                replies.append((number, refusal(error)))
            else:
                replies.append((number, None))
                rotate(self._port, path)
        return replies

    async def _search(self, searched: dict[str, dict[str, int]], until: float) -> list[tuple[int, StoreError | None]]:
        """Find and remove the nodes of claims whose joins were not answered."""
        replies: list[tuple[int, StoreError | None]] = []
        nodes: list[tuple[int, str]] = []
        try:
            asked = [codec.sync(self._chroot or "/"), *map(codec.children, searched)]
            _, *listed = await self._port.ask(asked, until)
        except StoreUnavailable as error:
            return [(number, error) for numbers in searched.values() for number in numbers.values()]
        for (directory, numbers), call in zip(searched.items(), listed, strict=True):
            if call.error in (codec.OK, codec.NO_NODE):
                replies += [(number, None) for number in numbers.values()]
                names = [(numbers.get(owner_of(name)), name) for name in children_of(call)]
                nodes += [(number, f"{directory}/{name}") for number, name in names if number is not None]
            else:
                replies += [(number, refusal(call.error)) for number in numbers.values()]
        return replies + (await self._remove(nodes, until) if nodes else [])

    async def connect(self, until: float) -> None:
        await self._port.ready(until)

    def round_trip(self) -> float:
        return self._port.wire.round_trip

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def line(self, name: str, until: float) -> LockInfo:
        return (await view.read(self._port, self._chroot, name, until)).info

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        return await view.page(self._port, self._chroot, prefix, after, until)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await view.revoke(self._port, self._chroot, name, token, until)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return await view.evict(self._port, self._chroot, name, token, until)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await view.await_change(self._port, self._chroot, self._me, name, seen, key, until)

    async def identity(self, until: float) -> str:
        return await view.identity(self._port, self._chroot, until)

    async def doctor(self, until: float) -> list[Finding]:
        version = await self._runtime.offload(lambda: version_of(self._address))
        return await examine(self._port, self._address, self._me.lease, version, self._now, until)

    def close(self) -> None:
        """The session is the store's."""

    def _where(self, claim: Claim) -> tuple[str, str]:
        """The directory of its name, and the one of its queue."""
        directory = self._chroot + path_of(claim.name)
        return directory, f"{directory}/{LOCKS}" if is_semaphore(claim, self._address.layout) else directory

    def _recipe(self, claim: Claim) -> Queue | Permits:
        return self._permits if is_semaphore(claim, self._address.layout) else self._queue

    def _check_lease(self, claim: Claim) -> None:
        """A lock's own lease may be no shorter than what the server made of ours."""
        timeout = self._port.wire.session.timeout
        if self._me.lease < claim.lease < timeout:
            raise Unsupported(
                f"a lease of {claim.lease:g} s is not possible: the server's sessions last {timeout:g} s",
                step="leave out lease=, or limit the hold with max_hold=",
            )


def _by_number(replies: Sequence[tuple[int, StoreError | None]], count: int) -> list[StoreError | None]:
    """One result for each of `count` claims. StoreUnavailable: there was no reply at all."""
    unanswered = [error for _, error in replies if isinstance(error, StoreUnavailable)]
    if unanswered and len(unanswered) == len(replies):
        raise unanswered[0]
    results: list[StoreError | None] = [None] * count
    for number, error in replies:
        results[number] = results[number] or error
    return results
