"""Seam 2 in session mode. A claim is a user lock that a session of its own holds, or waits for in the server's line.

What proves that a claim stands is an answer on its own session: `renew` asks on each that holds, all before it reads,
and counts the lease from when it asked. Those that wait are in the middle of a statement: that nothing has come of it
is all that there is to know. Leaving while waiting closes the session: whatever the race, nothing stays behind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

from dibs.backends import ledger
from dibs.backends.common.session_claims import GONE, HOLDS, WAITS, readable_in
from dibs.backends.mysql import schema
from dibs.backends.mysql.answers import MISSING, final, strange
from dibs.backends.mysql.calls import MICROSECONDS, Call, Query, Ready, Request
from dibs.backends.mysql.connection import Dialler
from dibs.backends.mysql.executor import number, words
from dibs.backends.mysql.line import SWEEPS, MysqlLine, mode_mismatch
from dibs.backends.mysql.session import view
from dibs.backends.mysql.session.claim import Asks, Claims, MysqlClaim, ticket_of
from dibs.backends.mysql.session.connection import Session, SessionDialler
from dibs.backends.mysql.session.leaving import Leaving
from dibs.backends.mysql.wire import Refusal
from dibs.core.deadline import FOREVER
from dibs.core.line import NOWHERE, Me, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo

_WAIT = 31_536_000
"""Seconds: the server waits no longer."""
_TIMES = 3
"""How often tables are made for one question."""
_ASKS = 1024
"""Locks for which what is asked is kept, ready made."""
_NAP = 0.001
_GLANCE = 0.25
"""How often who watches a leader looks."""
_TAKE = (
    "/*M!100600 UPDATE dibs_sessions SET session = CONNECTION_ID(), ticket = LAST_INSERT_ID(IF(NEXTVAL(dibs_tickets) >="
    " TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 200000, LASTVAL(dibs_tickets), 0)),"
    " kind = {2}, revoked = 0, since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), lease = {3},"
    " about = {4} WHERE lock_name = {0} AND plain AND GET_LOCK({0}, 0) */ /*!80000 DO 0 */"
)
"""See apart.sql and ticket.sql; where the counter is behind the clock, or has no sequence, the routine takes."""
_GIVE = "DO RELEASE_LOCK({})"
"""Only the session that has it can do so: if it answers, it had it until then."""
_ALIVE = (
    "SELECT CONCAT_WS(' ', CONNECTION_ID(),"
    " IFNULL((SELECT revoked FROM dibs_sessions WHERE lock_name = {} AND session = CONNECTION_ID()), 0))"
)
_HOLDER = "SELECT IFNULL(IS_USED_LOCK({}), 0)"
BUSY = Standing(0, False, 0.0, FOREVER, False)


class SessionLine:
    """See core/line.py."""

    def __init__(
        self, leased: MysqlLine, sessions: SessionDialler, claims: Claims, dialler: Dialler, runtime: Runtime, me: Me
    ) -> None:
        """`leased`: the line in tables of the same store."""
        self._leased = leased
        self._port = leased.port
        self._sessions = sessions
        self._claims = claims
        self._dialler = dialler
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._asks: dict[tuple[str, str, str, int], Asks] = {}
        self._sure = 0
        """Tickets below this are never given again, not even after a crash of the server (sure.sql)."""
        self._blocks = runtime.soon is None
        self._readable = readable_in(runtime)

    def take_now(self, claim: Claim, place: Place, until: float) -> None:
        """There is no free path yet."""

    def leave_now(self, claim: Claim, until: float) -> None:
        """There is no free path yet."""

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        if self._claims.is_void(claim):
            return None
        one = self._claims.find(claim)
        if one is not None:
            await self._look(one, until)
            return one.standing(self._me.lease, self._now())
        for _ in range(_TIMES):
            try:
                return await self._take(claim, place, until)
            except Refusal as refusal:
                if refusal.code not in MISSING:
                    raise final(refusal) from None
                await self._runtime.offload(lambda: schema.create(self._dialler, until))
        raise strange()

    async def _take(self, claim: Claim, place: Place, until: float) -> Standing | None:
        """It holds or waits then, or is finished."""
        claims = self._claims
        session = await claims.pool.take(claim, self._runtime, until)
        one = MysqlClaim(claim, self._asks_for(claim))
        try:
            claim.asked = True
            claims.begin(one)
            one.seen_at = self._now()
            said = await self._take_free(session, one.asks.take, until)
            if said is None:
                wait = 0 if place is NOWHERE else _WAIT
                call = Call("take", (one.asks.key, wait, *self._words(claim), self._sure))
                said = await self._exchange(session, call, until)
                if said[1] == b"held" and len(said) > 3:
                    self._sure = max(self._sure, number(said[3]))
            if said[1] == b"held":
                one.hold(said)
                claims.put_back(one, session)
            elif session.asked:
                one.ticket = ticket_of(said)
                self._me.inbox.listen(claims)
                claims.wait(one, session)
                claims.put_back(one, session)
        except BaseException:
            claims.finish(claim)
            claims.drop(one, session)
            raise
        if said[1] in (b"held", b"waits"):
            return one.standing(self._me.lease, self._now())
        claims.finish(claim)
        claims.pool.give(session)
        if said[1] == b"busy":
            return BUSY
        kind = bytes.fromhex(said[2].decode()).decode(errors="replace") if len(said) > 2 else ""
        raise _mismatch(said[1], kind, claim)

    def _words(self, claim: Claim) -> tuple[bytes, str, int, bytes]:
        about, lease = view.about_of(claim), int(self._me.lease * MICROSECONDS)
        return self._leased.key(claim.name), view.kind_of(claim), lease, about

    def _asks_for(self, claim: Claim) -> Asks:
        """Made once for all claims of a lock."""
        of = (claim.name, claim.about, claim.kind, claim.capacity)
        asks = self._asks.get(of)
        if asks is None:
            if len(self._asks) >= _ASKS:
                self._asks.clear()
            key = self._lock_name(claim.name)
            asks = Asks(key, Ready(Query(_TAKE, key, *self._words(claim))), Ready(Query(_GIVE, key)))
            self._asks[of] = asks
        return asks

    async def _take_free(self, session: Session, request: Request, until: float) -> list[bytes] | None:
        """Most takes: it is free, and was had in this mode lately. None: it is not so."""
        await self._whole(session, request, until)
        answer = session.answer()
        if not answer.changed or not answer.made:
            return None
        if answer.made >= self._sure:
            said = words(await self._port.ask(Call("reserve", (answer.made,)), until), 2)
            self._sure = max(self._sure, number(said[1]))
            if answer.made >= self._sure:  # the counter was reset in this very moment
                return None
        return [b"", b"held", b"%d" % answer.made]

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Standing | StoreUnavailable | None]:
        known = [self._claims.find(claim) for claim in claims]
        asked: list[tuple[MysqlClaim, Session]] = []
        for one in known:
            if one is not None:
                self._tell(one)
                if one.state is HOLDS and (session := self._asked(one)) is not None:
                    asked.append((one, session))
        silent = {id(one) for one, session in asked if not await self._answered(one, session, until)}
        if silent and len(silent) == len(known):
            raise StoreUnavailable("the server did not answer in time")
        now = self._now()
        found: list[Standing | StoreUnavailable | None] = []
        for one in known:
            if one is not None and id(one) in silent:
                found.append(StoreUnavailable("the server did not answer in time"))
                continue
            found.append(None if one is None else one.standing(self._me.lease, now))
            if one is not None and found[-1] is None:  # nobody leaves what is gone
                self._claims.finish(one.claim)
                self._claims.forsake(one)
        return found

    def _asked(self, one: MysqlClaim) -> Session | None:
        """Its session, asked whether it is there; None: somebody else uses it, or it is not."""
        session = one.take()
        if session is None:
            return None
        try:
            if session.told() is not None and session.read():
                session.answer()
            if not session.asked:  # a reply that is still on its way will do
                session.ask(Query(_ALIVE, one.asks.key), self._now())
        except (StoreError, Refusal):
            self._claims.drop(one, session)
            return None
        return session

    async def _answered(self, one: MysqlClaim, session: Session, until: float) -> bool:
        """False: not yet. The reply counts from when it was asked for, whenever it comes."""
        try:
            while not session.read():
                if not await self._readable(session, until):
                    self._claims.put_back(one, session)
                    return False
            one.revoked = session.result()[1] == b"1"
            one.seen_at = max(one.seen_at, session.sent_at)
            self._claims.put_back(one, session)
        except (StoreError, Refusal):
            self._claims.drop(one, session)
        except BaseException:
            self._claims.drop(one, session)
            raise
        return True

    async def _look(self, one: MysqlClaim, until: float) -> None:
        """At one that waits, also in the server: a reply that is on its way is waited for."""
        self._tell(one)
        mine = {session.number for session in one.free}
        if mine and one.state is WAITS:
            (found,) = await self._port.ask(Query(_HOLDER, one.asks.key), until)
            while number(found[0][0]) in mine and self._now() < until:
                self._tell(one)
                if one.state is not WAITS:
                    break
                await self._runtime.sleep(_NAP)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        """Nothing here has a weight."""

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        claims = self._claims
        if not answered:
            claims.bury(claim)
        one = claims.find(claim)
        if one is None:
            return False
        claims.look(one)
        session = await claims.have(one, self._runtime, until)
        claims.finish(claim)  # not before: a caller that was interrupted until then leaves once more
        if session is None:
            is_gone = one.state is GONE
            claims.forsake(one)
            return not is_gone
        if one.state is HOLDS:
            return await self._drop(one, session, until)
        claims.drop(one, session)
        await self._quit([(session.number, one.ticket)], until)
        return True

    async def leave_all(self, leaving: Sequence[tuple[Claim, bool]], until: float) -> list[StoreError | None]:
        found: list[StoreError | None] = [None] * len(leaving)
        those = Leaving(self._claims)
        try:
            for position, (claim, answered) in enumerate(leaving):
                those.tell(position, claim, answered, self._now())
            while those.told:
                position, session = those.told[-1]
                found[position] = await self._given(session, until)
                those.told.pop()
        except BaseException:
            those.abandon()
            raise
        if those.waits:
            await self._quit(those.waits, until)
        for position in those.rest:
            try:
                await self.leave(*leaving[position], until)
            except StoreError as error:
                found[position] = error
        await self._leased.sweep(SWEEPS * len(leaving))
        return found

    async def _given(self, session: Session, until: float) -> StoreUnavailable | None:
        """Read that a user lock was given back."""
        pool = self._claims.pool
        try:
            while not session.read():
                if not await self._readable(session, until):
                    pool.drop(session)
                    return StoreUnavailable("the server did not answer in time; the session was closed")
            session.answer()
        except (StoreError, Refusal):  # it ended before it could be given back
            pool.drop(session)
        else:
            pool.give(session)
        return None

    async def _quit(self, waits: list[tuple[int, int]], until: float) -> None:
        """End what the sessions of waiters, which are closed here, do in the server."""
        with suppress(StoreError):  # then the server sees it by itself, within a second
            await self._port.ask_once(Call("quit", (json.dumps(waits),)), until)

    async def _drop(self, one: MysqlClaim, session: Session, until: float) -> bool:
        try:
            await self._whole(session, one.asks.give, until)
            session.answer()
        except TimeoutError:
            self._claims.drop(one, session)
            raise StoreUnavailable("the server did not answer in time; the session was closed") from None
        except (StoreError, Refusal):  # it ended before it could be given back
            self._claims.drop(one, session)
            return False
        except BaseException:
            self._claims.drop(one, session)
            raise
        self._claims.give_back(one, session)
        await self._leased.sweep(SWEEPS)
        return True

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def line(self, name: str, until: float) -> LockInfo:
        found = await view.line(self._port, self._leased.key(name), name, until)
        return found if found.holders or found.waiters else await self._leased.line(name, until)

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        start = self._leased.key(after) if after else b""
        return await view.page(self._port, self._leased.key(""), self._leased.key(prefix), start, until)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return 0 <= token < 2**63 and await view.revoke(self._port, self._leased.key(name), token, until)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return 0 <= token < 2**63 and await view.evict(self._port, self._leased.key(name), token, until)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        holders = (await self.line(name, until)).holders
        if (holders[0].token if holders else 0) == seen:
            await self._me.inbox.wait(key, min(until, self._now() + _GLANCE))

    async def identity(self, until: float) -> str:
        return await self._leased.identity(until)

    async def doctor(self, until: float) -> list[Finding]:
        return await self._leased.doctor(until)

    async def connect(self, until: float) -> None:
        """Each claim is renewed, and leaves, on its own connection."""

    def round_trip(self) -> float:
        return self._leased.round_trip()

    def close(self) -> None:
        self._leased.close()

    def _lock_name(self, name: str) -> str:
        """As key.sql has it."""
        return f"dibs{sha256(self._sessions.database + b'/' + self._leased.key(name)).hexdigest()[:60]}"

    def _tell(self, one: MysqlClaim) -> None:
        self._me.inbox.deliver_all(self._claims.look(one))

    async def _exchange(self, session: Session, request: Request, until: float) -> list[bytes]:
        """The words of the answer, or those that one begins with whose rest comes after a wait."""
        begun = await self._whole(session, request, until)
        return session.result() if begun is None else begun

    async def _whole(self, session: Session, request: Request, until: float) -> list[bytes] | None:
        now = self._now()
        trip = self._dialler.round_trip
        until = min(max(until, now + trip.least), now + trip.attempt)
        while session.asked:  # what is left of an answer that told enough, or a renewal that was not waited for
            if session.read():
                session.answer()
            elif not await self._readable(session, until):
                raise _Silent("the server did not answer in time")
        session.ask(request, now)
        while session.readiness.wait(until - self._now()) if self._blocks else await self._readable(session, until):
            if session.read():
                return None
            begun = session.begun()
            if begun is not None and begun[1] == b"waits":
                return begun
        raise _Silent("the server did not answer in time")


class _Silent(StoreUnavailable, TimeoutError):
    """Nothing came in time."""


def _mismatch(what: bytes, kind: str, claim: Claim) -> Mismatch:
    if what == b"other":
        return ledger.mismatch(*view.sized(kind), claim)
    if what == b"within":
        return mode_mismatch("within")
    if what != b"leased":
        raise strange()
    return mode_mismatch("lease")
