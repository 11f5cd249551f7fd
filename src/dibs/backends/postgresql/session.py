"""The queue in session mode: a claim is an advisory lock of its own connection, and waiters queue in the server.

A join that finds the name taken leaves its connection waiting in the server's queue; the server replies when the lock
is granted. A waiter that gives up cancels that statement. A reply that took long counts only after a later reply
confirms it. `renew` sends a small request on each connection that holds: its reply proves that the session, and so the
lock, existed when the request was sent. A lost connection is a lost lock. `fair=False` waiters are in the queue too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress

from dibs.backends.common.session_claims import GONE, HOLDS, WAITS, SessionClaims
from dibs.backends.postgresql.connection import PostgresqlConnection, RoutineCall
from dibs.backends.postgresql.errors import MISSING, Refusal, final, may_be_early, not_taken
from dibs.backends.postgresql.executor import PostgresqlExecutor
from dibs.backends.postgresql.inspect import Inspection, label
from dibs.backends.postgresql.session_connection import PostgresqlClaim, Requests, SessionIo
from dibs.core.deadline import FIRST_PAUSE, FOREVER, LONGEST_PAUSE
from dibs.core.queue import ELECTION, NOWHERE, Leave, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_CANCELLED = "57014"
_MOMENT = 0.05
"""Seconds before a refused claim asks once more: see session.sql."""
_FOLLOW_INTERVAL = 1.0
"""Seconds between two polls of a leader's follower: a session that ends sends no message."""

Claims = SessionClaims[PostgresqlClaim, PostgresqlConnection]


class SessionQueue(Inspection):
    def __init__(self, executor: PostgresqlExecutor, claims: Claims, runtime: Runtime) -> None:
        super().__init__(executor)
        self._runtime = runtime
        self.session = self._me.lease
        self._blocks = runtime.call_soon is None
        self._io = SessionIo(runtime)
        self._claims = claims
        self._has_swept = False

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
        one = PostgresqlClaim(claim, requests)
        try:
            claims.begin(one)
            connection.claim_id = claim.id
            claim.asked = True
            if not self._blocks:
                self._io.begin(connection, requests.take)
                return self._taken_soon(one, connection, place, until)
            words = connection.ask_now(statement, values, until)
            if one.read_take(words, connection.sent_at):
                claims.put_back(one, connection)
                return Standing(claim.ticket or 0, True, self._me.lease, FOREVER, False)
        except BaseException as error:
            self._undo(one, connection)
            if isinstance(error, Refusal):  # `join` handles the reason
                return None
            raise
        return self._taken(one, connection, words, place, connection.sent_at)

    async def _taken_soon(
        self, one: PostgresqlClaim, connection: PostgresqlConnection, place: Place, until: float
    ) -> Standing | None:
        try:
            words = await self._io.words(connection, until)
        except BaseException as error:
            self._undo(one, connection)
            if isinstance(error, Refusal):
                return None
            raise
        return self._taken(one, connection, words, place, connection.sent_at)

    def _undo(self, one: PostgresqlClaim, connection: PostgresqlConnection) -> None:
        """Close the connection, so that nothing of the claim is left in the server."""
        self._claims.drop(one, connection)
        self._claims.finish(one.claim)
        one.claim.asked = False

    def _taken(
        self, one: PostgresqlClaim, connection: PostgresqlConnection, words: list[bytes], place: Place, now: float
    ) -> Standing | None:
        """Read the reply of `take`. None: the claim is refused, and nothing of it is left in the server."""
        claims, standing = self._claims, None
        try:
            if one.read_take(words, connection.sent_at):
                claims.put_back(one, connection)
                return one.standing(self._me.lease, now)
            if words[1] == b"b":
                standing = one.standing(self._me.lease, now)
                if place is not NOWHERE:
                    self._io.begin(connection, one.requests.wait)
                    claims.wait(one, connection)
                    claims.put_back(one, connection)
                    return standing
        except BaseException:
            self._undo(one, connection)
            raise
        claims.finish(one.claim)
        claims.pool.give(connection)  # the claim is not gone, it does not hold
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
        one = PostgresqlClaim(claim, requests)
        try:
            claim.asked = True
            claims.begin(one)
            words, connection = await self._asked(one, requests.take, until)
        except BaseException:
            claims.finish(claim)
            claim.asked = False  # its connection was closed
            raise
        standing = self._taken(one, connection, words, place, now)
        if standing is None:
            raise not_taken(claim, words)
        return standing

    async def _asked(
        self, one: PostgresqlClaim, call: RoutineCall, until: float
    ) -> tuple[list[bytes], PostgresqlConnection]:
        """Send `take` on a new connection for the claim, until the server does not refuse it."""
        pool, pause, is_created = self._claims.pool, FIRST_PAUSE, False
        while True:
            connection = await pool.take(one.claim, self._runtime, until)
            try:
                words = await self._io.exchange(connection, call, until)
                if may_be_early(words):
                    await self._executor.pause(_MOMENT)
                    words = await self._io.exchange(connection, call, until)
                return words, connection
            except Refusal as refusal:
                pool.drop(connection)  # the session may have kept the key
                if refusal.code in MISSING and not is_created:
                    await self._executor.create(refusal)
                    is_created = True
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
            routines, key, is_shared = self._routines, self._routines.key_of(claim.name), claim.weight < claim.capacity
            said = label(claim.description, self._me.lease)
            what = (claim.name, key, claim.kind, claim.capacity, is_shared, said)
            leave = RoutineCall.of(routines.unlock_shared if is_shared else routines.unlock, key)
            if claim.kind == ELECTION:
                leave = RoutineCall.of(routines.resign, claim.name, key)
            take, wait = (RoutineCall.of(routines.take, *what, waits) for waits in (False, True))
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
        pinged = [(one, await self._ping(one, until)) for one in found if one is not None]
        silent = {id(one) for one, by in pinged if by is not None and not await self._hear(one, by, until)}
        return [None if one is None else _silent() if id(one) in silent else self._standing(one, now) for one in found]

    def _look(self, one: PostgresqlClaim) -> None:
        if one.state is WAITS:
            self._me.inbox.deliver_all(self._claims.look(one))

    def _standing(self, one: PostgresqlClaim, now: float) -> Standing | None:
        standing = one.standing(self._me.lease, now)
        if standing is None:  # `leave` is not called for a claim that is gone
            self._claims.finish(one.claim)
        return standing

    async def _ping(self, one: PostgresqlClaim, until: float) -> PostgresqlConnection | None:
        """Send the request that proves the session. None: the claim does not hold, or another caller used its
        connection until then."""
        connection = await self._claims.have(one, self._runtime, until) if one.state is HOLDS else None
        if connection is None or one.pinged is not None:
            return connection
        try:
            one.pinged = self._now()
            self._io.begin(connection, RoutineCall.of(self._routines.ping, one.requests.key, one.claim.ticket or 0))
        except BaseException as error:
            self._claims.drop(one, connection)
            if isinstance(error, StoreUnavailable):
                return None
            raise
        return connection

    async def _hear(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> bool:
        """Read the reply to the ping. False: it has not arrived."""
        try:
            await self._read_ping(one, connection, until)
        except BaseException as error:
            self._claims.drop(one, connection)
            if isinstance(error, (Refusal, StoreUnavailable)):
                return True
            raise
        self._claims.put_back(one, connection)
        return one.pinged is None

    async def _read_ping(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        """Read the reply to a ping that was sent. If it does not arrive, a later call may wait for it."""
        sent_at = one.pinged
        if sent_at is None:
            return
        result = await self._io.arrived(connection, until)
        if result is not None:
            connection.note(result)
            one.anchor, one.pinged = sent_at, None
            one.revoked = one.revoked or result.get_value(0, 1) == b"t"

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
                await self._finish_ping(one, connection, until)
                key = one.requests.key
                await self._io.exchange(connection, RoutineCall.of(self._routines.lighten, key), until)
                one.shared, one.leave = True, RoutineCall.of(self._routines.unlock_shared, key)
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
            if one.state is not GONE:  # the key is released with its connection
                claims.drop(one, connection)

    def _can_leave(self, one: PostgresqlClaim, connection: PostgresqlConnection) -> bool:
        """Whether it holds and no reply is due. If the connection is readable, the server may have ended it: `leave`
        finds out."""
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
        claims.finish(claim)  # only now: an interrupted caller leaves again
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
            if one.state is not GONE:  # the key is released with its connection
                claims.drop(one, connection)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        """First send the requests of all claims that hold, each on its own connection; then read the replies. Other
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
        """Send the request to leave. None: the claim does not hold, or another caller uses its connection."""
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
            self._io.begin(connection, one.leave)
        except StoreUnavailable:
            claims.drop(one, connection)
            return None
        return one, connection

    async def _finish_ping(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        """Read the reply that is still due, before the next request."""
        await self._read_ping(one, connection, until)
        if one.pinged is not None:
            connection.close()
            raise _silent()

    async def _give_back(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> bool:
        had_ended = one.pinged is None and connection.is_stale()
        try:
            await self._finish_ping(one, connection, until)
            words = await self._io.exchange(connection, one.leave, until)
        except StoreUnavailable:
            if had_ended:
                return False
            raise
        self._claims.give_back(one, connection)
        return words[1] == b"1"

    async def _cancel_wait(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        """Cancel the statement that waits in the server's queue; it may be granted at that moment. If this fails, the
        caller drops the connection, and the server ends the session."""
        self._claims.stop_waiting(one, connection)
        conn = connection.conn
        if conn is None:
            return
        with suppress(StoreError):
            await self._executor.ask_once(RoutineCall.of(self._routines.cancel, conn.backend_pid), until)
            try:
                if await self._io.arrived(connection, until) is None:
                    return
            except Refusal as refusal:
                if refusal.code != _CANCELLED:
                    return
            await self._io.exchange(connection, RoutineCall.of(self._routines.unlock_all), until)
            self._claims.give_back(one, connection)

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        if not self._has_swept:
            self._has_swept = True
            with suppress(StoreError):
                await self._executor.ask_once(RoutineCall.of(self._routines.sweep), until)
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        executor = self._executor
        which = (name, executor.floors.of(name))
        _, hears = await executor.watch(self._routines.follow, which, 0, key, until)  # no lease: the first ticket is 0
        info = await self.inspect(name, until)
        if (info.holders[0].token if info.holders else 0) == seen:
            await executor.hear(key, hears, min(until, self._now() + _FOLLOW_INTERVAL))

    async def connect(self, until: float) -> None:
        """Does nothing: each claim is renewed, and leaves, on its own connection."""


def _silent() -> StoreUnavailable:
    return StoreUnavailable("the server did not answer in time")
