"""The part of the queue (core/queue.py) that is about a name and not about a claim: inspecting, listing, breaking; the
questions to a member of a quorum; `doctor`.

Redis has no order of keys. SCAN goes through all of them once, and the names that it found are given out page by page,
so a listing shows the names as they were when it began. KEYS is never used: it would block the server.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from math import inf
from typing import Any

from dibs.backends.common import atomic_queue
from dibs.backends.redis import scripts
from dibs.backends.redis.address import Address
from dibs.backends.redis.errors import Refusal, final, strange
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.scripts import MICROSECONDS, Command, ScriptCall
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.core.deadline import FOREVER
from dibs.core.queue import ClientIdentity
from dibs.core.rule import Claim, Entry
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo

SPIN = 0.1
"""Seconds between two looks where there are no messages."""
PAGE = 500
_COUNT = 1000
_MOST = 8
"""Listings under way whose names are kept; some are never finished."""
_INFO, _TIME = Command("INFO", "server"), Command("TIME")
_KEEPS_ALL = ((Command("CONFIG", "GET", "appendonly"), b"yes"), (Command("CONFIG", "GET", "appendfsync"), b"always"))
_COARSE = 1.0
"""A server counts the seconds since its start by whole ones, from a whole one."""


class RedisInspection:
    def __init__(
        self,
        executor: RedisExecutor,
        subscriber: RedisSubscriber | None,
        runtime: Runtime,
        me: ClientIdentity,
        keys: Keys,
        address: Address,
    ) -> None:
        """`subscriber`: None where there are no messages, and everybody looks instead."""
        self._executor = executor
        self._address = address
        self._keys = keys
        self._subscriber = subscriber
        self._runtime = runtime
        self._me = me
        self._poll_interval = FOREVER if subscriber is not None else SPIN
        self._listings: dict[str, list[str]] = {}
        """By prefix: the names that the listings under way found. The oldest come first."""

    async def inspect(self, name: str, until: float) -> LockInfo:
        return info_of(name, await self._executor.ask(ScriptCall(scripts.LOOK, self._keys.queue(name), ()), until))

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        found: list[LockInfo] = []
        while not found and (names := await self._page(prefix, after, until)):
            calls = [ScriptCall(scripts.LOOK, self._keys.queue(name), ()) for name in names]
            for name, reply in zip(names, await self._executor.ask_all(calls, until), strict=True):
                if isinstance(reply, StoreUnavailable):
                    raise reply
                info = info_of(name, reply)
                if info.holders or info.waiters:  # a name that nobody uses leaves its counter behind for a while
                    found.append(info)
            after = names[-1]
        return found

    async def _page(self, prefix: str, after: str, until: float) -> list[str]:
        names = self._listings.get(prefix) if after else None
        if names is None:
            names = await self._scan(prefix, until)
            self._listings.pop(prefix, None)
            self._listings[prefix] = names
            for abandoned in list(self._listings)[:-_MOST]:
                self._listings.pop(abandoned, None)
        at = bisect_right(names, after)
        if at >= len(names):
            self._listings.pop(prefix, None)
        return names[at : at + PAGE]

    async def _scan(self, prefix: str, until: float) -> list[str]:
        pattern = self._keys.queues(prefix)
        found: set[bytes] = set()
        for endpoint in await self._executor.primaries(until):
            cursor = b"0"
            while True:
                command = Command("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT)
                reply = await self._executor.command_at(endpoint, command, until)
                if isinstance(reply, Refusal):
                    raise final(reply, pattern)
                if not isinstance(reply, list) or len(reply) != 2:
                    raise strange()
                cursor, keys = reply
                found.update(keys)
                if cursor == b"0":
                    break
        return sorted(name for key in found if (name := self._keys.name(key)) is not None)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return is_done(await self._executor.ask(ScriptCall(scripts.REVOKE, self._keys.queue(name), (token,)), until))

    async def evict(self, name: str, token: int, until: float) -> bool:
        reply, is_repeated = await self._executor.ask_often(
            ScriptCall(scripts.EVICT, self._keys.queue(name), (token,)), until
        )
        return is_done(reply) or is_repeated

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        channel = self._keys.queue(name)
        try:
            if self._subscriber is not None:
                await self._subscriber.listen(channel, key, until)
            ticket, left = _two(await self._executor.ask(ScriptCall(scripts.FOREMOST, channel, ()), until))
            if ticket == seen:
                over = left / MICROSECONDS if ticket else FOREVER
                await self._me.inbox.wait(key, min(until, self._runtime.now() + min(over, self._poll_interval)))
        finally:
            if self._subscriber is not None:
                self._subscriber.ignore(channel, key)

    async def identity(self, until: float) -> str:
        made = self._runtime.fresh_id().hex()
        key = self._keys.identity
        await self._executor.command(key, Command("SET", key, made, "NX"), until)
        found = await self._executor.command(key, Command("GET", key), until)
        if not isinstance(found, bytes):
            raise strange()
        return f"redis:{found.decode(errors='replace')}"

    async def stamp(self, claim: Claim, token: int, until: float) -> bool:
        call = ScriptCall(scripts.STAMP, self._keys.queue(claim.name), (claim.id, token), floor=self._keys.floor)
        (_, stamped), is_replicated = await self._executor.ask_replicated(call, until)
        return stamped == 1 and is_replicated

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        """A server that syncs each write before it answers loses nothing; any other one may have, when it started."""
        key = self._keys.queue(claim.name)
        up = await self._uptime(key, until)
        return up if up >= least or not await self._keeps_all(key, until) else inf

    async def clock(self, until: float) -> float:
        seconds, fraction = await self._executor.command(self._keys.identity, _TIME, until)
        return int(seconds) + int(fraction) / MICROSECONDS

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.redis.doctor import Patient, examine  # noqa: PLC0415  (few programs ask)

        who = Patient(self._executor, self._subscriber, self._runtime, self._me, self._keys, self._address)
        return await examine(who, until)

    async def connect(self, until: float) -> None:
        await self._executor.connect(until)

    def round_trip(self) -> float:
        return self._executor.round_trip()

    def close(self) -> None:
        self._executor.close()

    async def _uptime(self, key: bytes, until: float) -> float:
        reply = await self._executor.command(key, _INFO, until)
        for line in reply.splitlines() if isinstance(reply, bytes) else ():
            name, _, value = line.partition(b":")
            if name == b"uptime_in_seconds" and value.isdigit():
                return max(int(value) - _COARSE, 0.0)
        raise StoreError("the server does not report its uptime", step="allow INFO, or connect with guard=0")

    async def _keeps_all(self, key: bytes, until: float) -> bool:
        """A server that does not show its settings may lose writes."""
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


def info_of(name: str, reply: list[Any]) -> LockInfo:
    """Where it stands now is 0 on the clock of what was told."""
    if len(reply) == 1:
        return LockInfo(name=name)
    try:
        _, kind, capacity, *there = reply
        told = kind.decode(errors="replace").rstrip()
        alive = [
            Entry(ticket, b"", b"", told, capacity, weight, left / MICROSECONDS, -asked / MICROSECONDS,
                  None if held < 0 else -held / MICROSECONDS, False, description.decode(errors="replace"))
            for ticket, weight, left, asked, held, description in there
        ]  # fmt: skip
        return atomic_queue.shown(name, alive, 0.0, datetime.now(UTC))
    except (TypeError, ValueError, AttributeError):
        raise strange() from None


def is_done(reply: Any) -> bool:
    """Parse a boolean reply."""
    if isinstance(reply, int):
        return reply == 1
    if len(reply) != 2:
        raise strange()
    return bool(reply[1])


def _two(reply: list[Any]) -> tuple[int, int]:
    """The numbers behind the time."""
    if len(reply) != 3 or not (isinstance(reply[1], int) and isinstance(reply[2], int)):
        raise strange()
    return reply[1], reply[2]
