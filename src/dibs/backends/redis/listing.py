"""The names of all lines, in order. Redis has no order of keys: SCAN goes through all of them once, and what it found
is given out page by page, so a listing shows the names as they were when it began. KEYS is never used: it would keep
the server from everybody else for as long as it takes.
"""

from __future__ import annotations

from bisect import bisect_right

from dibs.backends.redis.answers import Refusal, final, strange
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.scripts import Command

PAGE = 500
_COUNT = 1000
_MOST = 8
"""Listings under way whose names are kept; some are never finished."""


class Listing:
    def __init__(self, port: RedisExecutor, keys: Keys) -> None:
        self._port = port
        self._keys = keys
        self._begun: dict[str, list[str]] = {}
        """By prefix: the names that the listings under way found. The oldest come first."""

    async def page(self, prefix: str, after: str, until: float) -> list[str]:
        names = self._begun.get(prefix) if after else None
        if names is None:
            names = await self._scan(prefix, until)
            self._begun.pop(prefix, None)
            self._begun[prefix] = names
            for abandoned in list(self._begun)[:-_MOST]:
                self._begun.pop(abandoned, None)
        at = bisect_right(names, after)
        if at >= len(names):
            self._begun.pop(prefix, None)
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
