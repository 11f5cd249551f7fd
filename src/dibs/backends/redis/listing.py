"""The names of all lines, in order. Redis has no order of keys: SCAN goes through all of them once, and what it found
is given out page by page, so a listing shows the names as they were when it began. KEYS is never used: it would keep
the server from everybody else for as long as it takes.
"""

from __future__ import annotations

from bisect import bisect_right

from dibs.backends.redis.answers import Refusal, final, strange
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.port import Port
from dibs.backends.redis.scripts import Command

PAGE = 500
_COUNT = 1000


class Listing:
    def __init__(self, port: Port, keys: Keys) -> None:
        self._port = port
        self._keys = keys
        self._begun: tuple[str, list[str]] | None = None
        """The prefix of the listing that is under way, and what was found."""

    async def page(self, prefix: str, after: str, until: float) -> list[str]:
        begun = self._begun
        if begun is None or begun[0] != prefix or not after:
            begun = self._begun = (prefix, await self._scan(prefix, until))
        names = begun[1]
        at = bisect_right(names, after)
        if at >= len(names):
            self._begun = None
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
