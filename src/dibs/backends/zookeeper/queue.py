"""The interface `Queue` over a session. Operations on nodes of other clients are in inspect.py.

All claims of a client live as long as its session. `renew` sends one `sync` for all of them, whose reply comes after
all earlier events. Then it lists again only where something is unclear. Each claim is valid as long as the session.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.zookeeper import inspect, queue_rule
from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.directory import Directory
from dibs.backends.zookeeper.doctor import examine, version_of
from dibs.backends.zookeeper.lock_queue import LockQueue, rotate
from dibs.backends.zookeeper.node_claims import WATCHED_AFTER, NodeClaim, NodeClaims
from dibs.backends.zookeeper.paths import path_of
from dibs.backends.zookeeper.queue_rule import DIGITS, Listing, leaf_of, prefix_of
from dibs.backends.zookeeper.semaphore_queue import SemaphoreQueue, is_semaphore
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Children, refusal
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, all_existed, checked, children_of
from dibs.backends.zookeeper.wire.session import LOST, PendingRequest, Session, Watch
from dibs.core.deadline import FOREVER, left_for
from dibs.core.queue import NOWHERE, QUEUE, ClientIdentity, Leave, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import DibsError, StoreError, StoreUnavailable, Unsupported
from dibs.info import Finding, LockInfo

BUSY = Standing(0, False, 0.0, FOREVER, False)
_DELETE = codec.delete("")
_ROTATE_AT = str(queue_rule.ROTATE_AT)
_REFUSE_AT = b"%d" % queue_rule.REFUSE_AT
Outcomes = list[list[bool | StoreError]]
"""The results of deletes by claim: whether each node existed, or an error."""


class Packed:
    """The requests of `take_now`, packed once for a lock object and a session, without xids and the id of the claim."""

    def __init__(self, claim: Claim, directory: str, session: Session, executor: ZookeeperExecutor) -> None:
        self.session = session
        self.directory = directory
        self.queue = Directory(executor.client, directory, claim.name)
        self.word = queue_rule.word_of(claim)
        self.data = queue_rule.written(claim.description, session.timeout)
        prefix = prefix_of(claim.id)
        path = f"{directory}/{prefix}{self.word}"
        self.making = codec.create(path, self.data, executor.acl, codec.EPHEMERAL_SEQUENTIAL)
        self.listing = codec.children(directory)
        self.list = self.listing.packed()
        self.before, _, self.behind = self.making.packed().partition(queue_rule.uuid_of(claim.id).encode())
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
        """Then only the heart reads the socket, and there is no free path."""

    def take_now(  # noqa: C901  (one straight line)
        self, claim: Claim, place: Place, until: float
    ) -> Standing | None:
        """The free path: make the node and list its directory in one write. None: `join` must continue with the
        claim."""
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
        if len(node_claim.queue.claims) > 1:  # `join` may learn the place of a second claim without a listing
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
        """The outcome if the lock is not free, or something is wrong."""
        claim, client = node_claim.claim, self._executor.client
        if not listed.ended or listed.error == LOST:
            raise StoreUnavailable(f"no reply came ({client.trouble})")
        node_claim.made(created)
        if node_claim.session is None and created.error == codec.OK:
            raise StoreUnavailable("the session ended meanwhile")
        if created.error != codec.OK or not 0 <= queue_rule.number_of(node_claim.place) < queue_rule.REFUSE_AT:
            if node_claim.place:
                client.post(codec.delete(node_claim.place))
            claim.asked = False
            self._node_claims.finish(claim.id)
            return None  # `join` starts again: it makes the directory, or raises
        node_claim.doubtful, node_claim.stale = False, True
        if isinstance(children := listed.value, Children):
            listing = Listing(children)
            node_claim.queue.learn(listing, children.stat)
            if self._queue.judge_now(node_claim, listing):
                return node_claim.standing(self._now())
        return None

    def leave_now(self, claim: Claim, until: float) -> bool | None:
        """The free path: delete the node. None: `leave` must do it."""
        node_claim = self._node_claims.find(claim.id)
        if node_claim is None or self._is_async or node_claim.doubtful or node_claim.changing:
            return None
        if node_claim.nodes != [node_claim.place] or node_claim.waiting_for is not None:
            return None
        if node_claim.session is None or node_claim.session.over:
            return None
        call, path = PendingRequest(_DELETE), node_claim.place.encode()
        body = codec.REQUEST.pack(codec.DELETE, len(path)) + path + codec.ANY_VERSION
        node_claim.over = True  # first: the event of its own watch must be ignored
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
            return await self._join(node_claim, place, until)
        except DibsError as error:
            if not (isinstance(error, StoreUnavailable) and claim.asked):
                self._node_claims.finish(claim.id)
                self._executor.client.send(
                    [PendingRequest(codec.delete(path)) for path in node_claim.nodes], drop=node_claim.watching()
                )
                claim.asked = claim.asked and node_claim.doubtful
            raise

    async def _join(self, node_claim: NodeClaim, place: Place, until: float) -> Standing | None:
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
            nodes = [(0, path) for path in node_claim.nodes]
            outcomes: Outcomes = [[]]
            await self._delete(nodes, outcomes, until, node_claim.watching())
            all_existed(outcomes[0])
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
            if standing is None:  # the core does not call `leave` for it
                self._node_claims.finish(claim.id)
        return standings

    async def _refresh(self, node_claims: Sequence[NodeClaim], until: float) -> None:
        there = [node_claim for node_claim in node_claims if node_claim.has_node]
        if not there:
            return
        await self._sync(until)
        for node_claim in there:
            if node_claim.holds:
                node_claim.watch_own()
        if any(node_claim.is_unseen for node_claim in there):
            await self._sync(until)
        since = self._now()
        for node_claim in there:
            is_unclear = (node_claim.doubtful or node_claim.stale) and node_claim.has_node
            if is_unclear and node_claim.looked_at_until <= self._now():
                await self._look(node_claim, until, since)

    async def _look(self, node_claim: NodeClaim, until: float, since: float = FOREVER) -> None:
        """Find out where a claim is. Shared replies may be used if they were requested after `since`."""
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
        """Wait for all events that the leader knew of when it got the request."""
        (synced,) = await self._executor.ask([codec.sync(self._chroot or "/")], until)
        checked(synced)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        node_claim = self._node_claims.find(claim.id)
        if node_claim is not None and node_claim.has_node:
            await self._recipe(claim).lighten(node_claim, weight, until)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        (outcome,) = await self._leave([(claim, answered)], until)
        return bool(outcome) and all_existed(outcome)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        outcomes = await self._leave(leaving, until)
        results = [result for outcome in outcomes for result in outcome]
        unanswered = [result for result in results if isinstance(result, StoreUnavailable)]
        if unanswered and len(unanswered) == len(results):
            raise unanswered[0]
        return [next((result for result in outcome if isinstance(result, StoreError)), None) for outcome in outcomes]

    async def _leave(self, leaving: Sequence[Leave], until: float) -> Outcomes:
        """Delete the known nodes of claims in one pipeline; then find and delete the unknown ones."""
        nodes: list[tuple[int, str]] = []
        searched: dict[str, dict[str, int]] = {}
        drop: list[Watch] = []
        for number, (claim, answered) in enumerate(leaving):
            if not answered:
                self._node_claims.bury(claim)
            node_claim = self._node_claims.finish(claim.id)
            if node_claim is not None:
                drop += node_claim.watching()
            if not claim.asked:
                continue
            if node_claim is None or node_claim.doubtful or (node_claim.session is not None and not answered):
                for directory in self._recipe(claim).directories(self._chroot + path_of(claim.name)):
                    searched.setdefault(directory, {})[prefix_of(claim.id)] = number
            elif node_claim.session is not None and not node_claim.session.over:  # otherwise the server deletes them
                nodes += [(number, path) for path in node_claim.nodes]
        outcomes: Outcomes = [[] for _ in leaving]
        await self._delete(nodes, outcomes, until, drop)
        if searched:
            await self._delete(await self._search(searched, outcomes, until), outcomes, until)
        return outcomes

    async def _search(
        self, searched: dict[str, dict[str, int]], outcomes: Outcomes, until: float
    ) -> list[tuple[int, str]]:
        """Find the nodes of claims whose joins were not answered; each directory is listed once. `searched` has the
        prefix of the nodes and the number of each claim, by directory. Returns the nodes with these numbers."""
        everyone = {number for numbers in searched.values() for number in numbers.values()}
        found: list[tuple[int, str]] = []
        try:
            asked = [codec.sync(self._chroot or "/"), *map(codec.children, searched)]
            _, *listed = await self._executor.ask(asked, until)
        except StoreUnavailable as error:
            for number in everyone:
                outcomes[number].append(error)
            return []
        for (directory, numbers), call in zip(searched.items(), listed, strict=True):
            if call.error in (codec.OK, codec.NO_NODE):
                names = [(numbers.get(queue_rule.owner_of(name)), name) for name in children_of(call)]
                found += [(number, f"{directory}/{name}") for number, name in names if number is not None]
            else:
                for number in numbers.values():
                    outcomes[number].append(refusal(call.error))
        for number in everyone - {number for number, _ in found}:
            outcomes[number].append(False)
        return found

    async def _delete(
        self, nodes: Sequence[tuple[int, str]], outcomes: Outcomes, until: float, drop: Sequence[Watch] = ()
    ) -> None:
        """Delete the nodes of claims that left, each given with the number of its claim."""
        results = await self._executor.delete_each([path for _, path in nodes], until, drop)
        for (number, path), result in zip(nodes, results, strict=True):
            outcomes[number].append(result)
            if not isinstance(result, StoreError):
                self._node_claims.deleted(path)
                rotate(self._executor, path)

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
        """Nothing to close: the session belongs to the store."""

    def _where(self, claim: Claim) -> tuple[str, str]:
        """The directory of the name, and the directory of the queue."""
        directory = self._chroot + path_of(claim.name)
        has_locks_node = is_semaphore(claim, self._address.layout)
        return directory, f"{directory}/{queue_rule.LOCKS_NODE}" if has_locks_node else directory

    def _recipe(self, claim: Claim) -> LockQueue | SemaphoreQueue:
        return self._semaphores if is_semaphore(claim, self._address.layout) else self._queue

    def _check_lease(self, claim: Claim) -> None:
        """The lease of a lock must not be shorter than the timeout that the server granted."""
        timeout = self._executor.client.session.timeout
        if self._me.lease < claim.lease < timeout:
            raise Unsupported(
                f"a lease of {claim.lease:g} s is not possible: the server's sessions last {timeout:g} s",
                step="leave out lease=, or limit the hold with max_hold=",
            )
