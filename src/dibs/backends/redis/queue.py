"""The queue (core/queue.py): one script for each verb. Here are those of a claim; inspection.py has the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from dibs.backends.common import atomic_queue
from dibs.backends.common.connections import TRUSTED, Pool
from dibs.backends.redis import scripts
from dibs.backends.redis.address import Address
from dibs.backends.redis.connection import CHUNK, RedisConnection, broken
from dibs.backends.redis.errors import Refusal, RefusedOne, strange
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.failover import lease_class, too_soon
from dibs.backends.redis.inspection import SPIN, RedisInspection, is_done
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.scripts import BETWEEN, DIGITS, MICROSECONDS, Requests, ScriptCall, description
from dibs.backends.redis.servers import IDLE
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.core.deadline import FOREVER
from dibs.core.queue import (
    LOOK,
    NOWHERE,
    QUEUE,
    UNFAIR,
    YOURS,
    ClientIdentity,
    Leave,
    Left,
    Place,
    Signal,
    Taken,
    Unsent,
    read_signal,
)
from dibs.core.rule import Claim, Prepared, Standing
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError, StoreUnavailable

_HELD = 23
"""Bytes of the reply that says that a claim holds: its ticket as a bulk string."""
_BATCH = 500
"""Claims of one name that one script renews."""


class RedisQueue(RedisInspection):
    """See core/queue.py. `subscriber`: None where nobody is to be woken by messages, and everybody looks instead."""

    def __init__(
        self,
        executor: RedisExecutor,
        subscriber: RedisSubscriber | None,
        runtime: Runtime,
        me: ClientIdentity,
        keys: Keys,
        address: Address,
    ) -> None:
        super().__init__(executor, subscriber, runtime, me, keys, address)
        self._channel = keys.client(me.id)
        self._failover = executor.failover
        self._now = runtime.now
        self._pool: Any = None
        """Where there is one server: the pool of connections to it, once it is open."""
        self._is_single = address.topology == "single"

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken:  # noqa: C901  (the free path)
        prepared, pool, subscriber = claim.prepared, self._pool, self._subscriber
        if prepared is None or place is UNFAIR or (subscriber is not None and subscriber.source.connection is None):
            return None
        requests = prepared.request or self.prepare(prepared, claim)
        if pool is None:
            pool = self._executor.pool_now(self._keys.queue(claim.name))
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
            request = b"%b%b%b%016d\r\n" % (
                requests.queue if place is QUEUE else requests.tries, claim.id, BETWEEN,
                int((claim.by + connection.offset) * MICROSECONDS),
            )  # fmt: skip
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
            return None if isinstance(answer, Refusal) else self.joined(claim, answer)
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
            pool = self._executor.pool_now(self._keys.queue(claim.name))
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
            request = b"%b%b\r\n" % (prepared.request.leave, claim.id)
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
            return left_now(answer)
        connection.used_at = now = self._now()
        trip.add(now - sent_at)
        pool.idle.append(connection)
        if pool.waiters or len(pool.idle) > IDLE or connection.generation != pool.generation:
            _give_again(pool, connection)
        return True

    def prepare(self, prepared: Prepared, claim: Claim) -> Requests:
        prepared.request = made = Requests(claim, self._channel, self._keys.queue(claim.name), self._keys.floor)
        return made

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        subscriber, key = self._subscriber, self._keys.queue(claim.name)
        if subscriber is not None and place is not NOWHERE and not subscriber.is_ready():
            await subscriber.ready(until)
        join = self._join if self._failover is None else self._join_in_term
        standing = await join(claim, key, place, until)
        if place is UNFAIR and subscriber is not None and standing is not None:
            if not standing.holds and not subscriber.hears(key, claim.id):
                with suppress(StoreUnavailable):  # not to hear costs time, and no more than to wait until one does
                    await subscriber.listen(key, claim.id, min(until, self._runtime.now() + claim.waiting / 3))
                standing = await join(claim, key, place, until)  # it may have become free before we listened
            if standing is not None and standing.holds:
                subscriber.ignore(key, claim.id)
        return standing

    async def _join_in_term(self, claim: Claim, key: bytes, place: Place, until: float) -> Standing | None:
        failover = self._failover
        assert failover is not None
        await self._note_leases((claim.lease,), until)
        if place is NOWHERE and (grace := failover.grace()):
            raise too_soon(grace)
        standing = await self._join(claim, key, place, until)
        if standing is None:
            return None
        counted = failover.counted(claim.id, standing)
        if place is NOWHERE and counted is not standing:  # the primary was replaced while it was asked
            await self.leave(claim, answered=True, until=until)
            raise too_soon(failover.grace())
        return counted

    async def _join(self, claim: Claim, key: bytes, place: Place, until: float) -> Standing | None:
        call = ScriptCall(
            scripts.JOIN, key, (description(claim, self._channel), _word(place), claim.id), claim.by, self._keys.floor
        )
        before, claim.asked = claim.asked, True
        try:
            reply, is_replicated = await self._executor.ask_replicated(call, until)
        except Unsent:
            claim.asked = before
            raise
        standing = self.joined(claim, reply)
        if standing is not None and standing.holds and not is_replicated:
            # Others need not wait for it. Another id is to ask: a late copy of this leave would end what it got.
            claim.by = self._runtime.now()
            await self.leave(claim, answered=False, until=until)
            raise self._executor.unkept()
        return standing

    def joined(self, claim: Claim, reply: Any) -> Standing | None:
        """What the script answered: see lua/join.lua."""
        if type(reply) is bytes and len(reply) == DIGITS and reply.isdigit():
            claim.ticket = ticket = int(reply)
            return Standing(ticket, True, claim.lease, self._poll_interval, False)
        if type(reply) is not list or len(reply) not in (1, 3, 6):
            raise strange()
        if len(reply) == 3:
            raise _mismatch(claim, reply)
        if len(reply) == 1:
            return None
        standing = self._standing(reply, 1)
        if standing.ticket:
            claim.ticket = standing.ticket
        return standing

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | StoreUnavailable | None]:
        if self._failover is not None:
            await self._note_leases({claim.lease for claim in claims}, until)
        queues: dict[str, list[Claim]] = {}
        for claim in claims:
            queues.setdefault(claim.name, []).append(claim)
        parts = [mine[at : at + _BATCH] for mine in queues.values() for at in range(0, len(mine), _BATCH)]
        calls = [
            ScriptCall(scripts.RENEW, self._keys.queue(part[0].name), tuple([claim.id for claim in part]))
            for part in parts
        ]
        found: dict[bytes, Standing | StoreUnavailable | None] = {}
        for part, reply in zip(parts, await self._executor.ask_all_replicated(calls, until), strict=True):
            if isinstance(reply, StoreUnavailable):
                found.update((claim.id, reply) for claim in part)
                continue
            if len(reply) != 1 + len(part):
                raise strange()
            for claim, said in zip(part, reply[1:], strict=True):
                standing = found[claim.id] = None if said is None else self._standing(said, 0)
                if self._failover is None:
                    continue
                if standing is None:
                    self._failover.forget(claim.id)
                else:
                    found[claim.id] = self._failover.counted(claim.id, standing)
        standings = [found[claim.id] for claim in claims]
        _raise_if_all_failed(standings)
        return standings

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        await self._executor.ask(ScriptCall(scripts.AMEND, self._keys.queue(claim.name), (claim.id, weight)), until)

    async def _note_leases(self, leases: Iterable[float], until: float) -> None:
        """Before anything is granted for so long: the next primary must know how long to wait (see failover.py)."""
        term = await self._executor.term(until)
        if term is None:
            return
        for lease in term.unnoted(leases, self._runtime.now()):
            call = ScriptCall(scripts.LEASES, self._keys.leases, (int(lease * MICROSECONDS), lease_class(lease)))
            reply = await self._executor.ask(call, until)
            if len(reply) != 2 or not isinstance(reply[1], int):
                raise strange()
            if self._failover is not None and term is self._failover.term:  # else it may be another server's answer
                term.note(lease, reply[1] / MICROSECONDS, self._runtime.now())

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        reply, is_repeated = await self._executor.ask_often(self._leaving(claim, answered), until)
        return is_done(reply) or is_repeated  # an earlier copy may be what removed it

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        calls = [self._leaving(claim, answered) for claim, answered in leaving]
        found: list[StoreError | None] = []
        for reply in await self._executor.ask_all(calls, until):
            if isinstance(reply, RefusedOne):
                found.append(StoreError(reply.what, step=reply.step))
            elif isinstance(reply, StoreUnavailable):
                found.append(reply)
            else:
                found.append(None if isinstance(reply, int) or len(reply) == 2 else strange())
        _raise_if_all_failed(found)
        return found

    def _leaving(self, claim: Claim, answered: bool) -> ScriptCall:
        key = self._keys.queue(claim.name)
        if self._subscriber is not None and self._subscriber.hears(key, claim.id):
            self._subscriber.ignore(key, claim.id)
        if self._failover is not None:
            self._failover.forget(claim.id)
        return ScriptCall(
            scripts.LEAVE, key, (claim.id,) if answered else (claim.id, int(claim.waiting * MICROSECONDS))
        )

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        if self._subscriber is not None:
            signal = read_signal(await self._subscriber.hear(claim.id, until))
            if signal is YOURS and self._failover is not None and not self._failover.grants_by_message(claim.id):
                return LOOK
            # With replicas to wait for, what a message says counts once a renewal was kept by them.
            return LOOK if signal is not None and self._executor.replicas else signal
        is_unfair = claim.ticket is None
        poll_interval = self._runtime.now() + SPIN if is_unfair else until
        signal = read_signal(await self._me.inbox.wait(claim.id, min(until, poll_interval)))
        return LOOK if signal is None and is_unfair else signal

    def _standing(self, said: Sequence[int], at: int) -> Standing:
        try:
            next = said[at + 3]
            return Standing(
                said[at], said[at + 1] == 1, said[at + 2] / MICROSECONDS,
                min(FOREVER if next < 0 else next / MICROSECONDS, self._poll_interval), said[at + 4] == 1,
            )  # fmt: skip
        except (TypeError, IndexError):
            raise strange() from None


def _word(place: Place) -> str:
    """As the script has it. A dict would be slower: members of an Enum are hashed in Python."""
    return "l" if place is QUEUE else "o" if place is UNFAIR else "n"


def _give_again(pool: Pool[RedisConnection], connection: RedisConnection) -> None:
    """It went back to the idle ones, but a caller waits, or there are too many, or the pool was closed."""
    with suppress(ValueError):  # somebody took it
        pool.idle.remove(connection)
        pool.give(connection)


def left_now(reply: Any) -> bool | None:
    """A reply to `leave_now`. None: a refusal, which changed nothing."""
    return True if reply == 1 else None if isinstance(reply, Refusal) else is_done(reply)


def _raise_if_all_failed(outcomes: Sequence[object]) -> None:
    failed = [outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable)]
    if failed and len(failed) == len(outcomes):
        raise failed[0]


def _mismatch(claim: Claim, reply: list[Any]) -> Mismatch | StoreError:
    _, kind, capacity = reply
    if not isinstance(kind, bytes) or not isinstance(capacity, int):
        return strange()
    return atomic_queue.mismatch(kind.decode(errors="replace").rstrip(), capacity, claim)
