"""The way to the servers from an event loop: one connection to each, on which all tasks ask without waiting for each
other; it is opened by a thread, and opened anew when it is lost.

What the tasks of one round of the loop ask goes out together. Answers come in the order of the questions, so a task
that no longer waits leaves its slot behind, and the answer is dropped. A server that owes an answer for longer than
an attempt is not waited for: the connection is given up, and whoever had asked is told that the outcome is unknown.
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
from dibs.backends.redis.connection import NOTHING, PUSH, RedisConnection, Reply, broken
from dibs.backends.redis.discovery import named
from dibs.backends.redis.errors import Refusal, unavailable
from dibs.backends.redis.queue import RedisQueue, left_now
from dibs.backends.redis.scripts import BETWEEN, MICROSECONDS, Request, Wait
from dibs.backends.redis.servers import Dialler, Parts
from dibs.backends.redis.topology import Topology
from dibs.core.deadline import FOREVER
from dibs.core.queue import QUEUE, UNFAIR, Left, Taken
from dibs.core.queue import Place as Waits
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import DibsError, StoreError, StoreUnavailable

_CHUNK = 65_536
_ENOUGH = 8
"""Questions that are worth a packet: the server is to work while the other tasks still ask."""
_TICK = 0.05
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Slot:
    """What one task asked in one go; or the one answer that several of them wait for behind their own."""

    __slots__ = ("begun", "future", "missing", "parse", "replies", "sharers", "shares", "until")

    def __init__(
        self, future: asyncio.Future[Any], missing: int, begun: float, until: float,
        parse: Callable[[Reply], object] | None = None,
    ) -> None:  # fmt: skip
        """`parse`: makes the result out of the one reply; None: the replies are the result."""
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
        """Bytes that are still to be sent: the socket's buffer was full."""
        self._timer: asyncio.TimerHandle | None = None
        self._wait: Request | None = None
        self._sharers: list[_Slot] = []
        """Those who share the next answer about replicas: one of them each would keep the others' questions waiting."""
        connection.sock.setblocking(False)
        self.loop.add_reader(connection.sock, self._readable)

    def is_usable(self) -> bool:
        return not self.lost

    def is_quiet(self) -> bool:
        """Requests of many tasks share it."""
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
            packed = [request.packed(offset) for request in requests]
            if not self._out and not self._rest:
                self.loop.call_soon(self._flush)
            self._slots.append(slot)
            self._out += packed
            if len(self._out) >= _ENOUGH and not self._sharers:
                self._flush()
            if self._timer is None:
                self._timer = self.loop.call_later(_TICK, self._tick)
        except BaseException:
            self._give_up()
            raise
        return slot.future

    def ask_now(self, request: bytes, parse: Callable[[Reply], object], until: float) -> asyncio.Future[Any]:
        """One packed request; the result is what `parse` makes of its reply."""
        slot = _Slot(self.loop.create_future(), 1, self._now(), until, parse)
        try:
            if not self._out and not self._rest:
                self.loop.call_soon(self._flush)
            self._slots.append(slot)
            self._out.append(request)
            if len(self._out) >= _ENOUGH and not self._sharers:
                self._flush()
            if self._timer is None:
                self._timer = self.loop.call_later(_TICK, self._tick)
        except BaseException:
            self._give_up()
            raise
        return slot.future

    def close(self, error: StoreUnavailable) -> None:
        """An interrupt may end this anywhere: whoever comes next, at the latest the timer, does the rest."""
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
        """Those of whom somebody waits; each is told by an error of its own, into which its name is written."""
        every = {id(slot): slot for one in self._slots for slot in (one.sharers or [one])}
        every.update((id(slot), slot) for slot in self._sharers)
        return [slot for slot in every.values() if not slot.future.done()]

    def _give_up(self) -> None:
        """An interrupt struck amid an exchange: no answer could be told from the next."""
        self.close(StoreUnavailable("the request was interrupted"))

    def abandon(self) -> None:
        """In a forked child: the loop, and what it watches, are the parent's."""
        self.lost = True
        self.connection.close()

    def _flush(self) -> None:
        if self.lost or not (self._out or self._rest):
            return
        try:
            self._send()
        except OSError as error:
            self.close(broken(error))
        except BaseException:
            self._give_up()
            raise

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
        except _NOT_NOW:
            sent = 0
        if self._rest and sent == len(data):
            self.loop.remove_writer(self.connection.sock)
        elif sent < len(data) and not self._rest:
            self.loop.add_writer(self.connection.sock, self._flush)
        self._rest = data[sent:]

    def _readable(self) -> None:
        connection = self.connection
        try:
            while True:
                received = connection.sock.recv(_CHUNK)
                connection.answers.feed(received)
                self._hand_out()
                if len(received) < _CHUNK and not isinstance(connection.sock, ssl.SSLSocket):
                    return
        except _NOT_NOW:
            return
        except StoreUnavailable as error:
            self.close(error)
        except OSError as error:
            self.close(broken(error))
        except BaseException:
            self._give_up()
            raise

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
                if not is_noted:  # of all that came at once: the one that was asked first, and tells the time
                    self.connection.sent_at = slot.begun
                    self.connection.note(slot.replies[0])
                    is_noted = type(slot.replies[0]) is not int
                for sharer in slot.sharers:
                    sharer.replies.append(reply)
                    sharer.finish()
                if not slot.shares:
                    slot.finish()
                slots.popleft()  # last: until then whoever gives up knows of it

    def _tick(self) -> None:
        """Who asks no longer than a moment must hear that it is over; one timer for all costs less than one each."""
        try:
            self._timer = None
            now = self._now()
            if self.lost or (self._slots and self._slots[0].begun + self.connection.round_trip.attempt <= now):
                self.close(StoreUnavailable("the server did not answer in time"))
                return
            for slot in self._unanswered():
                if slot.until <= now:
                    slot.future.set_exception(StoreUnavailable("the server did not answer in time"))
            if self._slots:
                self._timer = self.loop.call_later(_TICK, self._tick)
        except BaseException:
            self._give_up()
            raise


Pooled = AioPool[RedisConnection, RedisAioConnection]


class RedisAioQueue(RedisQueue):
    """As queue.py, for an event loop: the free path sends, and the answer is a future."""

    def take_now(self, claim: Claim, place: Waits, until: float) -> Taken:
        prepared, connection = claim.prepared, self._connection_now(claim.name)
        if (
            connection is None
            or prepared is None
            or place is UNFAIR
            or (self._subscriber and not self._subscriber.is_ready())
        ):
            return None
        requests = prepared.request or self.prepare(prepared, claim)
        claim.asked = True
        start = requests.queue if place is QUEUE else requests.tries
        by = int((claim.by + connection.connection.offset) * MICROSECONDS)
        request = b"%b%b%b%016d\r\n" % (start, claim.id, BETWEEN, by)
        return connection.ask_now(request, partial(self._taken, claim), until)

    def leave_now(self, claim: Claim, until: float) -> Left:
        prepared, connection = claim.prepared, self._connection_now(claim.name)
        if connection is None or prepared is None or prepared.request is None:
            return None
        return connection.ask_now(b"%b%b\r\n" % (prepared.request.leave, claim.id), left_now, until)

    def _taken(self, claim: Claim, reply: Reply) -> Standing | None:
        """None: a refusal, which changed nothing."""
        return None if isinstance(reply, Refusal) else self.joined(claim, reply)

    def _connection_now(self, name: str) -> RedisAioConnection | None:
        pool: Pooled | None = self._pool
        if pool is None or pool.loop is not asyncio.get_running_loop():
            pool = self._executor.pool_now(self._keys.queue(name))
            if pool is None:
                return None
            self._pool = pool if self._is_single else None
        return pool.idle[0] if pool.idle and not pool.idle[0].lost else None


class AioServers:
    """As servers.py, for an event loop: one connection to each server, which all tasks share."""

    def __init__(self, dialler: Dialler, topology: Topology, runtime: Runtime) -> None:
        self._dialler = dialler
        self._topology = topology
        self._runtime = runtime
        self._now = runtime.now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pools: dict[Endpoint, Pooled] = {}
        self._closed = False

    def pool_now(self, endpoint: Endpoint) -> Pooled | None:
        """That of a server that was asked before, in the loop that runs."""
        return self._pools.get(endpoint) if self._loop is asyncio.get_running_loop() else None

    async def exchange(self, endpoint: Endpoint, requests: Sequence[Request], until: float) -> list[Reply]:
        pool = self._pool(endpoint)
        if pool.idle and not pool.idle[0].lost:
            connection = pool.idle[0]
        else:
            connection = await pool.take(until)
            pool.give(connection)
        return await connection.ask(requests, max(until, self._now() + pool.round_trip.least))

    async def exchange_all(self, parts: Parts, until: float) -> dict[Endpoint, list[Reply] | StoreUnavailable]:
        async def one(endpoint: Endpoint) -> list[Reply] | StoreUnavailable:
            try:
                return await self.exchange(endpoint, parts[endpoint], until)
            except StoreError as error:
                return unavailable(error)

        found = await asyncio.gather(*(one(endpoint) for endpoint in parts))
        return dict(zip(parts, found, strict=True))

    async def connect(self, endpoint: Endpoint, until: float) -> None:
        await self._pool(endpoint).connect(until)

    async def learn(self, until: float) -> None:
        await self._runtime.offload(lambda: self._topology.learn(until))

    def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.close()

    def abandon(self) -> None:
        for pool in self._pools.values():
            pool.abandon()

    def _pool(self, endpoint: Endpoint) -> Pooled:
        if self._closed:
            raise closed()
        if (loop := asyncio.get_running_loop()) is not self._loop:  # connections serve one loop only
            for pool in self._pools.values():
                pool.close()
            self._pools, self._loop = {}, loop
        found = self._pools.get(endpoint)
        if found is None:
            dialler = self._dialler
            found = self._pools[endpoint] = AioPool(
                dialler.to(endpoint), RedisAioConnection, dialler.now, dialler.round_trip(endpoint), named(endpoint),
                limit=1, patience=dialler.patience,
            )  # fmt: skip
        return found
