"""The queue in lease mode: one routine for each operation."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress

from psycopg.pq.abc import PGresult

from dibs.backends.common import atomic_queue
from dibs.backends.postgresql.connection import MICROSECONDS, PostgresqlConnection, RoutineCall
from dibs.backends.postgresql.errors import Refusal, replaced, strange
from dibs.backends.postgresql.executor import PostgresqlExecutor, words_of
from dibs.backends.postgresql.inspect import Onlooker
from dibs.backends.postgresql.polling import POLL_INTERVAL, Polling
from dibs.backends.postgresql.routines import blobs, numbers, texts
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.deadline import FOREVER
from dibs.core.queue import (
    LOOK,
    NOWHERE,
    QUEUE,
    UNFAIR,
    YOURS,
    ClientIdentity,
    Leave,
    Place,
    Signal,
    Unsent,
    read_signal,
)
from dibs.core.rule import Claim, Standing, fits
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError, StoreUnavailable

NOBODY = b""
"""The client that is not told anything."""
_YES, _NO = b"t", b"f"


class PostgresqlQueue(Onlooker):
    """See core/queue.py. `subscriber`: None where nobody is to be woken by messages, and everybody looks instead."""

    def __init__(
        self, executor: PostgresqlExecutor, subscriber: PostgresqlSubscriber | None, polling: Polling, runtime: Runtime,
        me: ClientIdentity,
    ) -> None:  # fmt: skip
        super().__init__(executor, subscriber, runtime, me)
        self._floors = executor.floors
        self._polling = polling
        self._blocks = runtime.call_soon is None

    def take_now(self, claim: Claim, place: Place, until: float) -> Standing | Awaitable[Standing | None] | None:
        subscriber, statement, executor = self._subscriber, self._verbs.join_now, self._executor
        heard = None if subscriber is None else subscriber.proven
        if subscriber is None or heard is None or heard is not subscriber.source.connection or not self._floors.epoch:
            return None
        found = executor.take_now()
        if found is None:
            return None
        connection: PostgresqlConnection = found if self._blocks else found.connection
        if statement.name not in connection.prepared:
            executor.give(found)
            return None
        values = self._join_values(claim, claim.client, place)
        before, claim.asked = claim.asked, True
        if not self._blocks:
            return self._taken_soon(
                claim, before, executor.begin(found, RoutineCall(statement, values, claim.by, 12), until)
            )
        try:
            values[12] = b"%d" % ((claim.by + connection.offset) * MICROSECONDS)
            words = connection.ask_now(statement, values, until)
        except Refusal:  # it is not done: `join` does what helps
            claim.asked = before
            executor.give(connection)
            return None
        executor.give(connection, is_checked=True)
        return self._joined(claim, words)

    async def _taken_soon(self, claim: Claim, before: bool, reply: Awaitable[PGresult]) -> Standing | None:
        try:
            return self._joined(claim, words_of(await reply, 3))
        except Refusal:
            claim.asked = before
            return None

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        subscriber = self._subscriber
        hears = subscriber is not None and (
            subscriber.hears() or (place is not NOWHERE and await self._executor.hears(subscriber, until))
        )
        values = self._join_values(claim, claim.client if hears else NOBODY, place)
        statement = self._verbs.join_now if self._floors.epoch else self._verbs.join
        before, claim.asked = claim.asked, True
        try:
            words = words_of(await self._executor.ask(RoutineCall(statement, values, claim.by, 12), until), 3)
        except Unsent:
            claim.asked = before
            raise
        standing = self._joined(claim, words)
        if standing is not None and not hears and place is not NOWHERE:
            (self._polling.forget if standing.holds else self._polling.expect)(claim)
        return standing

    def _join_values(self, claim: Claim, client: bytes, place: Place) -> list[bytes]:
        prepared = claim.prepared
        packed = None if prepared is None else prepared.request
        if packed is None:
            packed = (
                claim.name.encode(),
                claim.kind.encode(),
                b"%d" % claim.capacity,
                b"%d" % claim.weight,
                b"%d" % (claim.lease * MICROSECONDS),
                b"%d" % (claim.waiting * MICROSECONDS),
                claim.description.encode(),
                b"%d" % self._verbs.key_of(claim.name),
            )
            if prepared is not None:
                prepared.request = packed
        name, kind, capacity, weight, lease, waiting, description, key = packed
        floors = self._floors
        where = b"line" if place is QUEUE else b"outside" if place is UNFAIR else b"nowhere"
        return [
            name, b"%d" % floors.known.get(claim.name, 0), claim.id, client, kind, capacity, weight, lease, waiting,
            where, description, key, b"", b"%d" % floors.highest, floors.epoch,
        ]  # fmt: skip

    def _joined(self, claim: Claim, words: Sequence[bytes]) -> Standing | None:
        """Read the reply of `join`."""
        floors, outcome = self._floors, words[2] if len(words) > 2 else b""
        if outcome == b"s":
            standing = self._standing(words[3:])
            if words[1] != b"0":
                floors.learn(claim.name, words[1])
            if standing.ticket:
                claim.ticket = standing.ticket
                floors.highest = max(floors.highest, standing.ticket)
            return standing
        if outcome == b"m":
            floors.learn(claim.name, words[1])
            raise _mismatch(claim, words)
        if outcome == b"r":
            floors.begin_anew()
            raise replaced()
        if outcome == b"f":
            floors.forget()
            raise StoreUnavailable("the cached state of this queue was wrong")
        if outcome != b"v":
            raise strange()
        return None

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        return await self._renew(claims, _YES, until)

    async def _renew(self, claims: Sequence[Claim], extends: bytes, until: float) -> list[Standing | None]:
        floors = self._floors
        values = (
            texts([claim.name for claim in claims]),
            numbers([floors.of(claim.name) for claim in claims]),
            numbers([claim.ticket or 0 for claim in claims]),
            blobs([claim.id for claim in claims]),
            extends,
            floors.epoch,
        )
        words = await self._executor.words(RoutineCall(self._verbs.renew, values), until)
        answers = words[1].split(b",") if len(words) == 2 else []
        if len(answers) != len(claims):
            raise strange()
        return [None if said == b"-" else self._standing(said.split(b":")) for said in answers]

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        name, floors = claim.name, self._floors
        values = (name.encode(), b"%d" % floors.of(name), claim.id, b"%d" % weight, floors.epoch)
        await self._executor.words(RoutineCall(self._verbs.amend, values), until)

    def leave_now(self, claim: Claim, until: float) -> bool | Awaitable[bool | None] | None:
        statement, executor = self._verbs.leave_now, self._executor
        if not claim.ticket or not self._floors.epoch or self._polling.untold:
            return None
        found = executor.take_now()
        if found is None:
            return None
        connection: PostgresqlConnection = found if self._blocks else found.connection
        if statement.name not in connection.prepared:
            executor.give(found)
            return None
        values = self._leave_values(claim, True)
        if not self._blocks:
            return self._left_soon(claim, executor.begin(found, RoutineCall(statement, values), until))
        try:
            words = connection.ask_now(statement, values, until)
        except Refusal:  # it is not done: `leave` does what helps
            executor.give(connection)
            return None
        executor.give(connection, is_checked=True)
        if words[1] == values[1]:  # the floor is known
            return words[2:] == [b"1"]
        return self._left(claim, words)

    async def _left_soon(self, claim: Claim, reply: Awaitable[PGresult]) -> bool | None:
        try:
            return self._left(claim, words_of(await reply, 3))
        except Refusal:
            return None

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        statement = self._verbs.leave_now if self._floors.epoch else self._verbs.leave
        call = RoutineCall(statement, self._leave_values(claim, answered), claim.by, 5)
        result, is_repeated = await self._executor.ask_often(call, until)
        stood = self._left(claim, words_of(result, 3))
        self._polling.forget(claim)
        if others := self._polling.on(claim.name):  # nobody else tells them
            await self._look_at(others, until)
        return stood or is_repeated  # an earlier copy may be what removed it

    def _leave_values(self, claim: Claim, answered: bool) -> list[bytes]:
        floors = self._floors
        return [
            claim.name.encode(), b"%d" % floors.known.get(claim.name, 0), claim.id, b"%d" % (claim.ticket or 0),
            _YES if answered else _NO, b"0", floors.epoch,
        ]  # fmt: skip

    def _left(self, claim: Claim, words: Sequence[bytes]) -> bool:
        """Read the reply of `leave`: whether the claim stood."""
        if len(words) != 3:
            raise strange()
        self._floors.learn(claim.name, words[1])
        return words[2] == b"1"

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        floors, now = self._floors, self._runtime.now()
        claims = [claim for claim, _ in leaving]
        lefts = [0 if answered else max(int((claim.by - now) * MICROSECONDS), 0) for claim, answered in leaving]
        values = (
            texts([claim.name for claim in claims]),
            numbers([floors.of(claim.name) for claim in claims]),
            blobs([claim.id for claim in claims]),
            numbers(lefts),
            floors.epoch,
        )
        try:
            await self._executor.words(RoutineCall(self._verbs.leave_all, values), until)
        except StoreUnavailable:
            raise
        except StoreError:  # one of them may be why: the others must not suffer from it
            return [await self._refused_to_leave(claim, answered, until) for claim, answered in leaving]
        for claim in claims:
            self._polling.forget(claim)
        names = {claim.name for claim in claims}
        if others := [claim for claim in self._polling.all() if claim.name in names]:  # nobody else tells them
            await self._look_at(others, until)
        return [None] * len(claims)

    async def _refused_to_leave(self, claim: Claim, answered: bool, until: float) -> StoreError | None:
        try:
            await self.leave(claim, answered, until)
        except StoreError as error:
            return error
        return None

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        subscriber = self._subscriber
        if self._polling.is_untold(claim):  # nobody would send it anything, also if notifications arrive by now
            return await (self._watch_unfair if claim.ticket is None else self._watch_by_looks)(claim, until)
        if subscriber is None or subscriber.is_deaf():
            return read_signal(await self._me.inbox.wait(claim.id, until))
        if not subscriber.hears():
            with suppress(StoreUnavailable):  # not to hear costs time, and no more
                await self._executor.hears(subscriber, min(until, self._runtime.now() + claim.waiting / 3))
        return read_signal(await subscriber.hear(claim.id, until))

    async def _watch_unfair(self, claim: Claim, until: float) -> Signal | None:
        while (now := self._runtime.now()) < until:
            signal = read_signal(await self._me.inbox.wait(claim.id, min(until, now + POLL_INTERVAL)))
            if signal is not None:
                return signal
            if self._polling.is_untold(claim):
                with suppress(StoreUnavailable):
                    info = await self.inspect(claim.name, until)
                    used = sum(holder.weight for holder in info.holders)
                    if not info.waiters and fits(used, claim.weight, claim.capacity):
                        return LOOK
        return None

    async def _watch_by_looks(self, claim: Claim, until: float) -> Signal | None:
        now = self._runtime.now()
        self._polling.add(claim, now)
        try:
            while now < until:
                signal = read_signal(await self._me.inbox.wait(claim.id, min(until, self._polling.due)))
                now = self._runtime.now()
                if signal is not None:
                    return signal
                if self._polling.is_ours(now):
                    await self._look_at(self._polling.all(), now + claim.waiting / 3)
        finally:
            self._polling.remove(claim)
        return None

    async def _look_at(self, claims: Sequence[Claim], until: float) -> None:
        """Poll, and tell the claims that hold now, and those that are gone."""
        with suppress(StoreUnavailable):  # the next look comes
            for claim, standing in zip(claims, await self._renew(claims, _NO, until), strict=True):
                if standing is None or standing.holds:
                    self._polling.forget(claim)
                    self._me.inbox.deliver(claim.id, LOOK.value if standing is None else YOURS.value)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        subscriber, now = self._subscriber, self._runtime.now()
        _, ticket, left, *_ = await self._executor.follow(subscriber, name, seen, self._me.id, key, until)
        if ticket != b"%d" % seen:
            return
        over = min(until, now + (int(left) / MICROSECONDS if seen and left.isdigit() else FOREVER))
        if subscriber is not None and subscriber.hears():
            await subscriber.hear(key, over)
        else:
            await self._me.inbox.wait(key, min(over, now + POLL_INTERVAL))

    async def connect(self, until: float) -> None:
        await self._executor.connect(until)

    @staticmethod
    def _standing(words: Sequence[bytes]) -> Standing:
        """Of a queue that nobody is in, `next` lies before 1970."""
        try:
            ticket, holds, left, next, revoked = map(int, words)
        except ValueError:
            raise strange() from None
        upcoming = FOREVER if holds or next < 0 else next / MICROSECONDS
        return Standing(ticket, holds == 1, left / MICROSECONDS, upcoming, revoked == 1)


def _mismatch(claim: Claim, words: Sequence[bytes]) -> Mismatch | StoreError:
    capacity, kind = words[3] if len(words) > 4 else b"", b" ".join(words[4:])
    if not capacity.isdigit():
        return strange()
    if kind == b"session":
        return Mismatch("held by a connection (mode=\"session\"), or inside a transaction (within), not by a lease",
                        step="use one mode for one name, or wait until it is free")  # fmt: skip
    return atomic_queue.mismatch(kind.decode(errors="replace"), int(capacity), claim)
