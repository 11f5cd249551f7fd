"""The async API: one pipelined connection to each server, which all tasks share. A thread opens it.

Requests of one round of the event loop are sent together. Replies arrive in the order of the requests. A task that was
cancelled leaves its slot behind, and the reply is dropped. If a reply takes longer than an attempt, the connection is
closed, and all callers that wait on it get StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dibs.backends.common.aio_connections import AioPool
from dibs.backends.common.connections import closed
from dibs.backends.redis.address import Endpoint
from dibs.backends.redis.connection import CHUNK, NOT_NOW, NOTHING, PUSH, RedisConnection, Reply, broken
from dibs.backends.redis.context import Context
from dibs.backends.redis.discovery import named
from dibs.backends.redis.errors import Refusal, unavailable
from dibs.backends.redis.free_path import Layout
from dibs.backends.redis.queue import read_leave_now
from dibs.backends.redis.scripts import Request, Wait
from dibs.backends.redis.servers import Dialler, Outcomes, Parts, Pools
from dibs.core.deadline import FOREVER
from dibs.core.queue import UNFAIR, Left, Place, Taken
from dibs.core.rule import Claim, Standing
from dibs.errors import DibsError, StoreError, StoreUnavailable

_ENOUGH = 8
"""Requests that are sent without waiting for more, so that the server works while other tasks still ask."""
_TICK = 0.05
"""Seconds between two checks for timeouts."""


class _Slot:
    """The requests of one task; or a WAIT whose reply several tasks share, each behind its own replies."""

    __slots__ = ("begun", "future", "missing", "parse", "replies", "sharers", "shares", "until")

    def __init__(
        self, future: asyncio.Future[Any], missing: int, begun: float, until: float,
        parse: Callable[[Reply], object] | None = None,
    ) -> None:  # fmt: skip
        """`parse`: makes the result from the only reply; None: the list of replies is the result."""
        self.future = future
        self.missing = missing
        self.begun = begun
        self.until = until
        self.replies: list[Reply] = []
        self.parse = parse
        self.shares = False
        self.sharers: list[_Slot] = []

    def finish(self) -> None:
        if self.future.done():
            return
        if self.parse is None:
            self.future.set_result(self.replies)
            return
        try:
            self.future.set_result(self.parse(self.replies[0]))
        except DibsError as error:
            self.future.set_exception(error)


class RedisAioConnection:
    def __init__(self, connection: RedisConnection, pool: AioPool[RedisConnection, RedisAioConnection]) -> None:
        self.loop = pool.loop
        self.lost = False
        self.connection = connection
        self._pool = pool
        self._now = pool.now
        self._slots: deque[_Slot] = deque()
        self._out: list[bytes] = []
        self._rest = b""
        """Bytes that did not fit into the socket's buffer."""
        self._timer: asyncio.TimerHandle | None = None
        self._wait: Request | None = None
        self._sharers: list[_Slot] = []
        """Tasks that share the next WAIT: one WAIT each would delay the requests of the others."""
        connection.sock.setblocking(False)
        self.loop.add_reader(connection.sock, self._guarded, self._readable)

    def is_usable(self) -> bool:
        return not self.lost

    def is_quiet(self) -> bool:
        """True: many tasks share it at any time."""
        return True

    def ask(self, requests: Sequence[Request], until: float) -> asyncio.Future[list[Reply]]:
        if self.lost:
            raise StoreUnavailable("the connection was closed")
        slot = _Slot(self.loop.create_future(), len(requests), self._now(), until)
        try:
            if type(requests[-1]) is Wait:
                self._wait = requests[-1]
                requests, slot.missing, slot.shares = requests[:-1], slot.missing - 1, True
                self._sharers.append(slot)
            offset = self.connection.offset
            self._enqueue(slot, [request.packed(offset) for request in requests])
        except BaseException:
            self._give_up()
            raise
        return slot.future

    def ask_now(self, request: bytes, parse: Callable[[Reply], object], until: float) -> asyncio.Future[Any]:
        """Send one packed request. The result of the future is what `parse` makes of the reply."""
        slot = _Slot(self.loop.create_future(), 1, self._now(), until, parse)
        try:
            self._enqueue(slot, (request,))
        except BaseException:
            self._give_up()
            raise
        return slot.future

    def tell(self, request: bytes) -> None:
        """Send a packed request whose reply nobody awaits."""
        if not self.lost:
            self.ask_now(request, _ignored, FOREVER).add_done_callback(_noted)

    def _enqueue(self, slot: _Slot, packed: Sequence[bytes]) -> None:
        if not self._out and not self._rest:
            self.loop.call_soon(self._flush)
        self._slots.append(slot)
        self._out += packed
        if len(self._out) >= _ENOUGH and not self._sharers:
            self._flush()
        if self._timer is None:
            self._timer = self.loop.call_later(_TICK, self._guarded, self._tick)

    def close(self, error: StoreUnavailable) -> None:
        """An interrupt may end this at any line. The next caller, or the timer, does the rest."""
        self.lost = True
        if not self.loop.is_closed():
            for slot in self._unanswered():
                slot.future.set_exception(StoreUnavailable(error.what, step=error.step))
            if self.connection.sock.fileno() >= 0:
                self.loop.remove_reader(self.connection.sock)
                self.loop.remove_writer(self.connection.sock)
        self._slots.clear()
        self._sharers.clear()
        self.connection.close()
        self._pool.lost(self)
        if self._timer is not None:
            self._timer.cancel()

    def _unanswered(self) -> list[_Slot]:
        """Slots whose callers still wait. Each gets its own error, because the name of its lock is written into it."""
        every = {id(slot): slot for one in self._slots for slot in (one.sharers or [one])}
        every.update((id(slot), slot) for slot in self._sharers)
        return [slot for slot in every.values() if not slot.future.done()]

    def _give_up(self) -> None:
        """After an interrupt, replies can no longer be matched with requests."""
        self.close(StoreUnavailable("the request was interrupted"))

    def abandon(self) -> None:
        """In a forked child: the loop and its file descriptors belong to the parent."""
        self.lost = True
        self.connection.close()

    def _guarded(self, callback: Callable[[], None]) -> None:
        """Run a callback of the loop. Any exception closes the connection."""
        try:
            callback()
        except StoreUnavailable as error:
            self.close(error)
        except OSError as error:
            self.close(broken(error))
        except BaseException:
            self._give_up()
            raise

    def _flush(self) -> None:
        if not self.lost and (self._out or self._rest):
            self._guarded(self._send)

    def _send(self) -> None:
        if self._sharers and self._wait is not None:
            joint = _Slot(self.loop.create_future(), 1, self._now(), FOREVER)
            joint.sharers, self._sharers = self._sharers, []
            self._slots.append(joint)
            self._out.append(self._wait.packed(0.0))
        data = self._rest + b"".join(self._out)
        self._out.clear()
        try:
            sent = self.connection.sock.send(data)
        except NOT_NOW:
            sent = 0
        if self._rest and sent == len(data):
            self.loop.remove_writer(self.connection.sock)
        elif sent < len(data) and not self._rest:
            self.loop.add_writer(self.connection.sock, self._flush)
        self._rest = data[sent:]

    def _readable(self) -> None:
        connection = self.connection
        while True:
            try:
                received = connection.sock.recv(CHUNK)
            except NOT_NOW:
                return
            connection.answers.feed(received)
            self._hand_out()
            if len(received) < CHUNK and not isinstance(connection.sock, ssl.SSLSocket):
                return

    def _hand_out(self) -> None:
        answers, slots, is_noted = self.connection.answers, self._slots, False
        while (reply := answers.next()) is not NOTHING:
            if isinstance(reply, PUSH):
                continue
            if not slots:
                raise StoreUnavailable("the server sent an unexpected message")
            slot = slots[0]
            slot.replies.append(reply)
            if len(slot.replies) == slot.missing:
                if not is_noted:  # of all replies that came at once: the oldest that has the server's time
                    self.connection.sent_at = slot.begun
                    self.connection.note(slot.replies[0])
                    is_noted = type(slot.replies[0]) is not int
                for sharer in slot.sharers:
                    sharer.replies.append(reply)
                    sharer.finish()
                if not slot.shares:
                    slot.finish()
                slots.popleft()  # last: until then `close` must see it

    def _tick(self) -> None:
        """Time out slots. One timer for all costs less than one each."""
        self._timer = None
        now = self._now()
        if self.lost or (self._slots and self._slots[0].begun + self.connection.round_trip.attempt <= now):
            self.close(StoreUnavailable("the server did not answer in time"))
            return
        for slot in self._unanswered():
            if slot.until <= now:
                slot.future.set_exception(StoreUnavailable("the server did not answer in time"))
        if self._slots:
            self._timer = self.loop.call_later(_TICK, self._guarded, self._tick)


AioRedisPool = AioPool[RedisConnection, RedisAioConnection]


class AioFreePath:
    """The free path of the async API: `take_now` and `leave_now` send, and return a future of the reply."""

    def __init__(self, context: Context, layout: Layout) -> None:
        self._executor = context.executor
        self._subscriber = context.subscriber if layout.needs_messages else None
        self._key, self._prepare, self._read_join = layout.key, layout.prepare, layout.read_join
        self._pool: AioRedisPool | None = None
        """The pool of the only server in the last loop. Stays None with several servers."""
        self._is_single = context.address.topology == "single"

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken:
        prepared, connection, subscriber = claim.prepared, self._connection_now(claim.name), self._subscriber
        if connection is None or prepared is None or place is UNFAIR or (subscriber and not subscriber.is_ready()):
            return None
        requests = prepared.request or self._prepare(prepared, claim)
        if requests is None:
            return None
        claim.asked = True
        request = requests.join(claim, place, connection.connection.offset)
        return connection.ask_now(request, partial(self._taken, claim, place), until)

    def leave_now(self, claim: Claim, until: float) -> Left:
        prepared, connection = claim.prepared, self._connection_now(claim.name)
        if connection is None or prepared is None or prepared.request is None:
            return None
        requests = prepared.request
        if requests.farewell is None:
            return connection.ask_now(requests.leave(claim), read_leave_now, until)
        return connection.ask_now(requests.leave(claim), partial(_left, connection, requests.farewell(claim)), until)

    def _taken(self, claim: Claim, place: Place, reply: Reply) -> Standing | None:
        """None: a refusal, which changed nothing."""
        return None if isinstance(reply, Refusal) else self._read_join(claim, reply, place)

    def _connection_now(self, name: str) -> RedisAioConnection | None:
        pool = self._pool
        if pool is None or pool.loop is not asyncio.get_running_loop():
            pool = self._executor.pool_now(self._key(name))
            if pool is None:
                return None
            self._pool = pool if self._is_single else None
        return pool.idle[0] if pool.idle and not pool.idle[0].lost else None


def _ignored(_: Reply) -> None: ...


def _noted(done: asyncio.Future[Any]) -> None:
    """Take note of an error, or asyncio would log it."""
    if not done.cancelled():
        done.exception()


def _left(connection: RedisAioConnection, farewell: bytes, reply: Reply) -> bool | None:
    removed = read_leave_now(reply)
    if removed:
        connection.tell(farewell)
    return removed


class AioServers:
    """One connection to each server, which all tasks of an event loop share."""

    def __init__(self, dialler: Dialler) -> None:
        self._dialler = dialler
        self._loop: asyncio.AbstractEventLoop | None = None
        self.pools = Pools(self._new_pool)
        self._closed = False  # not `pools.closed`: the pools of an earlier loop are closed, too

    def _new_pool(self, endpoint: Endpoint) -> AioRedisPool:
        dialler, trip, shown = self._dialler, self._dialler.round_trip(endpoint), named(endpoint)
        return AioPool(
            dialler.to(endpoint), RedisAioConnection, dialler.now, trip, shown, limit=1, patience=dialler.patience
        )

    def pool_now(self, endpoint: Endpoint) -> AioRedisPool | None:
        """The pool of a server that was asked before, in the loop that runs."""
        return self.pools.made.get(endpoint) if self._loop is asyncio.get_running_loop() else None

    async def exchange(self, endpoint: Endpoint, requests: Sequence[Request], until: float) -> list[Reply]:
        pool = self._pool(endpoint)
        if pool.idle and not pool.idle[0].lost:
            connection = pool.idle[0]
        else:
            connection = await pool.take(until)
            pool.give(connection)
        return await connection.ask(requests, max(until, self._dialler.now() + pool.round_trip.least))

    async def exchange_all(self, parts: Parts, until: float) -> Outcomes:
        async def one(endpoint: Endpoint) -> list[Reply] | StoreUnavailable:
            try:
                return await self.exchange(endpoint, parts[endpoint], until)
            except StoreError as error:
                return unavailable(error)

        found = await asyncio.gather(*(one(endpoint) for endpoint in parts))
        return dict(zip(parts, found, strict=True))

    def tell(self, endpoint: Endpoint, request: bytes) -> None:
        pool = self.pool_now(endpoint)
        if pool is not None and pool.idle:
            pool.idle[0].tell(request)

    async def connect(self, endpoint: Endpoint, until: float) -> None:
        await self._pool(endpoint).connect(until)

    def close(self) -> None:
        self._closed = True
        self.pools.close()

    def abandon(self) -> None:
        self.pools.abandon()

    def _pool(self, endpoint: Endpoint) -> AioRedisPool:
        if self._closed:
            raise closed()
        if (loop := asyncio.get_running_loop()) is not self._loop:  # a connection serves only one loop
            self.pools.close()
            self.pools, self._loop = Pools(self._new_pool), loop
        return self.pools.at(endpoint)
