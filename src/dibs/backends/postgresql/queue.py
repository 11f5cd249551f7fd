"""The queue in lease mode: one routine for each operation."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress

from psycopg.pq.abc import PGresult

from dibs.backends.postgresql.connection import MICROSECONDS, PostgresqlConnection, RoutineCall
from dibs.backends.postgresql.errors import Refusal, mismatch, replaced, strange
from dibs.backends.postgresql.executor import NOBODY, POLL_INTERVAL, PostgresqlExecutor, words_of
from dibs.backends.postgresql.inspect import Inspection
from dibs.backends.postgresql.routines import blobs, numbers, texts
from dibs.core.deadline import FOREVER
from dibs.core.queue import LOOK, NOWHERE, QUEUE, UNFAIR, YOURS, Leave, Place, Signal, Unsent, read_signal
from dibs.core.rule import Claim, Standing, fits
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_FIRST_POLL = 0.05
_BY = 12
"""The place of the join's deadline among its values."""


class Polling:
    """The waiters of one client that get no messages, in any threads or tasks. One of them polls for all in one
    statement: soon after a new waiter came, then less and less often."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, Claim] = {}
        self.due = 0.0
        """The instant of the next poll."""
        self._gap = POLL_INTERVAL
        self.untold: set[bytes] = set()
        """The ids of claims that wait, in the queue or outside, and get no message when they hold."""

    def add(self, claim: Claim, now: float) -> None:
        self._gap = _FIRST_POLL
        self.due = min(self.due, now + _FIRST_POLL) if self.waiting else now + _FIRST_POLL
        self.waiting[claim.id] = claim

    def begins(self, now: float) -> bool:
        """Whether the caller polls now: one of all that wake at the same time."""
        if now < self.due:
            return False
        self._gap = min(self._gap * 2, POLL_INTERVAL)
        self.due = now + self._gap
        return True


class PostgresqlQueue(Inspection):
    """See core/queue.py."""

    def __init__(self, executor: PostgresqlExecutor, polling: Polling, runtime: Runtime) -> None:
        super().__init__(executor)
        self._floors = executor.floors
        self._polling = polling
        self._blocks = runtime.call_soon is None
        self.connect = executor.connect

    def take_now(self, claim: Claim, place: Place, until: float) -> Standing | Awaitable[Standing | None] | None:
        subscriber, statement, executor = self._subscriber, self._routines.join_now, self._executor
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
                claim, before, executor.begin(found, RoutineCall(statement, values, claim.by, _BY), until)
            )
        try:
            values[_BY] = b"%d" % ((claim.by + connection.offset) * MICROSECONDS)
            words = connection.ask_now(statement, values, until)
        except Refusal:  # not done; `join` handles the reason
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
            subscriber.hears() or (place is not NOWHERE and await self._executor.hears(until))
        )
        values = self._join_values(claim, claim.client if hears else NOBODY, place)
        statement = self._routines.join_now if self._floors.epoch else self._routines.join
        before, claim.asked = claim.asked, True
        try:
            words = words_of(await self._executor.ask_once(RoutineCall(statement, values, claim.by, _BY), until), 3)
        except Unsent:
            claim.asked = before
            raise
        standing = self._joined(claim, words)
        if standing is not None and not hears and place is not NOWHERE:
            (self._polling.untold.discard if standing.holds else self._polling.untold.add)(claim.id)
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
                b"%d" % self._routines.key_of(claim.name),
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
            standing = _standing(words[3:])
            if words[1] != b"0":
                floors.learn(claim.name, words[1])
            if standing.ticket:
                claim.ticket = standing.ticket
                floors.highest = max(floors.highest, standing.ticket)
            return standing
        if outcome == b"m":
            floors.learn(claim.name, words[1])
            raise mismatch(claim, words[3:])
        if outcome == b"r":
            floors.start_afresh()
            raise replaced()
        if outcome == b"f":
            floors.forget()
            raise StoreUnavailable("the cached state of this queue was wrong")
        if outcome != b"v":
            raise strange()
        return None

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        return await self._renew(claims, True, until)

    async def _renew(self, claims: Sequence[Claim], extends: bool, until: float) -> list[Standing | None]:
        floors = self._floors
        values = (
            texts([claim.name for claim in claims]),
            numbers([floors.of(claim.name) for claim in claims]),
            numbers([claim.ticket or 0 for claim in claims]),
            blobs([claim.id for claim in claims]),
            extends,
            floors.epoch,
        )
        words = await self._executor.words(self._routines.renew, values, until)
        answers = words[1].split(b",") if len(words) == 2 else []
        if len(answers) != len(claims):
            raise strange()
        return [None if answer == b"-" else _standing(answer.split(b":")) for answer in answers]

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        values = (claim.name, self._floors.of(claim.name), claim.id, weight, self._floors.epoch)
        await self._executor.words(self._routines.amend, values, until)

    def leave_now(self, claim: Claim, until: float) -> bool | Awaitable[bool | None] | None:
        statement, executor = self._routines.leave_now, self._executor
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
        except Refusal:  # not done; `leave` handles the reason
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
        statement = self._routines.leave_now if self._floors.epoch else self._routines.leave
        call = RoutineCall(statement, self._leave_values(claim, answered), claim.by, 5)
        result, is_repeated = await self._executor.ask_often(call, until)
        stood = self._left(claim, words_of(result, 3))
        self._polling.untold.discard(claim.id)
        await self._poll_for({claim.name}, until)
        return stood or is_repeated  # an earlier copy may have removed the claim

    def _leave_values(self, claim: Claim, answered: bool) -> list[bytes]:
        floors = self._floors
        return [
            claim.name.encode(), b"%d" % floors.known.get(claim.name, 0), claim.id, b"%d" % (claim.ticket or 0),
            b"t" if answered else b"f", b"0", floors.epoch,
        ]  # fmt: skip

    def _left(self, claim: Claim, words: Sequence[bytes]) -> bool:
        """Read the reply of `leave`: whether the claim stood."""
        if len(words) != 3:
            raise strange()
        self._floors.learn(claim.name, words[1])
        return words[2] == b"1"

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        floors, now = self._floors, self._now()
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
            await self._executor.words(self._routines.leave_all, values, until)
        except StoreUnavailable:
            raise
        except StoreError:  # one claim may be the reason, so each leaves alone
            return [await self._refused_to_leave(claim, answered, until) for claim, answered in leaving]
        self._polling.untold.difference_update(claim.id for claim in claims)
        await self._poll_for({claim.name for claim in claims}, until)
        return [None] * len(claims)

    async def _refused_to_leave(self, claim: Claim, answered: bool, until: float) -> StoreError | None:
        try:
            await self.leave(claim, answered, until)
        except StoreError as error:
            return error
        return None

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        subscriber = self._subscriber
        if claim.id in self._polling.untold:  # it joined without a client, also if messages arrive by now
            return await (self._poll_unfair if claim.ticket is None else self._poll)(claim, until)
        if subscriber is None or subscriber.is_deaf():
            return read_signal(await self._me.inbox.wait(claim.id, until))
        if not subscriber.hears():
            with suppress(StoreUnavailable):  # without messages the wait takes longer, no more
                await self._executor.hears(min(until, self._now() + claim.waiting / 3))
        return read_signal(await subscriber.hear(claim.id, until))

    async def _poll_unfair(self, claim: Claim, until: float) -> Signal | None:
        while (now := self._now()) < until:
            signal = read_signal(await self._me.inbox.wait(claim.id, min(until, now + POLL_INTERVAL)))
            if signal is not None:
                return signal
            if claim.id in self._polling.untold:
                with suppress(StoreUnavailable):
                    info = await self.inspect(claim.name, until)
                    used = sum(holder.weight for holder in info.holders)
                    if not info.waiters and fits(used, claim.weight, claim.capacity):
                        return LOOK
        return None

    async def _poll(self, claim: Claim, until: float) -> Signal | None:
        now, polling = self._now(), self._polling
        polling.add(claim, now)
        try:
            while now < until:
                signal = read_signal(await self._me.inbox.wait(claim.id, min(until, polling.due)))
                now = self._now()
                if signal is not None:
                    return signal
                if polling.begins(now):
                    await self._poll_all(list(polling.waiting.values()), now + claim.waiting / 3)
        finally:
            polling.waiting.pop(claim.id, None)
        return None

    async def _poll_for(self, names: set[str], until: float) -> None:
        """After a claim left: our waiters that get no messages."""
        if claims := [claim for claim in list(self._polling.waiting.values()) if claim.name in names]:
            await self._poll_all(claims, until)

    async def _poll_all(self, claims: Sequence[Claim], until: float) -> None:
        """Tell the claims that hold now, and those that are gone."""
        with suppress(StoreUnavailable):  # until the next poll
            for claim, standing in zip(claims, await self._renew(claims, False, until), strict=True):
                if standing is None or standing.holds:
                    self._polling.untold.discard(claim.id)
                    self._me.inbox.deliver(claim.id, LOOK.value if standing is None else YOURS.value)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        now, executor = self._now(), self._executor
        which = (name, self._floors.of(name))
        words, hears = await executor.watch(self._routines.follow, which, seen, key, until)
        if len(words) < 3:
            raise strange()
        if words[1] == b"%d" % seen:
            lasts = int(words[2]) / MICROSECONDS if seen and words[2].isdigit() else FOREVER
            await executor.hear(key, hears, min(until, now + lasts))


def _standing(words: Sequence[bytes]) -> Standing:
    """Parse `ticket holds left next revoked`. In an empty queue `next` is negative."""
    try:
        ticket, holds, left, next, revoked = map(int, words)
    except ValueError:
        raise strange() from None
    upcoming = FOREVER if holds or next < 0 else next / MICROSECONDS
    return Standing(ticket, holds == 1, left / MICROSECONDS, upcoming, revoked == 1)
