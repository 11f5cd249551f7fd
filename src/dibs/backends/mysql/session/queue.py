"""Interface Queue in session mode. A claim is a user lock that a session of its own holds, or waits for in the server.

Only a reply on its own session proves that a claim holds. `renew` asks on the sessions of all holders before it reads
any reply, and counts the lease from when it asked. A waiter is in the middle of a statement, and learns nothing until
the reply comes. A waiter that gives up closes its session, so nothing stays behind, whatever the race.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

from dibs.backends.common.session_claims import ASKS, GONE, HOLDS, WAITS, readable_in
from dibs.backends.mysql import schema
from dibs.backends.mysql.calls import MICROSECONDS, Request, packed, query, routine_call
from dibs.backends.mysql.connection import Dialler, MysqlConnection, Silent
from dibs.backends.mysql.errors import MISSING, final, strange
from dibs.backends.mysql.executor import number, ticket_of, words
from dibs.backends.mysql.queue import SWEEPS, TAKEN, MysqlQueue
from dibs.backends.mysql.session import inspect
from dibs.backends.mysql.session.connection import Claims, MysqlClaim, Requests, SessionDialler
from dibs.backends.mysql.wire import Refusal, Sets
from dibs.core.deadline import FOREVER
from dibs.core.queue import NOWHERE, ClientIdentity, Leave, Left, Place, Signal, Taken, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import LockInfo

_WAIT = 31_536_000
"""Seconds; the server waits no longer."""
_TIMES = 3
"""How often tables are created for one request."""
_NAP = 0.001
_POLL_INTERVAL = 0.25
"""Seconds after which a follower of a leader looks again."""
_ALIVE = (
    "SELECT CONCAT_WS(' ', CONNECTION_ID(),"
    " IFNULL((SELECT revoked FROM dibs_sessions WHERE lock_name = {} AND session = CONNECTION_ID()), 0))"
)
_HOLDER = "SELECT IFNULL(IS_USED_LOCK({}), 0)"
_BUSY = Standing(0, False, 0.0, FOREVER, False)


class SessionQueue:
    def __init__(
        self, leased: MysqlQueue, sessions: SessionDialler, claims: Claims, dialler: Dialler, runtime: Runtime,
        me: ClientIdentity,
    ) -> None:  # fmt: skip
        """`leased`: the queue in the tables of the same store."""
        self._leased = leased
        self._executor = leased.executor
        self._sessions = sessions
        self._claims = claims
        self._dialler = dialler
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._left = 0
        """How often `leave_now` succeeded since the last `leave`, which sweeps for those too."""
        self._sure = 0
        """Tickets below this are never given again, not even after a crash of the server (sure.sql)."""
        self._blocks = runtime.call_soon is None
        self._readable = readable_in(runtime)
        self.identity, self.doctor = leased.identity, leased.doctor
        self.round_trip, self.close = leased.round_trip, leased.close

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken:
        """Take a free user lock by one statement. If it is not free, `join` goes on with the same session."""
        claims = self._claims
        if not self._sessions.database or claims.is_void(claim):
            return None
        requests = self._requests(claim)
        if requests.is_busy or (connection := claims.pool.take_idle()) is None:
            return None
        if not connection.take_code:
            claims.pool.give(connection)
            return None
        one = MysqlClaim(claim, requests)
        try:
            connection.claim_id = claim.id
            claim.asked = True
            claims.begin(one)
            one.seen_at = self._now()
            request = b"".join((requests.take_size, connection.take_code, requests.take))
            if not self._blocks:
                connection.begin(packed(request))
                return self._taken_soon(one, connection, until)
            reply = connection.trip(request, until)
            if reply[4]:
                raise Refusal(int.from_bytes(reply[5:7], "little"), "")
            made = int.from_bytes(reply[7:15], "little") if reply[4:7] == TAKEN else 0
            return self._taken(one, connection, made, is_busy=not reply[5])
        except Refusal:  # `join` learns why
            self._undo(one, connection)
            return None
        except BaseException:
            self._undo(one, connection)
            raise

    async def _taken_soon(self, one: MysqlClaim, connection: MysqlConnection, until: float) -> Standing | None:
        try:
            found = await self._reply(connection, until)
            return self._taken(one, connection, found.made, is_busy=not found.changed)
        except Refusal:  # `join` learns why
            self._undo(one, connection)
            return None
        except BaseException:
            self._undo(one, connection)
            raise

    def _taken(self, one: MysqlClaim, connection: MysqlConnection, made: int, *, is_busy: bool) -> Standing | None:
        """The reply to TAKE. A crash could make a ticket that is not sure come again: `join` reserves another one."""
        one.requests.is_busy = is_busy
        if not 0 < made < self._sure:
            self._claims.put_back(one, connection)
            return None
        one.ticket = one.claim.ticket = made
        one.state = HOLDS
        self._claims.put_back(one, connection)
        return Standing(made, True, self._me.lease, FOREVER, False)

    def _undo(self, one: MysqlClaim, connection: MysqlConnection) -> None:
        """The server frees what the connection holds or waits for."""
        self._claims.finish(one.claim)
        self._claims.drop(one, connection)

    def leave_now(self, claim: Claim, until: float) -> Left:
        """Release a user lock by one statement."""
        claims = self._claims
        one = claims.find(claim)
        if one is None or one.state is not HOLDS or self._left * SWEEPS >= 1 or (connection := one.take()) is None:
            return None
        if connection.owes_reply or not connection.leave_code or one.state is not HOLDS:
            claims.put_back(one, connection)
            return None
        claims.finish(claim)
        self._left += 1
        requests = one.requests
        try:
            request = b"".join((requests.give_size, connection.leave_code, requests.give))
            if not self._blocks:
                connection.begin(packed(request))
                return self._left_soon(one, connection, until)
            if connection.trip(request, until)[4]:
                raise StoreUnavailable("the server refused")
        except BaseException as error:
            claims.drop(one, connection)
            if isinstance(error, StoreUnavailable) and not isinstance(error, TimeoutError):
                return False  # the session ended before it could release the lock
            raise
        claims.give_back(one, connection)
        return True

    async def _left_soon(
        self, one: MysqlClaim, connection: MysqlConnection, until: float, release: Request | None = None
    ) -> bool:
        """Read the reply to the release, which is sent here, or was sent before. False: the session had ended."""
        try:
            if release is not None:
                await self._begin(connection, release, until)
            await self._reply(connection, until)
        except BaseException as error:
            self._claims.drop(one, connection)
            if isinstance(error, TimeoutError):
                raise StoreUnavailable("the server did not answer in time; the session was closed") from None
            if isinstance(error, StoreError | Refusal):
                return False
            raise
        self._claims.give_back(one, connection)
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
        """Call take.sql. Afterwards the claim holds, waits, or is finished."""
        claims = self._claims
        one = claims.find(claim)  # `take_now` may have begun it
        connection = None if one is None else one.take()
        if connection is None:
            connection = await claims.pool.take(claim, self._runtime, until)
        if one is None:
            one = MysqlClaim(claim, self._requests(claim))
        requests = one.requests
        try:
            claim.asked = True
            claims.begin(one)
            one.seen_at = self._now()
            call = routine_call(
                "take", requests.key, 0 if place is NOWHERE else _WAIT, requests.name, requests.kind, requests.lease,
                requests.description, self._sure,
            )  # fmt: skip
            await self._begin(connection, call, until)
            said = words(await self._reply(connection, until, or_waits=True), 2)
            if said[1] == b"held":
                one.hold(said)
                if len(said) > 3:
                    self._sure = max(self._sure, number(said[3]))
                claims.put_back(one, connection)
            elif connection.owes_reply:
                one.ticket = ticket_of(said)
                self._me.inbox.listen(claims)
                claims.wait(one, connection)
                claims.put_back(one, connection)
        except BaseException:
            self._undo(one, connection)
            raise
        requests.is_busy = said[1] != b"held"
        if said[1] in (b"held", b"waits"):
            return one.standing(self._me.lease, self._now())
        claims.finish(claim)
        claims.pool.give(connection)
        if said[1] == b"busy":
            return _BUSY
        kind = bytes.fromhex(said[2].decode()).decode(errors="replace") if len(said) > 2 else ""
        raise inspect.mismatch(said[1], kind, claim)

    def _requests(self, claim: Claim) -> Requests:
        """Made once for all claims of a lock object."""
        prepared = claim.prepared
        found: Requests | None = None if prepared is None else prepared.request
        if found is None:
            key, lease = self._leased.key(claim.name), int(self._me.lease * MICROSECONDS)
            lock_name = f"dibs{sha256(self._sessions.database + b'/' + key).hexdigest()[:60]}"  # as in key.sql
            found = Requests(lock_name, key, inspect.kind_of(claim), lease, inspect.description_of(claim))
            if prepared is not None:
                prepared.request = found
        return found

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Standing | StoreUnavailable | None]:
        known = [self._claims.find(claim) for claim in claims]
        asked: list[tuple[MysqlClaim, MysqlConnection]] = []
        for one in known:
            if one is not None:
                self._tell(one)
                if one.state is HOLDS and (connection := self._asked(one)) is not None:
                    asked.append((one, connection))
        silent = {id(one) for one, connection in asked if not await self._answered(one, connection, until)}
        if silent and len(silent) == len(known):
            raise StoreUnavailable("the server did not answer in time")
        now = self._now()
        found: list[Standing | StoreUnavailable | None] = []
        for one in known:
            if one is not None and id(one) in silent:
                found.append(StoreUnavailable("the server did not answer in time"))
                continue
            found.append(None if one is None else one.standing(self._me.lease, now))
            if one is not None and found[-1] is None:  # no caller leaves a claim that is gone
                self._claims.finish(one.claim)
                self._claims.forsake(one)
        return found

    def _asked(self, one: MysqlClaim) -> MysqlConnection | None:
        """Ask on the claim's connection whether the session is alive. None: another caller uses it, or it is gone."""
        connection = one.take()
        if connection is None:
            return None
        try:
            if len(connection.so_far()) > 1:
                connection.received()
            if not connection.owes_reply:  # else that reply proves it too
                connection.begin(query(_ALIVE, one.requests.key))
        except (StoreError, Refusal):
            self._claims.drop(one, connection)
            return None
        return connection

    async def _answered(self, one: MysqlClaim, connection: MysqlConnection, until: float) -> bool:
        """False: not yet. The lease counts from the request, whenever its reply comes."""
        try:
            while (found := connection.received()) is None:
                if not await self._readable(connection, until):
                    self._claims.put_back(one, connection)
                    return False
            one.revoked = words(found, 2)[1] == b"1"
            one.seen_at = max(one.seen_at, connection.sent_at)
            self._claims.put_back(one, connection)
        except (StoreError, Refusal):
            self._claims.drop(one, connection)
        except BaseException:
            self._claims.drop(one, connection)
            raise
        return True

    async def _look(self, one: MysqlClaim, until: float) -> None:
        """Look at a waiting claim, also in the server. If it holds there, wait for the reply that says so."""
        self._tell(one)
        mine = {connection.number for connection in one.free}
        if mine and one.state is WAITS:
            (found,) = await self._executor.ask(query(_HOLDER, one.requests.key), until)
            while number(found[0][0]) in mine and self._now() < until:
                self._tell(one)
                if one.state is not WAITS:
                    break
                await self._runtime.sleep(_NAP)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        """Claims have no weight in this mode."""

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        claims = self._claims
        if not answered:
            claims.bury(claim)
        one = claims.find(claim)
        if one is None:
            return False
        claims.look(one)
        connection = await claims.have(one, self._runtime, until)
        claims.finish(claim)  # not before: a caller that was interrupted until then leaves once more
        if connection is None:
            is_gone = one.state is GONE
            claims.forsake(one)
            return not is_gone
        if one.state is not HOLDS:
            claims.drop(one, connection)
            await self._quit([(connection.number, one.ticket)], until)
            return True
        had_held = await self._left_soon(one, connection, until, one.requests.release)
        left, self._left = self._left + 1, 0
        await self._leased.sweep(SWEEPS * left)
        return had_held

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        """All releases are sent before any reply is read. Claims whose connection is not ready leave one by one."""
        found: list[StoreError | None] = [None] * len(leaving)
        begun: dict[int, tuple[MysqlClaim, MysqlConnection]] = {}
        try:
            for position, leave in enumerate(leaving):
                if (asked := self._begin_leaving(*leave)) is not None:
                    begun[position] = asked
            await self._quit([(to.number, one.ticket) for one, to in begun.values() if one.state is not HOLDS], until)
            for position, leave in enumerate(leaving):
                asked = begun.pop(position, None)
                try:
                    if asked is None:
                        await self.leave(*leave, until)
                    elif asked[0].state is HOLDS:
                        await self._left_soon(*asked, until)
                except StoreError as error:
                    found[position] = error
        finally:  # after an interrupt: the server frees what the connections hold
            for one, connection in begun.values():
                self._claims.drop(one, connection)
        await self._leased.sweep(SWEEPS * len(leaving))
        return found

    def _begin_leaving(self, claim: Claim, answered: bool) -> tuple[MysqlClaim, MysqlConnection] | None:
        """Send the release of a holder, or close the connection of a waiter. None: `leave` must wait for it."""
        claims = self._claims
        one = claims.find(claim)
        if one is None:
            return None
        claims.look(one)
        if (connection := one.take()) is None:
            return None
        holds = one.state is HOLDS
        if connection.owes_reply == holds:
            claims.put_back(one, connection)
            return None
        if not answered:
            claims.bury(claim)
        claims.finish(claim)
        if not holds:
            claims.drop(one, connection)
            return one, connection
        with suppress(StoreError):  # the session has ended: no reply will come
            connection.begin(one.requests.release)
        return one, connection

    async def _quit(self, waits: list[tuple[int, int]], until: float) -> None:
        """End the statements of waiters, whose connections are closed here, in the server."""
        if waits:
            with suppress(StoreError):  # the server notices by itself, within a second
                await self._executor.ask_once(routine_call("quit", json.dumps(waits)), until)

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

    async def connect(self, until: float) -> None:
        """Each claim is renewed, and leaves, on its own connection."""

    def _tell(self, one: MysqlClaim) -> None:
        self._me.inbox.deliver_all(self._claims.look(one))

    async def _begin(self, connection: MysqlConnection, request: Request, until: float) -> None:
        """Send a request, after the rest of the last reply was read: the end of a grant, or a late renewal."""
        while connection.owes_reply:
            await self._reply(connection, until)
        connection.begin(request)

    async def _reply(self, connection: MysqlConnection, until: float, *, or_waits: bool = False) -> Sets:
        """The complete reply. `or_waits`: or its first result set, if that says that the claim waits."""
        now, trip = self._now(), self._dialler.round_trip
        until = min(max(until, now + trip.least), now + trip.attempt)
        while await self._readable(connection, until):
            found = connection.received()
            if found is not None:
                return found
            first = connection.so_far()[:1]
            if or_waits and first and words(first, 2)[1] == b"waits":
                return Sets(first)
        raise Silent("the server did not answer in time")
