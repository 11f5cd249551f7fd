"""Seam 2 in session mode: a claim is an advisory lock of a connection of its own, and the server's queue is the line.

A join that finds the name taken leaves its connection waiting in that queue; the server replies when its turn has come.
A waiter that gives up has the statement cancelled. A reply that was long on its way counts once the server has replied
again. `renew` asks something small on each connection that holds: a reply proves that the session, and with it the
lock, was there after it was asked. A connection that is lost is a lock that is lost. There are no places outside the
queue: a waiter with `fair=False` is in it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import psycopg

from dibs.backends import ledger
from dibs.backends.common.session_claims import GONE, HOLDS, WAITS, SessionClaims
from dibs.backends.postgresql import view
from dibs.backends.postgresql.answers import MISSING, Refusal, final, strange
from dibs.backends.postgresql.connection import Call, PostgresqlConnection, broken
from dibs.backends.postgresql.executor import PostgresqlExecutor, words_of
from dibs.backends.postgresql.session_claim import PostgresqlClaim
from dibs.backends.postgresql.session_connection import SessionIo
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE
from dibs.core.line import NOWHERE, Leave, Me, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import DibsError, Mismatch, StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo, printable

_YES, _NO = b"t", b"f"
_CANCELLED = "57014"
_LEASED = b"lease"
_ASKS = 1024
"""Locks for which what is asked is kept, ready made."""
_MOMENT = 0.05
"""Seconds before somebody who is refused asks once more: see session.sql."""
_GLANCE = 1.0
"""Seconds after which somebody who follows a leader looks again: a session that ends tells nobody."""


class Asks(NamedTuple):
    """The requests for a claim."""

    take: Call
    """The key, if it is free."""
    wait: Call
    """The key, once its turn has come."""


Claims = SessionClaims[PostgresqlClaim, PostgresqlConnection]


class SessionLine:
    def __init__(
        self, port: PostgresqlExecutor, claims: Claims, subscriber: PostgresqlSubscriber | None, runtime: Runtime,
        me: Me,
    ) -> None:  # fmt: skip
        self._port = port
        self._verbs = port.routines
        self._io = SessionIo(runtime)
        self._claims = claims
        self._subscriber = subscriber
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._asks: dict[tuple[str, str, int, bool, str], Asks] = {}
        self._is_swept = False

    def take_now(self, claim: Claim, place: Place, until: float) -> None:
        """There is no free path yet."""

    def leave_now(self, claim: Claim, until: float) -> None:
        """There is no free path yet."""

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        claims, now = self._claims, self._now()
        if claims.is_void(claim):
            return None
        one = claims.find(claim)
        if one is not None:
            self._look(one)
            return one.standing(self._me.lease, now)
        one = PostgresqlClaim(claim, self._verbs.key_of(claim.name))
        try:
            claim.asked = True
            claims.begin(one)
            await self._take(one, place, until)
        except BaseException:
            claims.finish(claim)
            claim.asked = False  # its connection is closed, so nothing of it is left in the server
            raise
        return one.standing(self._me.lease, now)

    async def _take(self, one: PostgresqlClaim, place: Place, until: float) -> None:
        """It holds or waits then, or is finished."""
        claims, claim = self._claims, one.claim
        words, connection = await self._asked(one, until)
        try:
            if one.settle(words, connection.sent_at):
                claims.put_back(one, connection)
                return
            if words[1] == b"b" and place is not NOWHERE:
                connection.begin(self._asks_for(one).wait)
                claims.wait(one, connection)
                claims.put_back(one, connection)
                return
        except psycopg.Error as error:
            claims.drop(one, connection)
            raise broken(error) from None
        except BaseException:
            claims.drop(one, connection)
            raise
        claims.finish(claim)
        claims.pool.give(connection)  # the claim is not gone: the caller is told that it does not hold
        claim.asked = False
        if words[1] != b"b":
            raise _refused(claim, words)

    async def _asked(self, one: PostgresqlClaim, until: float) -> tuple[list[bytes], PostgresqlConnection]:
        """The reply to `take`, on a connection that is the claim's from then on."""
        pool, pause, made, call = self._claims.pool, FIRST_PAUSE, False, self._asks_for(one).take
        while True:
            connection = await pool.take(one.claim, self._runtime, until)
            try:
                words = words_of(await self._io.exchange(connection, call, until))
                if _may_be_early(words):
                    await self._port.pause(_MOMENT)
                    words = words_of(await self._io.exchange(connection, call, until))
                return words, connection
            except Refusal as refusal:
                pool.drop(connection)  # an error may leave the key with its session
                if refusal.code in MISSING and not made:
                    await self._port.make(refusal)
                    made = True
                elif refusal.is_crossed() and self._now() + pause < until:
                    await self._port.pause(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    raise final(refusal) from None
            except BaseException:
                pool.drop(connection)
                raise

    def _asks_for(self, one: PostgresqlClaim) -> Asks:
        """Made once for all claims of a lock."""
        claim = one.claim
        of = (claim.name, claim.kind, claim.capacity, one.shared, claim.about)
        asks = self._asks.get(of)
        if asks is None:
            if len(self._asks) >= _ASKS:
                self._asks.clear()
            verbs, key, shared = self._verbs, b"%d" % one.key, _YES if one.shared else _NO
            label = view.label(claim.about, self._me.lease)
            name, kind, capacity = claim.name.encode(), claim.kind.encode(), b"%d" % claim.capacity
            take, wait = ((name, key, kind, capacity, shared, label, waits) for waits in (_NO, _YES))
            asks = self._asks[of] = Asks(Call(verbs.take, take), Call(verbs.take, wait))
        return asks

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
            connection.begin(Call(self._verbs.ping, (b"%d" % one.key, b"%d" % (one.claim.ticket or 0))))
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
                await self._io.exchange(connection, Call(self._verbs.lighten, (b"%d" % one.key,)), until)
                one.shared = True
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            self._claims.put_back(one, connection)

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
                        await self._end_leaving(*asked, until)
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
        if one.state is not HOLDS or one.pinged is not None:
            claims.put_back(one, connection)
            return None
        claims.finish(claim)
        if not answered:
            claims.bury(claim)
        try:
            connection.begin(self._unlocking(one))
        except (psycopg.Error, StoreUnavailable):
            claims.drop(one, connection)
            return None
        return one, connection

    async def _end_leaving(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        try:
            result = await self._io.arrived(connection, until)
            if result is None:
                raise _silent()
            connection.note(result)
            self._claims.give_back(one, connection)
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            if one.state is not GONE:  # what was not given back goes with its connection
                self._claims.drop(one, connection)

    async def _settled(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        """Before anything else is asked, the reply that is still owed."""
        await self._proven(one, connection, until)
        if one.pinged is not None:
            connection.close()
            raise _silent()

    async def _give_back(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> bool:
        if one.state is WAITS:
            await self._withdraw(one, connection, until)
            return True
        had_ended = one.pinged is None and connection.is_stale()
        try:
            await self._settled(one, connection, until)
            result = await self._io.exchange(connection, self._unlocking(one), until)
        except StoreUnavailable:
            if had_ended:
                return False
            raise
        self._claims.give_back(one, connection)
        return (result.get_value(0, result.nfields - 1) or b"")[-1:] in (_YES, b"1")

    def _unlocking(self, one: PostgresqlClaim) -> Call:
        key = b"%d" % one.key
        if one.claim.kind == "election":
            return Call(self._verbs.resign, (one.claim.name.encode(), key))
        return Call(self._verbs.unlock_shared if one.shared else self._verbs.unlock, (key,))

    async def _withdraw(self, one: PostgresqlClaim, connection: PostgresqlConnection, until: float) -> None:
        """Cancel what it waits for; it may have been granted in that moment. If that cannot be done, the connection is
        closed, which the server notices by itself."""
        self._claims.stop_waiting(one, connection)
        conn = connection.conn
        if conn is None:
            return
        with suppress(StoreError):
            await self._port.ask(Call(self._verbs.cancel, (b"%d" % conn.backend_pid,)), until)
            try:
                if await self._io.arrived(connection, until) is None:
                    return
            except Refusal as refusal:
                if refusal.code != _CANCELLED:
                    return
            await self._io.exchange(connection, Call(self._verbs.unlock_all, ()), until)
            self._claims.give_back(one, connection)

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        if not self._is_swept:
            self._is_swept = True
            with suppress(StoreError):  # a waiter has the time
                await self._port.ask(Call(self._verbs.sweep, ()), until)
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def line(self, name: str, until: float) -> LockInfo:
        return await view.line(self._port, name, until)

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        return await view.lines(self._port, prefix, after, until)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await view.revoke(self._port, name, token, until)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return await view.evict(self._port, name, token, until)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._port.follow(self._subscriber, name, 0, self._me.id, key, until)
        info = await self.line(name, until)
        if (info.holders[0].token if info.holders else 0) == seen:
            subscriber, over = self._subscriber, min(until, self._now() + _GLANCE)
            await (subscriber.hear(key, over) if subscriber is not None else self._me.inbox.wait(key, over))

    async def identity(self, until: float) -> str:
        return await self._port.identity(until)

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.postgresql.doctor import examine  # noqa: PLC0415  (few programs ask)

        wall = datetime.now(UTC).timestamp()
        return await examine(self._port, self._subscriber, self._runtime, wall, until, self._me.lease)

    async def connect(self, until: float) -> None:
        """Each claim is renewed, and leaves, on its own connection."""

    def round_trip(self) -> float:
        return self._port.round_trip()

    def close(self) -> None:
        self._port.close()


def _silent() -> StoreUnavailable:
    return StoreUnavailable("the server did not answer in time")


def _may_be_early(words: Sequence[bytes]) -> bool:
    """Refused because of the row of the key, which whoever has just taken it may not have written yet."""
    return words[1] in (b"m", b"x") and words[-1] != _LEASED


def _refused(claim: Claim, words: Sequence[bytes]) -> DibsError:
    if words[1] == b"x":
        other = printable(b" ".join(words[2:]).decode(errors="replace"))
        return StoreError(
            f'busy under another name with the same 64-bit key: "{other}"', step="give one of them another name"
        )
    if words[1] != b"m" or len(words) < 4 or not words[2].isdigit():
        return strange()
    if words[3:] == [_LEASED]:
        return leased()
    return ledger.mismatch(b" ".join(words[3:]).decode(errors="replace"), int(words[2]), claim)


def leased() -> Mismatch:
    return Mismatch(
        'held or asked for by a lease (mode="lease"), not by a connection or a transaction',
        step="use one mode for one name, or wait until its queue is empty",
    )
