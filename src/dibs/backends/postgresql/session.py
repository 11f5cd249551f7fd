"""Seam 2 in session mode: a claim is an advisory lock of a connection of its own, and the server's queue is the line.

A join that finds the name taken leaves its connection waiting in that queue; the server answers when its turn has come,
and whoever gives up has the statement cancelled. An answer that was long on its way counts once the server has answered
again. `renew` asks something small on each connection that holds: an answer proves that the session, and with it the
lock, was there after it was asked. A connection that is lost is a lock that is lost. There are no places outside the
line: who comes with `fair=False` stands in it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import psycopg

from dibs.backends import ledger
from dibs.backends.postgresql import view
from dibs.backends.postgresql.answers import MISSING, Refusal, final, strange
from dibs.backends.postgresql.connection import Call, PostgresqlConnection, broken
from dibs.backends.postgresql.executor import PostgresqlExecutor, words_of
from dibs.backends.postgresql.stands import GONE, HOLDS, WAITS, Stand, Stands
from dibs.backends.postgresql.talk import Talk
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
    """What is asked for a claim."""

    take: Call
    """The key, if it is free."""
    wait: Call
    """The key, once its turn has come."""


class SessionLine:
    def __init__(self, port: PostgresqlExecutor, talk: Talk, stands: Stands, runtime: Runtime, me: Me) -> None:
        self._port = port
        self._verbs = port.routines
        self._talk = talk
        self._stands = stands
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._asks: dict[tuple[str, str, int, bool, str], Asks] = {}

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        stands, now = self._stands, self._now()
        if stands.is_void(claim):
            return None
        stand = stands.find(claim)
        if stand is not None:
            self._look(stand)
            return stand.standing(stands.lease, now)
        stand = stands.begin(claim, self._verbs.key_of(claim.name))
        stand.busy.acquire()
        claim.asked = True
        try:
            await self._take(stand, place, until)
        except BaseException:
            stands.finish(claim)
            stands.drop(stand)  # with its connection closed none of it can stand anywhere
            claim.asked = False
            raise
        finally:
            stands.free(stand)
        return stand.standing(stands.lease, now)

    async def _take(self, stand: Stand, place: Place, until: float) -> None:
        """It holds or waits then, or is finished."""
        stands, claim = self._stands, stand.claim
        words, link = await self._asked(stand, until)
        if stands.settle(stand, words, link.sent_at):
            return
        if words[1] == b"b" and place is not NOWHERE:
            try:
                link.begin(self._asks_for(stand).wait)
            except psycopg.Error as error:
                raise broken(error) from None
            stands.wait(stand, link)
            return
        stands.finish(claim)
        stands.give_back(stand)
        claim.asked = False
        if words[1] != b"b":
            raise _refused(claim, words)

    async def _asked(self, stand: Stand, until: float) -> tuple[list[bytes], PostgresqlConnection]:
        """What `take` answers, on a connection that is the stand's from then on."""
        stands, pause, made, call = self._stands, FIRST_PAUSE, False, self._asks_for(stand).take
        while True:
            link = stands.sessions.idle()
            if link is None:
                link = await self._runtime.offload(lambda: stands.sessions.dial(until))
            stands.lend(stand, link)
            try:
                words = words_of(await self._talk.exchange(link, call, until))
                if _may_be_early(words):
                    await self._port.pause(_MOMENT)
                    words = words_of(await self._talk.exchange(link, call, until))
                return words, link
            except Refusal as refusal:
                stands.drop(stand)  # an error may leave the key with its session
                if refusal.code in MISSING and not made:
                    await self._port.make(refusal)
                    made = True
                elif refusal.is_crossed() and self._now() + pause < until:
                    await self._port.pause(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    raise final(refusal) from None

    def _asks_for(self, stand: Stand) -> Asks:
        """Made once for all claims of a lock."""
        claim = stand.claim
        of = (claim.name, claim.kind, claim.capacity, stand.shared, claim.about)
        asks = self._asks.get(of)
        if asks is None:
            if len(self._asks) >= _ASKS:
                self._asks.clear()
            verbs, key, shared = self._verbs, b"%d" % stand.key, _YES if stand.shared else _NO
            label = view.label(claim.about, self._stands.lease)
            name, kind, capacity = claim.name.encode(), claim.kind.encode(), b"%d" % claim.capacity
            attempt, turn = Call(verbs.attempt, (key, shared, label)), Call(verbs.await_turn, (key, shared))
            look = Call(verbs.look, (key, name, kind, capacity, shared, label))
            asks = self._asks[of] = Asks(look._replace(first=attempt), look._replace(first=turn))
        return asks

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | StoreUnavailable | None]:
        stands, now = self._stands, self._now()
        found = [stands.find(claim) for claim in claims]
        for stand in found:
            if stand is not None:
                self._look(stand)
        asked = [stand is not None and await self._ask(stand, until) for stand in found]
        for stand, is_asked in zip(found, asked, strict=True):
            if stand is not None and is_asked:
                await self._hear(stand, until)
        return [None if stand is None else self._said(stand, now) for stand in found]

    def _look(self, stand: Stand) -> None:
        if stand.state is WAITS:
            self._me.inbox.deliver_all(self._stands.look(stand))

    def _said(self, stand: Stand, now: float) -> Standing | StoreUnavailable | None:
        if stand.pinged is not None:
            return StoreUnavailable("the server did not answer in time")
        standing = stand.standing(self._stands.lease, now)
        if standing is None:  # nobody leaves what is gone
            self._stands.finish(stand.claim)
        return standing

    async def _ask(self, stand: Stand, until: float) -> bool:
        """Send the question that proves the session; True: the stand is ours until the answer was heard."""
        if stand.state is not HOLDS or not await self._talk.have(stand.busy, until):
            return False
        link = stand.link
        if link is None or stand.pinged is not None:
            return True
        stand.pinged = self._now()
        try:
            link.begin(Call(self._verbs.ping, (b"%d" % stand.key, b"%d" % (stand.claim.ticket or 0))))
        except (psycopg.Error, StoreUnavailable):
            self._stands.drop(stand)
        except BaseException:
            self._stands.drop(stand)
            self._stands.free(stand)
            raise
        return True

    async def _hear(self, stand: Stand, until: float) -> None:
        try:
            await self._proven(stand, until)
        except (Refusal, StoreUnavailable):
            self._stands.drop(stand)
        except BaseException:
            self._stands.drop(stand)
            raise
        finally:
            if stand.state is GONE:
                stand.pinged = None
            self._stands.free(stand)

    async def _proven(self, stand: Stand, until: float) -> None:
        """The answer to what was asked last, if one is still owed; if it does not come it may still be waited for."""
        link, sent_at = stand.link, stand.pinged
        if link is None or sent_at is None:
            return
        result = await self._talk.arrived(link, until)
        if result is not None:
            link.note(result)
            stand.anchor, stand.pinged = sent_at, None
            stand.revoked = stand.revoked or result.get_value(0, 1) == _YES

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        stand = self._stands.find(claim)
        if stand is None or stand.shared or weight >= claim.capacity:
            return
        if not await self._talk.have(stand.busy, until):
            raise StoreUnavailable("the server did not answer in time")
        try:
            if stand.state is HOLDS and stand.link is not None:
                await self._settled(stand, stand.link, until)
                await self._talk.exchange(stand.link, Call(self._verbs.lighten, (b"%d" % stand.key,)), until)
                stand.shared = True
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            self._stands.free(stand)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        stands = self._stands
        if not answered:
            stands.bury(claim)
        stand = stands.finish(claim)
        if stand is None:
            return False
        if not await self._talk.have(stand.busy, until):
            stands.forsake(stand)
            raise StoreUnavailable("the server did not answer in time")
        try:
            return await self._give_back(stand, stand.link, until)
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            stands.drop(stand)  # what was not given back goes with its connection
            stands.free(stand)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        """Those who hold are asked all at once, each on its own connection; the others leave one by one."""
        begun = {claim.id: stand for claim, answered in leaving if (stand := self._begin_leaving(claim, answered))}
        done: list[StoreError | None] = []
        try:
            for claim, answered in leaving:
                try:
                    stand = begun.pop(claim.id, None)
                    if stand is None:
                        await self.leave(claim, answered, until)
                    else:
                        await self._end_leaving(stand, until)
                    done.append(None)
                except StoreError as error:
                    done.append(error)
        finally:
            for stand in begun.values():
                self._stands.drop(stand)
                self._stands.free(stand)
        return done

    def _begin_leaving(self, claim: Claim, answered: bool) -> Stand | None:
        """None: it does not hold, or somebody uses its connection."""
        stands = self._stands
        stand = stands.find(claim)
        if stand is None or not stand.busy.acquire(blocking=False):
            return None
        if stand.state is HOLDS and stand.link is not None and stand.pinged is None:
            stands.finish(claim)
            if not answered:
                stands.bury(claim)
            try:
                stand.link.begin(self._unlocking(stand))
            except (psycopg.Error, StoreUnavailable):
                stands.drop(stand)
            else:
                return stand
        stands.free(stand)
        return None

    async def _end_leaving(self, stand: Stand, until: float) -> None:
        stands = self._stands
        try:
            if stand.link is not None:
                result = await self._talk.arrived(stand.link, until)
                if result is None:
                    raise StoreUnavailable("the server did not answer in time")
                stand.link.note(result)
                stands.give_back(stand)
        except Refusal as refusal:
            raise final(refusal) from None
        finally:
            stands.drop(stand)  # what was not given back goes with its connection
            stands.free(stand)

    async def _settled(self, stand: Stand, link: PostgresqlConnection, until: float) -> None:
        """Before anything else is asked, the answer that is still owed."""
        await self._proven(stand, until)
        if stand.pinged is not None:
            link.close()
            raise StoreUnavailable("the server did not answer in time")

    async def _give_back(self, stand: Stand, link: PostgresqlConnection | None, until: float) -> bool:
        if link is None or stand.state is GONE:
            return False
        if stand.state is WAITS:
            await self._withdraw(stand, link, until)
            return True
        had_ended = stand.pinged is None and link.is_stale()
        try:
            await self._settled(stand, link, until)
            result = await self._talk.exchange(link, self._unlocking(stand), until)
        except StoreUnavailable:
            if had_ended:
                return False
            raise
        self._stands.give_back(stand)
        return (result.get_value(0, result.nfields - 1) or b"")[-1:] in (_YES, b"1")

    def _unlocking(self, stand: Stand) -> Call:
        key = b"%d" % stand.key
        if stand.claim.kind == "election":
            return Call(self._verbs.resign, (stand.claim.name.encode(), key))
        return Call(self._verbs.unlock_shared if stand.shared else self._verbs.unlock, (key,))

    async def _withdraw(self, stand: Stand, link: PostgresqlConnection, until: float) -> None:
        """Cancel what it waits for; it may have been granted in that moment. If that cannot be done, the connection is
        closed, which the server notices by itself."""
        self._stands.stop_waiting(link)
        conn = link.conn
        if conn is None:
            return
        with suppress(StoreError):
            await self._port.ask(Call(self._verbs.cancel, (b"%d" % conn.backend_pid,)), until)
            try:
                if await self._talk.arrived(link, until) is None:
                    return
            except Refusal as refusal:
                if refusal.code != _CANCELLED:
                    return
            await self._talk.exchange(link, Call(self._verbs.unlock_all, ()), until)
            self._stands.give_back(stand)

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        if not self._stands.is_swept:
            self._stands.is_swept = True
            with suppress(StoreError):  # who waits has the time
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
        await self._port.follow(self._stands.ear, name, 0, self._me.id, key, until)
        info = await self.line(name, until)
        if (info.holders[0].token if info.holders else 0) == seen:
            ear, over = self._stands.ear, min(until, self._now() + _GLANCE)
            await (ear.hear(key, over) if ear is not None else self._me.inbox.wait(key, over))

    async def identity(self, until: float) -> str:
        return await self._port.identity(until)

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.postgresql.doctor import examine  # noqa: PLC0415  (few programs ask)

        wall = datetime.now(UTC).timestamp()
        return await examine(self._port, self._stands.ear, self._runtime, wall, until, self._me.lease)

    async def connect(self, until: float) -> None:
        await self._port.connect(until)

    def round_trip(self) -> float:
        return self._port.round_trip()

    def close(self) -> None:
        self._port.close()


def _may_be_early(words: Sequence[bytes]) -> bool:
    """Refused because of the row of the key, which whoever has just taken it may not have written yet."""
    return words[1] in (b"m", b"x") and words[-1] != _LEASED


def _refused(claim: Claim, words: Sequence[bytes]) -> DibsError:
    if words[1] == b"x":
        other = printable(b" ".join(words[2:]).decode(errors="replace"))
        return StoreError(
            f'busy under another name that has the same key of 64 bits: "{other}"', step="give one of them another name"
        )
    if words[1] != b"m" or len(words) < 4 or not words[2].isdigit():
        return strange()
    if words[3:] == [_LEASED]:
        return leased()
    return ledger.mismatch(b" ".join(words[3:]).decode(errors="replace"), int(words[2]), claim)


def leased() -> Mismatch:
    return Mismatch(
        'held or asked for by a lease (mode="lease"), not by a connection or a transaction',
        step="use one mode for one name, or wait until its line is empty",
    )
