"""The free path of the sync API: `take_now` and `leave_now` write one request and read one reply.

Both functions do everything in one place, because each Python call costs time after a wait on the socket. They hand
anything unusual to the general path (queue.py): no idle connection, a busy lock, a refusal, a reply in parts. The
counterpart for asyncio is in aio_connection.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from dibs.backends.common.connections import TRUSTED, Pool
from dibs.backends.redis.connection import CHUNK, RedisConnection, broken
from dibs.backends.redis.context import Context
from dibs.backends.redis.errors import Refusal
from dibs.backends.redis.queue import read_leave_now
from dibs.backends.redis.scripts import MICROSECONDS
from dibs.backends.redis.servers import IDLE
from dibs.core.queue import UNFAIR, Left, Place, Taken
from dibs.core.rule import Claim, Prepared, Standing

_HELD = 23
"""Length in bytes of the reply to a join that holds: the ticket as a bulk string."""


class Packed(Protocol):
    """The packed requests of one lock object: see `Prepared` in core/rule.py."""

    is_large: bool
    """One `send` may not take the whole request."""

    @property
    def farewell(self) -> Callable[[Claim], bytes] | None:
        """Makes a request whose reply nobody awaits, which follows an answered leave."""

    def join(self, claim: Claim, place: Place, offset: float) -> bytes:
        """`offset`: seconds by which the clock of the server is ahead."""

    def leave(self, claim: Claim) -> bytes: ...


class Layout(NamedTuple):
    """The parts of a layout that the free path needs."""

    key: Callable[[str], bytes]
    """The key of a name."""
    prepare: Callable[[Prepared, Claim], Packed | None]
    """Packs the requests of a lock object, and caches them. None: this kind has no free path."""
    read_join: Callable[[Claim, Any, Place], Standing | None]
    """Parses the reply to a join. None: the general path decides."""
    needs_messages: bool
    """A claim in the queue is told by a message that it holds, so the subscriber must be connected before."""


class FreePath:
    def __init__(self, context: Context, layout: Layout) -> None:
        self._executor = context.executor
        self._subscriber = context.subscriber if layout.needs_messages else None
        self._key, self._prepare, self._read_join = layout.key, layout.prepare, layout.read_join
        self._poll_interval = context.poll_interval
        self._now = context.runtime.now
        self._pool: Any = None
        """The pool of the only server, once it is open. Stays None with several servers."""
        self._is_single = context.address.topology == "single"

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken:  # noqa: C901, PLR0912  (the free path)
        prepared, pool, subscriber = claim.prepared, self._pool, self._subscriber
        if prepared is None or place is UNFAIR or (subscriber is not None and subscriber.source.connection is None):
            return None
        requests = prepared.request or self._prepare(prepared, claim)
        if requests is None:
            return None
        if pool is None:
            pool = self._executor.pool_now(self._key(claim.name))
            if pool is None:
                return None
            self._pool = pool if self._is_single else None
        try:
            connection = pool.idle.pop()
        except IndexError:
            return None
        sent_at, poll, sock = self._now(), connection.poll, connection.sock
        if poll is None or sent_at - connection.used_at >= TRUSTED or requests.is_large:
            pool.give(connection)
            return None
        trip, patience = connection.round_trip, until - sent_at
        claim.asked = True
        try:
            if patience > trip.attempt or patience < trip.least:
                patience = trip.attempt if patience > trip.attempt else trip.least
            request = requests.join(claim, place, connection.offset)
            if sock.send(request) < len(request) or not poll.poll(patience * 1000):
                raise TimeoutError
            reply = sock.recv(CHUNK)
        except OSError as error:
            connection.close()
            raise broken(error) from None
        except BaseException:
            connection.close()
            raise
        if len(reply) != _HELD or reply[:5] != b"$16\r\n" or not reply[5:21].isdigit():
            connection.sent_at = sent_at
            answer = connection.read_now(reply, until)
            pool.give(connection)
            return None if isinstance(answer, Refusal) else self._read_join(claim, answer, place)
        claim.ticket = ticket = int(reply[5:21])
        connection.used_at = now = self._now()
        trip.add(now - sent_at)
        there, offset = ticket / MICROSECONDS, connection.offset  # as in Connection.note_reply
        if there - now > offset or there - sent_at < offset:
            connection.offset = there - now if there - now > offset else there - sent_at
        pool.idle.append(connection)
        if pool.waiters or len(pool.idle) > IDLE or connection.generation != pool.generation:
            _give_again(pool, connection)
        return Standing(ticket, True, claim.lease, self._poll_interval, False)

    def leave_now(self, claim: Claim, until: float) -> Left:  # noqa: C901  (the free path)
        prepared, pool = claim.prepared, self._pool
        if prepared is None or prepared.request is None:
            return None
        if pool is None:
            pool = self._executor.pool_now(self._key(claim.name))
            if pool is None:
                return None
        try:
            connection = pool.idle.pop()
        except IndexError:
            return None
        sent_at, poll, sock = self._now(), connection.poll, connection.sock
        if poll is None or sent_at - connection.used_at >= TRUSTED:
            pool.give(connection)
            return None
        trip, patience = connection.round_trip, until - sent_at
        try:
            if patience > trip.attempt or patience < trip.least:
                patience = trip.attempt if patience > trip.attempt else trip.least
            request = prepared.request.leave(claim)
            if sock.send(request) < len(request) or not poll.poll(patience * 1000):
                raise TimeoutError
            reply = sock.recv(CHUNK)
        except OSError as error:
            connection.close()
            raise broken(error) from None
        except BaseException:
            connection.close()
            raise
        if reply != b":1\r\n":
            connection.sent_at = sent_at
            answer = connection.read_now(reply, until)
            pool.give(connection)
            return read_leave_now(answer)
        connection.used_at = now = self._now()
        trip.add(now - sent_at)
        if prepared.request.farewell is not None and not connection.tell(prepared.request.farewell(claim)):
            return True
        pool.idle.append(connection)
        if pool.waiters or len(pool.idle) > IDLE or connection.generation != pool.generation:
            _give_again(pool, connection)
        return True


def _give_again(pool: Pool[RedisConnection], connection: RedisConnection) -> None:
    """Give back properly a connection that is already idle: a caller waits, too many are idle, or the pool closed."""
    with suppress(ValueError):  # another thread took it
        pool.idle.remove(connection)
        pool.give(connection)
