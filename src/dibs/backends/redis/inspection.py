"""The part of the queue (core/line.py) that is about a name and not about a claim: inspecting, listing, breaking; the
questions to a member of a quorum; `doctor`.

Redis has no order of keys. SCAN goes through all of them once, and the names that it found are given out page by page,
so a listing shows the names as they were when it began. KEYS is never used: it would block the server.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from math import inf
from typing import Any

from dibs.backends import ledger
from dibs.backends.redis import scripts
from dibs.backends.redis.address import Address
from dibs.backends.redis.answers import Refusal, final, strange
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.scripts import MICROSECONDS, Call, Command
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.core.deadline import FOREVER
from dibs.core.line import Me
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
        self, port: RedisExecutor, ear: RedisSubscriber | None, runtime: Runtime, me: Me, keys: Keys, address: Address
    ) -> None:  # fmt: skip
        """`ear`: None where there are no messages, and everybody looks instead."""
        self._port = port
        self._address = address
        self._keys = keys
        self._ear = ear
        self._runtime = runtime
        self._me = me
        self._glance = FOREVER if ear is not None else SPIN
        self._listings: dict[str, list[str]] = {}
        """By prefix: the names that the listings under way found. The oldest come first."""

    async def line(self, name: str, until: float) -> LockInfo:
        return info_of(name, await self._port.ask(Call(scripts.LOOK, self._keys.line(name), ()), until))

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        found: list[LockInfo] = []
        while not found and (names := await self._page(prefix, after, until)):
            calls = [Call(scripts.LOOK, self._keys.line(name), ()) for name in names]
            for name, reply in zip(names, await self._port.ask_all(calls, until), strict=True):
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
        pattern = self._keys.lines(prefix)
        found: set[bytes] = set()
        for place in await self._port.primaries(until):
            cursor = b"0"
            while True:
                command = Command("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT)
                reply = await self._port.command_at(place, command, until)
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
        return is_done(await self._port.ask(Call(scripts.REVOKE, self._keys.line(name), (token,)), until))

    async def evict(self, name: str, token: int, until: float) -> bool:
        reply, is_repeated = await self._port.ask_often(Call(scripts.EVICT, self._keys.line(name), (token,)), until)
        return is_done(reply) or is_repeated

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        channel = self._keys.line(name)
        try:
            if self._ear is not None:
                await self._ear.listen(channel, key, until)
            ticket, left = _two(await self._port.ask(Call(scripts.FOREMOST, channel, ()), until))
            if ticket == seen:
                over = left / MICROSECONDS if ticket else FOREVER
                await self._me.inbox.wait(key, min(until, self._runtime.now() + min(over, self._glance)))
        finally:
            if self._ear is not None:
                self._ear.ignore(channel, key)

    async def identity(self, until: float) -> str:
        made = self._runtime.fresh_id().hex()
        key = self._keys.identity
        await self._port.command(key, Command("SET", key, made, "NX"), until)
        found = await self._port.command(key, Command("GET", key), until)
        if not isinstance(found, bytes):
            raise strange()
        return f"redis:{found.decode(errors='replace')}"

    async def stamp(self, claim: Claim, token: int, until: float) -> bool:
        call = Call(scripts.STAMP, self._keys.line(claim.name), (claim.id, token), floor=self._keys.floor)
        (_, stamped), is_kept = await self._port.ask_kept(call, until)
        return stamped == 1 and is_kept

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        """A server that syncs each write before it answers loses nothing; any other one may have, when it started."""
        key = self._keys.line(claim.name)
        up = await self._uptime(key, until)
        return up if up >= least or not await self._keeps_all(key, until) else inf

    async def clock(self, until: float) -> float:
        seconds, fraction = await self._port.command(self._keys.identity, _TIME, until)
        return int(seconds) + int(fraction) / MICROSECONDS

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.redis.doctor import Patient, examine  # noqa: PLC0415  (few programs ask)

        who = Patient(self._port, self._ear, self._runtime, self._me, self._keys, self._address)
        return await examine(who, until)

    async def connect(self, until: float) -> None:
        await self._port.connect(until)

    def round_trip(self) -> float:
        return self._port.round_trip()

    def close(self) -> None:
        self._port.close()

    async def _uptime(self, key: bytes, until: float) -> float:
        told = await self._port.command(key, _INFO, until)
        for line in told.splitlines() if isinstance(told, bytes) else ():
            name, _, value = line.partition(b":")
            if name == b"uptime_in_seconds" and value.isdigit():
                return max(int(value) - _COARSE, 0.0)
        raise StoreError("the server does not report its uptime", step="allow INFO, or connect with guard=0")

    async def _keeps_all(self, key: bytes, until: float) -> bool:
        """A server that does not show its settings may lose writes."""
        try:
            for question, wanted in _KEEPS_ALL:
                told = await self._port.command(key, question, until)
                if wanted not in (told.values() if isinstance(told, dict) else told):
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
                  None if held < 0 else -held / MICROSECONDS, False, about.decode(errors="replace"))
            for ticket, weight, left, asked, held, about in there
        ]  # fmt: skip
        return ledger.shown(name, alive, 0.0, datetime.now(UTC))
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
