"""The queue of a name (core/queue.py): each verb is one Lua script. free_path.py has `take_now` and `leave_now`.

Redis does not order its keys. A listing scans all keys once with SCAN, and then returns the names that it found page
by page, so it shows the names as they were when it began. KEYS is never used, because it would block the server.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, Protocol

from dibs.backends.common import atomic_queue
from dibs.backends.redis import scripts
from dibs.backends.redis.connection import TIME
from dibs.backends.redis.context import SPIN, Context
from dibs.backends.redis.errors import Refusal, RefusedOne, final, strange
from dibs.backends.redis.failover import lease_class, too_soon
from dibs.backends.redis.scripts import DIGITS, MICROSECONDS, Command, Script, ScriptCall, description
from dibs.core.deadline import FOREVER
from dibs.core.queue import LOOK, NOWHERE, QUEUE, UNFAIR, YOURS, Leave, Left, Place, Signal, Taken, Unsent, read_signal
from dibs.core.rule import Claim, Entry, Standing
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo

PAGE = 500
_COUNT = 1000
"""Keys that one SCAN examines."""
_LISTINGS = 8
"""Listings under way whose names are kept: some are never finished."""
_INFO = Command("INFO", "server")
_KEEPS_ALL = ((Command("CONFIG", "GET", "appendonly"), b"yes"), (Command("CONFIG", "GET", "appendfsync"), b"always"))
_COARSE = 1.0
"""Seconds by which the uptime that a server reports may be too high: it counts whole seconds."""


class AnyFreePath(Protocol):
    """The free path of the sync API (free_path.py) or of the async API (aio_connection.py)."""

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken: ...

    def leave_now(self, claim: Claim, until: float) -> Left: ...


class RedisQueue:
    """See core/queue.py."""

    def __init__(self, context: Context, free_path: AnyFreePath) -> None:
        self._context = context
        self._executor = executor = context.executor
        self._keys = context.keys
        self._subscriber = context.subscriber
        self._inbox = context.identity.inbox
        self._runtime = context.runtime
        self._now = context.runtime.now
        self._channel = context.channel
        self._poll_interval = context.poll_interval
        self._failover = executor.failover
        self._listings: dict[str, list[str]] = {}
        """By prefix: the names that the listings under way found, oldest listing first."""
        self.take_now, self.leave_now = free_path.take_now, free_path.leave_now
        self.connect, self.close, self.round_trip = executor.connect, executor.close, executor.round_trip

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        subscriber, key = self._subscriber, self._keys.queue(claim.name)
        if subscriber is not None and place is not NOWHERE and not subscriber.is_ready():
            await subscriber.ready(until)
        join = self._join if self._failover is None else self._join_in_term
        standing = await join(claim, key, place, until)
        if place is UNFAIR and subscriber is not None and standing is not None:
            if not standing.holds and not subscriber.hears(key, claim.id):
                with suppress(StoreUnavailable):  # without messages the waiter is only slower
                    await subscriber.listen(key, claim.id, min(until, self._now() + claim.waiting / 3))
                standing = await join(claim, key, place, until)  # the lock may have become free before we listened
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
        if place is NOWHERE and counted is not standing:  # the primary was replaced during the request
            await self.leave(claim, answered=True, until=until)
            raise too_soon(failover.grace())
        return counted

    async def _join(self, claim: Claim, key: bytes, place: Place, until: float) -> Standing | None:
        word = "l" if place is QUEUE else "o" if place is UNFAIR else "n"  # a dict of enum members would be slower
        args = (description(claim, self._channel), word, claim.id)
        call = ScriptCall(scripts.JOIN, key, args, claim.by, self._keys.floor)
        before, claim.asked = claim.asked, True
        try:
            reply, is_replicated = await self._executor.ask_replicated(call, until)
        except Unsent:
            claim.asked = before
            raise
        standing = read_join(claim, reply, self._poll_interval)
        if standing is not None and standing.holds and not is_replicated:
            # Leave, so that others need not wait. The caller must retry with another id: a late copy of this leave
            # would remove a claim with the same id.
            claim.by = self._now()
            await self.leave(claim, answered=False, until=until)
            raise self._executor.not_replicated()
        return standing

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | StoreUnavailable | None]:
        failover = self._failover
        if failover is not None:
            await self._note_leases({claim.lease for claim in claims}, until)
        queues: dict[str, list[Claim]] = {}
        for claim in claims:
            queues.setdefault(claim.name, []).append(claim)
        calls = [self._call(scripts.RENEW, name, *[claim.id for claim in part]) for name, part in queues.items()]
        found: dict[bytes, Standing | StoreUnavailable | None] = {}
        for part, reply in zip(queues.values(), await self._executor.ask_all_replicated(calls, until), strict=True):
            if isinstance(reply, StoreUnavailable):
                found.update((claim.id, reply) for claim in part)
                continue
            if len(reply) != 1 + len(part):
                raise strange()
            for claim, values in zip(part, reply[1:], strict=True):
                standing = None if values is None else read_standing(values, self._poll_interval)
                if failover is not None and standing is None:
                    failover.forget(claim.id)
                elif failover is not None and standing is not None:
                    standing = failover.counted(claim.id, standing)
                found[claim.id] = standing
        standings = [found[claim.id] for claim in claims]
        raise_if_all_failed(standings)
        return standings

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        await self._executor.ask(self._call(scripts.AMEND, claim.name, claim.id, weight), until)

    async def _note_leases(self, leases: Iterable[float], until: float) -> None:
        """Note leases in the store before anything is granted for that long. The next primary waits for the longest
        one: see failover.py."""
        term = await self._executor.term(until)
        if term is None:
            return
        for lease in term.unnoted(leases, self._now()):
            call = ScriptCall(scripts.LEASES, self._keys.leases, (int(lease * MICROSECONDS), lease_class(lease)))
            reply = await self._executor.ask(call, until)
            if len(reply) != 2 or not isinstance(reply[1], int):
                raise strange()
            if self._failover is not None and term is self._failover.term:  # else another server may have replied
                term.note(lease, reply[1] / MICROSECONDS, self._now())

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        reply, is_repeated = await self._executor.ask_often(self._leaving(claim, answered), until)
        return read_bool(reply) or is_repeated  # an earlier copy of the request may have removed it

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        calls = [self._leaving(claim, answered) for claim, answered in leaving]
        return read_leaves(await self._executor.ask_all(calls, until))

    def _leaving(self, claim: Claim, answered: bool) -> ScriptCall:
        key = self._keys.queue(claim.name)
        if self._subscriber is not None and self._subscriber.hears(key, claim.id):
            self._subscriber.ignore(key, claim.id)
        if self._failover is not None:
            self._failover.forget(claim.id)
        waiting = () if answered else (int(claim.waiting * MICROSECONDS),)
        return ScriptCall(scripts.LEAVE, key, (claim.id, *waiting))

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        if self._subscriber is not None:
            signal = read_signal(await self._subscriber.hear(claim.id, until))
            if signal is YOURS and self._failover is not None and not self._failover.grants_by_message(claim.id):
                return LOOK
            # If grants must be replicated, a message counts only after a renewal that the replicas have.
            return LOOK if signal is not None and self._executor.replicas else signal
        is_unfair = claim.ticket is None
        end = min(until, self._now() + SPIN) if is_unfair else until
        signal = read_signal(await self._inbox.wait(claim.id, end))
        return LOOK if signal is None and is_unfair else signal

    async def inspect(self, name: str, until: float) -> LockInfo:
        return _read_info(name, await self._executor.ask(self._call(scripts.LOOK, name), until))

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        found: list[LockInfo] = []
        while not found and (names := await self._page(prefix, after, until)):
            calls = [self._call(scripts.LOOK, name) for name in names]
            for name, reply in zip(names, await self._executor.ask_all(calls, until), strict=True):
                if isinstance(reply, StoreUnavailable):
                    raise reply
                info = _read_info(name, reply)
                if info.holders or info.waiters:  # the key of an unused name stays for a while
                    found.append(info)
            after = names[-1]
        return found

    async def _page(self, prefix: str, after: str, until: float) -> list[str]:
        names = self._listings.get(prefix) if after else None
        if names is None:
            names = await self._scan(prefix, until)
            self._listings.pop(prefix, None)
            self._listings[prefix] = names
            for abandoned in list(self._listings)[:-_LISTINGS]:
                self._listings.pop(abandoned, None)
        at = bisect_right(names, after)
        if at >= len(names):
            self._listings.pop(prefix, None)
        return names[at : at + PAGE]

    async def _scan(self, prefix: str, until: float) -> list[str]:
        pattern = self._keys.queues(prefix)
        found: set[bytes] = set()
        for endpoint in await self._executor.primaries(until):
            cursor = b""
            while cursor != b"0":
                command = Command("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", _COUNT)
                reply = await self._executor.command_at(endpoint, command, until)
                if isinstance(reply, Refusal):
                    raise final(reply, pattern)
                if not isinstance(reply, list) or len(reply) != 2:
                    raise strange()
                cursor, keys = reply
                found.update(keys)
        return sorted(name for key in found if (name := self._keys.name(key)) is not None)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return read_bool(await self._executor.ask(self._call(scripts.REVOKE, name, token), until))

    async def evict(self, name: str, token: int, until: float) -> bool:
        reply, is_repeated = await self._executor.ask_often(self._call(scripts.EVICT, name, token), until)
        return read_bool(reply) or is_repeated

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        channel = self._keys.queue(name)
        try:
            if self._subscriber is not None:
                await self._subscriber.listen(channel, key, until)
            match await self._executor.ask(self._call(scripts.FOREMOST, name), until):
                case [_, int(ticket), int(left)]:
                    pause = min(left / MICROSECONDS if ticket else FOREVER, self._poll_interval)
                case _:
                    raise strange()
            if ticket == seen:
                await self._inbox.wait(key, min(until, self._now() + pause))
        finally:
            if self._subscriber is not None:
                self._subscriber.ignore(channel, key)

    async def identity(self, until: float) -> str:
        key = self._keys.identity
        await self._executor.command(key, Command("SET", key, self._runtime.fresh_id().hex(), "NX"), until)
        found = await self._executor.command(key, Command("GET", key), until)
        if not isinstance(found, bytes):
            raise strange()
        return f"redis:{found.decode(errors='replace')}"

    async def stamp(self, claim: Claim, token: int, until: float) -> bool:
        call = ScriptCall(scripts.STAMP, self._keys.queue(claim.name), (claim.id, token), more=self._keys.floor)
        (_, stamped), is_replicated = await self._executor.ask_replicated(call, until)
        return stamped == 1 and is_replicated

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        """inf if the server syncs each write before it replies. Any other server may have lost writes at its start."""
        key = self._keys.queue(claim.name)
        up = await self._uptime(key, until)
        return up if up >= least or not await self._keeps_all(key, until) else inf

    async def _uptime(self, key: bytes, until: float) -> float:
        reply = await self._executor.command(key, _INFO, until)
        for line in reply.splitlines() if isinstance(reply, bytes) else ():
            name, _, value = line.partition(b":")
            if name == b"uptime_in_seconds" and value.isdigit():
                return max(int(value) - _COARSE, 0.0)
        raise StoreError("the server does not report its uptime", step="allow INFO, or connect with guard=0")

    async def _keeps_all(self, key: bytes, until: float) -> bool:
        """False also if the server does not show its settings."""
        try:
            for question, wanted in _KEEPS_ALL:
                reply = await self._executor.command(key, question, until)
                if wanted not in (reply.values() if isinstance(reply, dict) else reply):
                    return False
        except StoreUnavailable:
            raise
        except StoreError:
            return False
        return True

    async def clock(self, until: float) -> float:
        seconds, fraction = await self._executor.command(self._keys.identity, TIME, until)
        return int(seconds) + int(fraction) / MICROSECONDS

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.redis.doctor import examine  # noqa: PLC0415  (few programs ask)

        return await examine(self._context, until)

    def _call(self, script: Script, name: str, *args: bytes | int) -> ScriptCall:
        return ScriptCall(script, self._keys.queue(name), args)


def read_join(claim: Claim, reply: Any, poll_interval: float) -> Standing | None:
    """Parse the reply of lua/join.lua."""
    if type(reply) is bytes and len(reply) == DIGITS and reply.isdigit():
        claim.ticket = ticket = int(reply)
        return Standing(ticket, True, claim.lease, poll_interval, False)
    if type(reply) is not list or len(reply) not in (1, 3, 6):
        raise strange()
    if len(reply) == 3:
        raise _mismatch(claim, reply)
    if len(reply) == 1:
        return None
    standing = read_standing(reply[1:], poll_interval)
    if standing.ticket:
        claim.ticket = standing.ticket
    return standing


def read_standing(values: Sequence[int], poll_interval: float) -> Standing:
    """Parse `standing` of lua/queue.lua."""
    try:
        ticket, holds, left, next, revoked = values
        next_change = min(FOREVER if next < 0 else next / MICROSECONDS, poll_interval)
        return Standing(ticket, holds == 1, left / MICROSECONDS, next_change, revoked == 1)
    except (TypeError, ValueError):
        raise strange() from None


def read_leave_now(reply: Any) -> bool | None:
    """Parse the reply to `leave_now`. None: a refusal, which changed nothing."""
    return True if reply == 1 else None if isinstance(reply, Refusal) else read_bool(reply)


def read_leaves(replies: Sequence[Any]) -> list[StoreError | None]:
    """Parse the replies of many leaves. Raises if none was answered."""
    found: list[StoreError | None] = []
    for reply in replies:
        if isinstance(reply, RefusedOne):
            found.append(StoreError(reply.what, step=reply.step))
        elif isinstance(reply, StoreUnavailable):
            found.append(reply)
        else:
            found.append(None if isinstance(reply, int) or len(reply) == 2 else strange())
    raise_if_all_failed(found)
    return found


def read_bool(reply: Any) -> bool:
    """Parse a number, or {now, number}."""
    if isinstance(reply, int):
        return reply == 1
    if len(reply) != 2:
        raise strange()
    return bool(reply[1])


def _read_info(name: str, reply: list[Any]) -> LockInfo:
    """Parse the reply of lua/look.lua, whose times are relative to now."""
    if len(reply) == 1:
        return LockInfo(name=name)
    try:
        _, kind, capacity, *claims = reply
        kind = kind.decode(errors="replace").rstrip()
        entries = [
            Entry(ticket, b"", b"", kind, capacity, weight, left / MICROSECONDS, -asked / MICROSECONDS,
                  None if held < 0 else -held / MICROSECONDS, False, description.decode(errors="replace"))
            for ticket, weight, left, asked, held, description in claims
        ]  # fmt: skip
        return atomic_queue.shown(name, entries, 0.0, datetime.now(UTC))
    except (TypeError, ValueError, AttributeError):
        raise strange() from None


def raise_if_all_failed(outcomes: Sequence[object]) -> None:
    failed = [outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable)]
    if failed and len(failed) == len(outcomes):
        raise failed[0]


def _mismatch(claim: Claim, reply: list[Any]) -> Mismatch | StoreError:
    _, kind, capacity = reply
    if not isinstance(kind, bytes) or not isinstance(capacity, int):
        return strange()
    return atomic_queue.mismatch(kind.decode(errors="replace").rstrip(), capacity, claim)
