"""Seam 2 over a session. Requests about nodes of other clients are in inspect.py.

All claims of a client live as long as its session. `renew` sends one `sync` for all of them: earlier events arrive
before its reply. Then it lists again only where something is unclear. Each claim has as long left as the session has.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.zookeeper import inspect
from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.directory import Directory
from dibs.backends.zookeeper.doctor import examine, version_of
from dibs.backends.zookeeper.lock_queue import LockQueue, children_of, cleared, left, rotate
from dibs.backends.zookeeper.node_claims import WATCHED_AFTER, NodeClaim, NodeClaims
from dibs.backends.zookeeper.paths import path_of
from dibs.backends.zookeeper.queue_rule import (  # fmt: skip
    DIGITS,
    LOCKS_NODE,
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
)
from dibs.backends.zookeeper.semaphore_queue import SemaphoreQueue, is_semaphore
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, refusal
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, checked
from dibs.backends.zookeeper.wire.session import LOST, PendingRequest, Session
from dibs.core.deadline import FOREVER, left_for
from dibs.core.queue import NOWHERE, QUEUE, ClientIdentity, Leave, Place, Signal, read_signal
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

    def __init__(self, claim: Claim, directory: str, session: Session, executor: ZookeeperExecutor) -> None:
        self.session = session
        self.directory = directory
        self.queue = Directory(executor.client, directory, claim.name)
        self.word = word_of(claim)
        self.data = written(claim.description, session.timeout)
        prefix = prefix_of(claim.id)
        path = f"{directory}/{prefix}{self.word}"
        self.making = codec.create(path, self.data, executor.acl, codec.EPHEMERAL_SEQUENTIAL)
        self.listing = codec.children(directory)
        self.list = self.listing.packed()
        self.before, _, self.behind = self.making.packed().partition(uuid_of(claim.id).encode())
        made, leaf = len(path.encode()) + DIGITS, len(prefix) + len(self.word) + DIGITS
        self.sizes, self.shape = codec.shape_of_first(made, leaf)


class ZookeeperQueue:
    def __init__(
        self,
        executor: ZookeeperExecutor,
        node_claims: NodeClaims,
        runtime: Runtime,
        me: ClientIdentity,
        address: Address,
    ) -> None:
        self._executor = executor
        self._node_claims = node_claims
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._address = address
        self._chroot = address.chroot
        self._queue = LockQueue(executor, runtime)
        self._semaphores = SemaphoreQueue(executor, runtime)
        self._is_async = runtime.call_soon is not None
        """Then the socket is the heart's, and there is no straight line to it."""

    def take_now(  # noqa: C901  (one straight line)
        self, claim: Claim, place: Place, until: float
    ) -> Standing | None:
        """Make the node and list its directory in one straight line. Whatever is not simple is left to `join`, which
        finds the claim as this leaves it."""
        node_claims, client, prepared = self._node_claims, self._executor.client, claim.prepared
        session = client.session
        packed: Packed | None = None if prepared is None else prepared.request
        if self._is_async or place is not QUEUE or claim.asked or self._me.lease < claim.lease < session.timeout:
            return None
        if packed is None or packed.session is not session:
            if is_semaphore(claim, self._address.layout) or not session.id:
                return None
            packed = Packed(claim, self._chroot + path_of(claim.name), session, self._executor)
            if prepared is not None:
                prepared.request = packed
        node_claim = node_claims.begin(claim, packed.directory, packed.directory, packed.queue)
        if (
            len(node_claim.queue.claims) > 1
        ):  # another one of this client is there: a number may tell more than a listing
            node_claims.finish(claim.id)
            return None
        node_claim.look_again, node_claim.word, node_claim.data = self._queue.look_again, packed.word, packed.data
        node_claim.epoch = client.epoch
        claim.asked = node_claim.doubtful = True
        digits = claim.id.hex()
        uuid = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()
        calls = PendingRequest(packed.making), PendingRequest(packed.listing)
        bodies = packed.before + uuid + packed.behind, packed.list
        replies = client.ask_now(calls, bodies, packed.sizes, until)
        if replies is None:
            claim.asked = False
            node_claims.finish(claim.id)
            return None
        if replies:
            path, ticket, owner, count, leaf, czxid = packed.shape.unpack(replies)
            number = leaf[-DIGITS:]
            alone = count == 1 and path.endswith(leaf) and leaf.isascii()
            if alone and owner == session.id and number.isdigit() and number < _REFUSE_AT:
                name, now, deadline = leaf.decode(), self._now(), session.deadline
                node_claim.session, node_claim.place = session, f"{packed.directory}/{name}"
                node_claim.nodes, node_claim.ticket, claim.ticket = [node_claim.place], ticket, ticket
                node_claim.doubtful, node_claim.holds = False, True
                node_claim.queue.alone = (name, packed.word, czxid)
                node_claims.note(node_claim, now + WATCHED_AFTER, node_claim.watch_own)
                if now < deadline and not session.over:
                    return Standing(ticket, True, left_for(deadline, now), FOREVER, False)
                return node_claim.standing(now)
            try:
                for call, reply in zip(calls, (replies, replies[packed.sizes[0] :]), strict=True):
                    call.value = call.request.read(codec.Reader(reply, codec.REPLY.size))
            except codec.Garbled as error:
                raise StoreUnavailable(f"the server does not speak ZooKeeper's protocol: {error}") from None
        return self._taken(node_claim, *calls)

    def _taken(self, node_claim: NodeClaim, created: PendingRequest, listed: PendingRequest) -> Standing | None:
        """The outcome where others are there, or something is wrong."""
        claim, client = node_claim.claim, self._executor.client
        if not listed.ended or listed.error == LOST:
            raise StoreUnavailable(f"no reply came ({client.trouble})")
        node_claim.made(created)
        if node_claim.session is None and created.error == codec.OK:
            raise StoreUnavailable("the session ended meanwhile")
        if created.error != codec.OK or not 0 <= number_of(node_claim.place) < REFUSE_AT:
            if node_claim.place:
                client.post(codec.delete(node_claim.place))
            claim.asked = False
            self._node_claims.finish(claim.id)
            return None  # nothing is left of it: `join` makes the directory, or says what is wrong
        node_claim.doubtful, node_claim.stale = False, True
        if isinstance(children := listed.value, Children):
            listing = Listing(children)
            node_claim.queue.learn(listing, children.stat)
            if self._queue.judged(node_claim, listing):
                return node_claim.standing(self._now())
        return None

    def leave_now(self, claim: Claim, until: float) -> bool | None:
        """Delete the node in one straight line."""
        node_claim = self._node_claims.find(claim.id)
        if (
            node_claim is None
            or self._is_async
            or node_claim.doubtful
            or node_claim.changing
            or node_claim.nodes != [node_claim.place]
        ):
            return None
        if node_claim.waiting_for is not None or node_claim.session is None or node_claim.session.over:
            return None
        call, path = PendingRequest(_DELETE), node_claim.place.encode()
        body = codec.REQUEST.pack(codec.DELETE, len(path)) + path + codec.ANY_VERSION
        node_claim.over = True  # first: the event of its own watch, if there is one, is no news
        replies = self._executor.client.ask_now((call,), (body,), (codec.REPLY.size,), until)
        if replies is None:
            node_claim.over = False
            return None
        if not call.ended or call.error == LOST:
            raise StoreUnavailable(f"no reply came ({self._executor.client.trouble})")
        self._node_claims.finish(claim.id)
        if node_claim.queue.claims:
            node_claim.queue.gone(leaf_of(node_claim.place))
        if node_claim.place[-DIGITS:] >= _ROTATE_AT:
            rotate(self._executor, node_claim.place)
        return True if replies else checked(call, codec.NO_NODE) == codec.OK

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        if self._now() > claim.by or self._node_claims.is_buried(claim.id):
            return None
        node_claim = self._node_claims.find(claim.id) or self._node_claims.begin(claim, *self._where(claim))
        try:
            await self._executor.ready(until)
            self._check_lease(claim)
            return await self._node_claim(node_claim, place, until)
        except DibsError as error:
            if not (isinstance(error, StoreUnavailable) and claim.asked):
                self._node_claims.finish(claim.id)
                self._executor.client.send(
                    [PendingRequest(codec.delete(path)) for path in node_claim.nodes], drop=node_claim.watching()
                )
                claim.asked = claim.asked and node_claim.doubtful
            raise

    async def _node_claim(self, node_claim: NodeClaim, place: Place, until: float) -> Standing | None:
        claim = node_claim.claim
        recipe = self._recipe(claim)
        if node_claim.doubtful:
            await self._look(node_claim, until)
        if node_claim.session is not None:
            await self._refresh([node_claim], until)
            return node_claim.standing(self._now())
        if place is not QUEUE:
            free, watch = await recipe.peek(node_claim, until)
            if not free:
                return self._stay_out(node_claim, place, watch)
            node_claim.stop_waiting()
        await recipe.enter(node_claim, until)
        if not node_claim.holds and place is not QUEUE:
            watch = node_claim.waiting_for
            await left(self._executor, node_claim, until)
            node_claim.session, node_claim.nodes = None, []
            return self._stay_out(node_claim, place, watch)
        return node_claim.standing(self._now())

    def _stay_out(self, node_claim: NodeClaim, place: Place, watch: tuple[str, str] | None) -> Standing:
        if place is NOWHERE:
            self._node_claims.finish(node_claim.claim.id)
        else:
            node_claim.claim.asked = True
            if watch is not None:
                node_claim.wait_for(*watch)
        return BUSY

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        node_claims = [self._node_claims.find(claim.id) for claim in claims]
        await self._refresh([node_claim for node_claim in node_claims if node_claim is not None], until)
        now = self._now()
        standings = [None if node_claim is None else node_claim.standing(now) for node_claim in node_claims]
        for claim, standing in zip(claims, standings, strict=True):
            if standing is None:  # nobody leaves what is gone
                self._node_claims.finish(claim.id)
        return standings

    async def _refresh(self, node_claims: Sequence[NodeClaim], until: float) -> None:
        there = [node_claim for node_claim in node_claims if node_claim.node_claims]
        if not there:
            return
        await self._sync(until)
        for node_claim in there:
            if node_claim.holds:
                node_claim.watch_own()
        if any(node_claim.unseen for node_claim in there):
            await self._sync(until)
        since = self._now()
        for node_claim in there:
            if (
                (node_claim.doubtful or node_claim.stale)
                and node_claim.node_claims
                and node_claim.looked_at_until <= self._now()
            ):
                await self._look(node_claim, until, since)

    async def _look(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        """With replies to requests that were sent after `since`, if there are any."""
        recipe = self._recipe(node_claim.claim)
        node_claim.looked_at_until = until
        try:
            if node_claim.doubtful:
                await recipe.find(node_claim, until, since)
            else:
                await recipe.look(node_claim, until, since)
        finally:
            node_claim.looked_at_until = 0.0

    async def _sync(self, until: float) -> None:
        """All that the leader knew when it was asked has arrived before the reply."""
        (synced,) = await self._executor.ask([codec.sync(self._chroot or "/")], until)
        checked(synced)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        node_claim = self._node_claims.find(claim.id)
        if node_claim is not None and node_claim.node_claims:
            await self._recipe(claim).lighten(node_claim, weight, until)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        if not answered:
            self._node_claims.bury(claim)
        node_claim = self._node_claims.finish(claim.id)
        if not claim.asked:
            return False
        if node_claim is not None and answered and not node_claim.doubtful and node_claim.session is not None:
            if not node_claim.session.over:
                return await left(self._executor, node_claim, until)
            return False  # what lived by that session is gone, or goes with it
        self._end_watching(node_claim)
        if node_claim is not None and node_claim.session is None and not node_claim.doubtful:
            return False
        node_claim = node_claim or self._node_claims.stranger(claim, *self._where(claim))
        return await cleared(self._executor, node_claim, self._recipe(claim).directories(node_claim.directory), until)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        """All nodes that are known go in one pipeline; others are looked for first, each directory listed once."""
        nodes: list[tuple[int, str]] = []
        searched: dict[str, dict[str, int]] = {}
        for number, (claim, answered) in enumerate(leaving):
            if not answered:
                self._node_claims.bury(claim)
            node_claim = self._node_claims.finish(claim.id)
            self._end_watching(node_claim)
            if not claim.asked:
                continue
            if node_claim is None or node_claim.doubtful or (node_claim.session is not None and not answered):
                for directory in self._recipe(claim).directories(self._chroot + path_of(claim.name)):
                    searched.setdefault(directory, {})[prefix_of(claim.id)] = number
            elif node_claim.session is not None and not node_claim.session.over:
                nodes += [(number, path) for path in node_claim.nodes]
        replies = await self._remove(nodes, until) if nodes else []
        if searched:
            replies += await self._search(searched, until)
        return _by_number(replies, len(leaving))

    def _end_watching(self, node_claim: NodeClaim | None) -> None:
        if node_claim is not None and (drop := node_claim.watching()):
            self._executor.client.send((), drop=drop)

    async def _remove(self, nodes: Sequence[tuple[int, str]], until: float) -> list[tuple[int, StoreError | None]]:
        """Delete nodes; the result for each."""
        replies: list[tuple[int, StoreError | None]] = []
        errors = await self._executor.ask_each([codec.delete(path) for _, path in nodes], until)
        for (number, path), error in zip(nodes, errors, strict=True):
            if isinstance(error, StoreUnavailable):
                replies.append((number, error))
            elif error not in (codec.OK, codec.NO_NODE):
                replies.append((number, refusal(error)))
            else:
                replies.append((number, None))
                rotate(self._executor, path)
        return replies

    async def _search(self, searched: dict[str, dict[str, int]], until: float) -> list[tuple[int, StoreError | None]]:
        """Find and remove the nodes of claims whose joins were not answered."""
        replies: list[tuple[int, StoreError | None]] = []
        nodes: list[tuple[int, str]] = []
        try:
            asked = [codec.sync(self._chroot or "/"), *map(codec.children, searched)]
            _, *listed = await self._executor.ask(asked, until)
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
        await self._executor.ready(until)

    def round_trip(self) -> float:
        return self._executor.client.round_trip

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def inspect(self, name: str, until: float) -> LockInfo:
        return (await inspect.read(self._executor, self._chroot, name, until)).info

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        return await inspect.page(self._executor, self._chroot, prefix, after, until)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await inspect.revoke(self._executor, self._chroot, name, token, until)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return await inspect.evict(self._executor, self._chroot, name, token, until)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await inspect.await_change(self._executor, self._chroot, self._me, name, seen, key, until)

    async def identity(self, until: float) -> str:
        return await inspect.identity(self._executor, self._chroot, until)

    async def doctor(self, until: float) -> list[Finding]:
        version = await self._runtime.offload(lambda: version_of(self._address))
        return await examine(self._executor, self._address, self._me.lease, version, self._now, until)

    def close(self) -> None:
        """The session is the store's."""

    def _where(self, claim: Claim) -> tuple[str, str]:
        """The directory of its name, and the one of its queue."""
        directory = self._chroot + path_of(claim.name)
        return directory, f"{directory}/{LOCKS_NODE}" if is_semaphore(claim, self._address.layout) else directory

    def _recipe(self, claim: Claim) -> LockQueue | SemaphoreQueue:
        return self._semaphores if is_semaphore(claim, self._address.layout) else self._queue

    def _check_lease(self, claim: Claim) -> None:
        """A lock's own lease may be no shorter than what the server made of ours."""
        timeout = self._executor.client.session.timeout
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
