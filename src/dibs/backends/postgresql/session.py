"""Seam 2 in session mode: a claim is an advisory lock of a connection of its own, and the server's queue is the queue.

A join that finds the name taken leaves its connection waiting in that queue; the server replies when its turn has come.
A waiter that gives up has the statement cancelled. A reply that was long on its way counts once the server has replied
again. `renew` asks something small on each connection that holds: a reply proves that the session, and with it the
lock, was there after it was asked. A connection that is lost is a lock that is lost. There are no places outside the
queue: a waiter with `fair=False` is in it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import NamedTuple

import psycopg

from dibs.backends.common.session_claims import GONE, HOLDS, WAITS, SessionClaims
from dibs.backends.postgresql.connection import PostgresqlConnection, RoutineCall
from dibs.backends.postgresql.errors import MISSING, Refusal, final, may_be_early, not_taken
from dibs.backends.postgresql.executor import PostgresqlExecutor
from dibs.backends.postgresql.inspect import Onlooker, label
from dibs.backends.postgresql.session_connection import PostgresqlClaim, SessionIo
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.deadline import FIRST_PAUSE, FOREVER, LONGEST_PAUSE
from dibs.core.queue import ELECTION, NOWHERE, ClientIdentity, Leave, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_YES, _NO = b"t", b"f"
_CANCELLED = "57014"
_MOMENT = 0.05
"""Seconds before a refused claim asks once more: see session.sql."""
_POLL_INTERVAL = 1.0
"""Seconds after which a follower of a leader looks again: a session that ends tells nobody."""


class Requests(NamedTuple):
    """The requests for the claims of one lock object."""

    key: int
    take: RoutineCall
    """The key, if it is free."""
    wait: RoutineCall
    """The key, once its turn has come."""
    leave: RoutineCall
    """Give it back."""


Claims = SessionClaims[PostgresqlClaim, PostgresqlConnection]


class SessionQueue(Onlooker):
    def __init__(
        self, executor: PostgresqlExecutor, claims: Claims, subscriber: PostgresqlSubscriber | None, runtime: Runtime,
        me: ClientIdentity,
    ) -> None:  # fmt: skip
        super().__init__(executor, subscriber, runtime, me)
        self.session = me.lease
        self._blocks = runtime.call_soon is None
        self._io = SessionIo(runtime)
        self._claims = claims
        self._is_swept = False

    def take_now(self, claim: Claim, place: Place, until: float) -> Standing | Awaitable[Standing | None] | None:
        claims = self._claims
        connection = None if claim.asked or claims.is_void(claim) else claims.pool.take_idle()
        if connection is None:
            return None
        requests = self._requests(claim)
        statement, values, *_ = requests.take
        if statement.name not in connection.prepared:
            claims.pool.give(connection)
            return None
        one = PostgresqlClaim(claim, requests.key, requests.leave)
        try:
            claims.begin(one)
            connection.claim_id = claim.id
            claim.asked = True
            if not self._blocks:
                self._io.begin(connection, requests.take)
                return self._taken_soon(one, connection, place, until)
            words = connection.ask_now(statement, values, until)
            if one.settle(words, connection.sent_at):
                claims.put_back(one, connection)
                return Standing(claim.ticket or 0, True, self._me.lease, FOREVER, False)
        except Refusal:  # `join` does what helps
            self._undo(one, connection)
            return None
        except BaseException:
            self._undo(one, connection)
            raise
        return self._taken(one, connection, words, place, connection.sent_at)

    async def _taken_soon(
        self, one: PostgresqlClaim, connection: PostgresqlConnection, place: Place, until: float
    ) -> Standing | None:
        try:
            words = await self._io.words(connection, until)
        except Refusal:
            self._undo(one, connection)
            return None
        except BaseException:
            self._undo(one, connection)
            raise
        return self._taken(one, connection, words, place, connection.sent_at)

    def _undo(self, one: PostgresqlClaim, connection: PostgresqlConnection) -> None:
        """With its connection goes what the claim may have: nothing of it is left in the server."""
        self._claims.drop(one, connection)
        self._claims.finish(one.claim)
        one.claim.asked = False

    def _taken(
        self, one: PostgresqlClaim, connection: PostgresqlConnection, words: list[bytes], place: Place, now: float
    ) -> Standing | None:
        """It holds or waits. None: it is refused, and nothing of it is left: `join` finds out why."""
        claims, standing = self._claims, None
        try:
            if one.settle(words, connection.sent_at):
                claims.put_back(one, connection)
                return one.standing(self._me.lease, now)
            if words[1] == b"b":
                standing = one.standing(self._me.lease, now)
                if place is not NOWHERE:
                    self._io.begin(connection, self._requests(one.claim).wait)
                    claims.wait(one, connection)
                    claims.put_back(one, connection)
                    return standing
        except BaseException:
            self._undo(one, connection)
            raise
        claims.finish(one.claim)
        claims.pool.give(connection)  # the claim is not gone: the caller is told that it does not hold
        one.claim.asked = False
        return standing

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        claims, now = self._claims, self._now()
        if claims.is_void(claim):
            return None
        one = claims.find(claim)
        if one is not None:
            self._look(one)
            return one.standing(self._me.lease, now)
        requests = self._requests(claim)
        one = PostgresqlClaim(claim, requests.key, requests.leave)
        try:
            claim.asked = True
            claims.begin(one)
            words, connection = await self._asked(one, requests.take, until)
        except BaseException:
            claims.finish(claim)
            claim.asked = False  # its connection is closed, so nothing of it is left in the server
            raise
        standing = self._taken(one, connection, words, place, now)
        if standing is None:
            raise not_taken(claim, words)
        return standing

    async def _asked(
        self, one: PostgresqlClaim, call: RoutineCall, until: float
    ) -> tuple[list[bytes], PostgresqlConnection]:
        """The reply to `take`, on a connection that is the claim's from then on."""
        pool, pause, made = self._claims.pool, FIRST_PAUSE, False
        while True:
            connection = await pool.take(one.claim, self._runtime, until)
            try:
                words = await self._io.exchange(connection, call, until)
                if may_be_early(words):
                    await self._executor.pause(_MOMENT)
                    words = await self._io.exchange(connection, call, until)
                return words, connection
            except Refusal as refusal:
                pool.drop(connection)  # an error may leave the key with its session
                if refusal.code in MISSING and not made:
                    await self._executor.make(refusal)
                    made = True
                elif refusal.is_crossed() and self._now() + pause < until:
                    await self._executor.pause(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    raise final(refusal) from None
            except BaseException:
                pool.drop(connection)
                raise

    def _requests(self, claim: Claim) -> Requests:
        """Made once for all claims of a lock object."""
        prepared = claim.prepared
        found: Requests | None = None if prepared is None else prepared.request
        if found is None:
            key = self._verbs.key_of(claim.name)
            shared, said = _YES if claim.weight < claim.capacity else _NO, label(claim.description, self._me.lease)
            what = (claim.name.encode(), b"%d" % key, claim.kind.encode(), b"%d" % claim.capacity, shared, said)
            take, wait = (RoutineCall(self._verbs.take, (*what, waits)) for waits in (_NO, _YES))
            leave = RoutineCall(self._verbs.unlock if shared is _NO else self._verbs.unlock_shared, what[1:2])
            if claim.kind == ELECTION:
                leave = RoutineCall(self._verbs.resign, what[:2])
            found = Requests(key, take, wait, leave)
            if prepared is not None:
                prepared.request = found
        return found

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | StoreUnavailable | None]:
        now = self._now()
        found = [self._claims.find(claim) for claim in claims]
        for one in found:
            if one is not None:
                self._look(one)
        asked = [(one, await self._ask(one, until)) for one in found if one is not None]
        silent = {id(one) for one, by in asked if by is not None and not await self._hear(one, by, until)}
        return [None if one is None else _silent() if id(one) in silent else self._said(one, now) for one in found]

    def _look(self, one: PostgresqlClaim) -> None:
        if one.state is WAITS:
            self._me.inbox.deliver_all(self._claims.look(one))

    def _said(self, one: PostgresqlClaim, now: float) -> Standing | None:
        standing = one.standing(self._me.lease, now)
        if standing is None:  # nobody leaves what is gone
            self._claims.finish(one.claim)
        return standing

    async def _ask(self, one: PostgresqlClaim, until: float) -> PostgresqlConnection | None:
        """Its connection, with the request on its way that proves the session. None: it does not hold, or somebody else
        used its connection until then."""
        connection = await self._claims.have(one, self._runtime, until) if one.state is HOLDS else None
        if connection is None or one.pinged is not None:
            return connection
        try:
            one.pinged = self._now()
            connection.begin(RoutineCall(self._verbs.ping, (b"%d" % one.key, b"%d" % (one.claim.ticket or 0))))
        except (psycopg.Error, StoreUnavailable):
            self._claims.drop(one, connection)
            return None
        except BaseException:
            self._claims.drop(one, connection)
            raise
        return connection

    async def _hear(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> bool:
        """False: not yet."""
        try:
            await self._proven(one, connection, until)
        except (Refusal, StoreUnavailable):
            self._claims.drop(one, connection)
            return True
        except BaseException:
            self._claims.drop(one, connection)
            raise
        self._claims.put_back(one, connection)
        return one.pinged is None

    async def _proven(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        """The reply to what was asked last, if one is still owed; if it does not come it may still be waited for."""
        sent_at = one.pinged
        if sent_at is None:
            return
        result = await self._io.arrived(connection, until)
        if result is not None:
            connection.note(result)
            one.anchor, one.pinged = sent_at, None
            one.revoked = one.revoked or result.get_value(0, 1) == _YES

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        one = self._claims.find(claim)
        if one is None or one.shared or weight >= claim.capacity:
            return
        connection = await self._claims.have(one, self._runtime, until)
        if connection is None:
            if one.state is GONE:
                return
            raise _silent()
        try:
            if one.state is HOLDS:
                await self._settled(one, connection, until)
                key = (b"%d" % one.key,)
                await self._io.exchange(connection, RoutineCall(self._verbs.lighten, key), until)
                one.shared, one.leave = True, RoutineCall(self._verbs.unlock_shared, key)
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            self._claims.put_back(one, connection)

    def leave_now(self, claim: Claim, until: float) -> bool | Awaitable[bool | None] | None:
        claims = self._claims
        if not self._blocks:
            asked = self._begin_leaving(claim, answered=True)
            return None if asked is None else self._left_soon(*asked, until)
        one = claims.find(claim)
        if one is None or (connection := one.take()) is None:
            return None
        statement, values, *_ = one.leave
        if statement.name not in connection.prepared or not self._can_leave(one, connection):
            claims.put_back(one, connection)
            return None
        claims.finish(claim)
        try:
            words = connection.ask_now(statement, values, until)
            claims.give_back(one, connection)
            return words[1] == b"1"
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            if one.state is not GONE:  # what was not given back goes with its connection
                claims.drop(one, connection)

    def _can_leave(self, one: PostgresqlClaim, connection: PostgresqlConnection) -> bool:
        """It holds, and no reply is owed. Readable: the server may have ended the connection; `leave` finds out."""
        return one.state is HOLDS and one.pinged is None and not connection.readiness.readable.poll(0)

    async def _left_soon(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> bool:
        try:
            words = await self._io.words(connection, until)
            self._claims.give_back(one, connection)
            return words[1] == b"1"
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            if one.state is not GONE:
                self._claims.drop(one, connection)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        claims = self._claims
        if not answered:
            claims.bury(claim)
        one = claims.find(claim)
        if one is None:
            return False
        connection = await claims.have(one, self._runtime, until)
        claims.finish(claim)  # not before: a caller that was interrupted until then leaves once more
        if connection is None:
            if one.state is GONE:
                return False
            claims.forsake(one)
            raise _silent()
        try:
            if one.state is WAITS:
                await self._cancel_wait(one, connection, until)
                return True
            return await self._give_back(one, connection, until)
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            if one.state is not GONE:  # what was not given back goes with its connection
                claims.drop(one, connection)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        """The statements for claims that hold are all sent first, each on its own connection, and answered then; other
        claims leave one by one."""
        begun = {claim.id: asked for claim, answered in leaving if (asked := self._begin_leaving(claim, answered))}
        done: list[StoreError | None] = []
        try:
            for claim, answered in leaving:
                try:
                    asked = begun.pop(claim.id, None)
                    if asked is None:
                        await self.leave(claim, answered, until)
                    else:
                        await self._left_soon(*asked, until)
                    done.append(None)
                except StoreError as error:
                    done.append(error)
        finally:
            for one, connection in begun.values():
                self._claims.drop(one, connection)
        return done

    def _begin_leaving(self, claim: Claim, answered: bool) -> tuple[PostgresqlClaim, PostgresqlConnection] | None:
        """None: it does not hold, or somebody uses its connection."""
        claims = self._claims
        one = claims.find(claim)
        if one is None or (connection := one.take()) is None:
            return None
        if not self._can_leave(one, connection):
            claims.put_back(one, connection)
            return None
        claims.finish(claim)
        if not answered:
            claims.bury(claim)
        try:
            connection.begin(one.leave)
        except (psycopg.Error, StoreUnavailable):
            claims.drop(one, connection)
            return None
        return one, connection

    async def _settled(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        """Before anything else is asked, the reply that is still owed."""
        await self._proven(one, connection, until)
        if one.pinged is not None:
            connection.close()
            raise _silent()

    async def _give_back(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> bool:
        had_ended = one.pinged is None and connection.is_stale()
        try:
            await self._settled(one, connection, until)
            words = await self._io.exchange(connection, one.leave, until)
        except StoreUnavailable:
            if had_ended:
                return False
            raise
        self._claims.give_back(one, connection)
        return words[1] == b"1"

    async def _cancel_wait(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        """Cancel the statement that waits in the server's queue; it may be granted at that moment. If this fails, the
        caller drops the connection, and the server notices by itself."""
        self._claims.stop_waiting(one, connection)
        conn = connection.conn
        if conn is None:
            return
        with suppress(StoreError):
            await self._executor.ask(RoutineCall(self._verbs.cancel, (b"%d" % conn.backend_pid,)), until)
            try:
                if await self._io.arrived(connection, until) is None:
                    return
            except Refusal as refusal:
                if refusal.code != _CANCELLED:
                    return
            await self._io.exchange(connection, RoutineCall(self._verbs.unlock_all, ()), until)
            self._claims.give_back(one, connection)

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        if not self._is_swept:
            self._is_swept = True
            with suppress(StoreError):  # a waiter has the time
                await self._executor.ask(RoutineCall(self._verbs.sweep, ()), until)
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._executor.follow(self._subscriber, name, 0, self._me.id, key, until)
        info = await self.inspect(name, until)
        if (info.holders[0].token if info.holders else 0) == seen:
            subscriber, over = self._subscriber, min(until, self._now() + _POLL_INTERVAL)
            await (subscriber.hear(key, over) if subscriber is not None else self._me.inbox.wait(key, over))

    async def connect(self, until: float) -> None:
        """Each claim is renewed, and leaves, on its own connection."""


def _silent() -> StoreUnavailable:
    return StoreUnavailable("the server did not answer in time")
