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

from dibs.backends.common.session_claims import ASKS, GONE, HOLDS, WAITS, readable_in
from dibs.backends.mysql import schema
from dibs.backends.mysql.calls import MICROSECONDS, Packed, Query, Request, RoutineCall
from dibs.backends.mysql.connection import Dialler, Silent
from dibs.backends.mysql.errors import MISSING, final, strange
from dibs.backends.mysql.executor import number
from dibs.backends.mysql.queue import SWEEPS, TAKEN, MysqlQueue
from dibs.backends.mysql.session import inspect
from dibs.backends.mysql.session.claims import Asks, Claims, Leaving, MysqlClaim, ticket_of
from dibs.backends.mysql.session.connection import Session, SessionDialler
from dibs.backends.mysql.wire import Refusal
from dibs.core.deadline import FOREVER
from dibs.core.queue import NOWHERE, ClientIdentity, Left, Place, Signal, Taken, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo

_WAIT = 31_536_000
"""Seconds: the server waits no longer."""
_TIMES = 3
"""How often tables are made for one question."""
_NAP = 0.001
_POLL_INTERVAL = 0.25
"""How often who watches a leader looks."""
_ALIVE = (
    "SELECT CONCAT_WS(' ', CONNECTION_ID(),"
    " IFNULL((SELECT revoked FROM dibs_sessions WHERE lock_name = {} AND session = CONNECTION_ID()), 0))"
)
_HOLDER = "SELECT IFNULL(IS_USED_LOCK({}), 0)"
BUSY = Standing(0, False, 0.0, FOREVER, False)


class SessionQueue:
    """See core/queue.py."""

    def __init__(
        self,
        leased: MysqlQueue,
        sessions: SessionDialler,
        claims: Claims,
        dialler: Dialler,
        runtime: Runtime,
        me: ClientIdentity,
    ) -> None:
        """`leased`: the queue in tables of the same store."""
        self._leased = leased
        self._executor = leased.executor
        self._sessions = sessions
        self._claims = claims
        self._dialler = dialler
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._left = 0
        """How many left by `leave_now` since the last `leave`, which sweeps for them too."""
        self._sure = 0
        """Tickets below this are never given again, not even after a crash of the server (sure.sql)."""
        self._blocks = runtime.call_soon is None
        self._readable = readable_in(runtime)

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken:
        """Take a free user lock by one statement. Where it is not free, `join` goes on with the same session."""
        claims = self._claims
        if not self._sessions.database or claims.is_void(claim):
            return None
        asks = self._asks_for(claim)
        if asks.is_busy or (session := claims.pool.take_idle()) is None:
            return None
        link = session.connection
        if not link.take_code:
            claims.pool.give(session)
            return None
        one = MysqlClaim(claim, asks)
        try:
            session.claim_id = claim.id
            claim.asked = True
            claims.begin(one)
            one.seen_at = self._now()
            packed = b"".join((asks.take_size, link.take_code, asks.take))
            if not self._blocks:
                session.ask(Packed(packed), one.seen_at)
                return self._taken_soon(one, session, until)
            reply = link.trip(packed, until)
            if reply[4]:
                raise Refusal(int.from_bytes(reply[5:7], "little"), "")
            made = int.from_bytes(reply[7:15], "little") if reply[4:7] == TAKEN else 0
            return self._taken(one, session, made, is_busy=not reply[5])
        except BaseException as error:
            claims.finish(claim)
            claims.drop(one, session)
            if isinstance(error, Refusal):  # `join` is told why
                return None
            raise

    async def _taken_soon(self, one: MysqlClaim, session: Session, until: float) -> Standing | None:
        try:
            await self._read(session, until)
            found = session.answer().result()
            return self._taken(one, session, found.made, is_busy=not found.changed)
        except BaseException as error:
            self._claims.finish(one.claim)
            self._claims.drop(one, session)
            if isinstance(error, Refusal):
                return None
            raise

    def _taken(self, one: MysqlClaim, session: Session, made: int, *, is_busy: bool) -> Standing | None:
        """The reply to TAKE. A ticket that a crash could make come again is not used: `join` has the server reserve."""
        one.asks.is_busy = is_busy
        if not 0 < made < self._sure:
            self._claims.put_back(one, session)
            return None
        one.ticket = one.claim.ticket = made
        one.state = HOLDS
        self._claims.put_back(one, session)
        return Standing(made, True, self._me.lease, FOREVER, False)

    def leave_now(self, claim: Claim, until: float) -> Left:
        """Give a user lock back by one statement."""
        claims = self._claims
        one = claims.find(claim)
        if one is None or one.state is not HOLDS or self._left * SWEEPS >= 1 or (session := one.take()) is None:
            return None
        link = session.connection
        if session.asked or not link.leave_code or one.state is not HOLDS:
            claims.put_back(one, session)
            return None
        claims.finish(claim)
        self._left += 1
        asks = one.asks
        try:
            packed = b"".join((asks.give_size, link.leave_code, asks.give))
            if not self._blocks:
                session.ask(Packed(packed), self._now())
                return self._left_soon(one, session, until)
            if link.trip(packed, until)[4]:
                raise StoreUnavailable("the server refused")
        except BaseException as error:
            claims.drop(one, session)
            if isinstance(error, StoreUnavailable) and not isinstance(error, TimeoutError):
                return False  # it ended before it could be given back
            raise
        claims.give_back(one, session)
        return True

    async def _left_soon(self, one: MysqlClaim, session: Session, until: float, release: Request | None = None) -> bool:
        """Read that the user lock was given back, which is asked for by `release`, or was already."""
        try:
            if release is not None:
                await self._rid(session, until)
                session.ask(release, self._now())
            await self._read(session, until)
            session.answer()
        except BaseException as error:
            self._claims.drop(one, session)
            if isinstance(error, TimeoutError):
                raise StoreUnavailable("the server did not answer in time; the session was closed") from None
            if isinstance(error, StoreError | Refusal):
                return False  # it ended before it could be given back
            raise
        self._claims.give_back(one, session)
        return True

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        claims = self._claims
        one = claims.find(claim)
        if one is None or one.state is not ASKS:
            if claims.is_void(claim):
                return None
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
        one = claims.find(claim)  # one that `take_now` has begun
        session = None if one is None else one.take()
        if session is None:
            session = await claims.pool.take(claim, self._runtime, until)
        if one is None:
            one = MysqlClaim(claim, self._asks_for(claim))
        asks = one.asks
        try:
            claim.asked = True
            claims.begin(one)
            one.seen_at = self._now()
            wait = 0 if place is NOWHERE else _WAIT
            call = RoutineCall("take", (asks.key, wait, asks.name, asks.kind, asks.lease, asks.description, self._sure))
            said = await self._exchange(session, call, until)
            if said[1] == b"held":
                one.hold(said)
                if len(said) > 3:
                    self._sure = max(self._sure, number(said[3]))
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
        asks.is_busy = said[1] != b"held"
        if said[1] in (b"held", b"waits"):
            return one.standing(self._me.lease, self._now())
        claims.finish(claim)
        claims.pool.give(session)
        if said[1] == b"busy":
            return BUSY
        kind = bytes.fromhex(said[2].decode()).decode(errors="replace") if len(said) > 2 else ""
        raise inspect.mismatch(said[1], kind, claim)

    def _asks_for(self, claim: Claim) -> Asks:
        """Made once for all claims of a lock."""
        prepared = claim.prepared
        asks: Asks | None = None if prepared is None else prepared.request
        if asks is None:
            lease, kind, description = (
                int(self._me.lease * MICROSECONDS),
                inspect.kind_of(claim),
                inspect.description_of(claim),
            )
            asks = Asks(self._lock_name(claim.name), self._leased.key(claim.name), kind, lease, description)
            if prepared is not None:
                prepared.request = asks
        return asks

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
            (found,) = await self._executor.ask(Query(_HOLDER, one.asks.key), until)
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
                position, one, session = those.told[-1]
                try:
                    await self._left_soon(one, session, until)
                except StoreUnavailable as error:
                    found[position] = error
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

    async def _quit(self, waits: list[tuple[int, int]], until: float) -> None:
        """End what the sessions of waiters, which are closed here, do in the server."""
        with suppress(StoreError):  # then the server sees it by itself, within a second
            await self._executor.ask_once(RoutineCall("quit", (json.dumps(waits),)), until)

    async def _drop(self, one: MysqlClaim, session: Session, until: float) -> bool:
        stood = await self._left_soon(one, session, until, one.asks.release)
        left, self._left = self._left + 1, 0
        await self._leased.sweep(SWEEPS * left)
        return stood

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def inspect(self, name: str, until: float) -> LockInfo:
        found = await inspect.queue_info(self._executor, self._leased.key(name), name, until)
        return found if found.holders or found.waiters else await self._leased.inspect(name, until)

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        start = self._leased.key(after) if after else b""
        return await inspect.page(self._executor, self._leased.key(""), self._leased.key(prefix), start, until)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return 0 <= token < 2**63 and await inspect.revoke(self._executor, self._leased.key(name), token, until)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return 0 <= token < 2**63 and await inspect.evict(self._executor, self._leased.key(name), token, until)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        holders = (await self.inspect(name, until)).holders
        if (holders[0].token if holders else 0) == seen:
            await self._me.inbox.wait(key, min(until, self._now() + _POLL_INTERVAL))

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
        await self._rid(session, until)
        session.ask(request, self._now())
        begun = await self._read(session, until)
        return session.result() if begun is None else begun

    async def _rid(self, session: Session, until: float) -> None:
        """Read the rest of an answer that told enough, or of a renewal that was not waited for."""
        while session.asked:
            await self._read(session, until)
            session.answer()

    async def _read(self, session: Session, until: float) -> list[bytes] | None:
        """Until the answer is whole, or has begun to say that the claim waits: then how it begins."""
        now, trip = self._now(), self._dialler.round_trip
        until = min(max(until, now + trip.least), now + trip.attempt)
        while session.readiness.wait(until - self._now()) if self._blocks else await self._readable(session, until):
            if session.read():
                return None
            begun = session.begun()
            if begun is not None and begun[1] == b"waits":
                return begun
        raise Silent("the server did not answer in time")
