"""What a member of a quorum is asked besides: see `Voter` in core/line.py."""

from __future__ import annotations

from math import inf

from dibs.backends.redis import scripts
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.scripts import MICROSECONDS, Call, Command
from dibs.core.rule import Claim
from dibs.errors import StoreError, StoreUnavailable

_INFO, _TIME = Command("INFO", "server"), Command("TIME")
_KEEPS_ALL = ((Command("CONFIG", "GET", "appendonly"), b"yes"), (Command("CONFIG", "GET", "appendfsync"), b"always"))
_COARSE = 1.0
"""A server counts the seconds since its start by whole ones, from a whole one."""


class Voting:
    """Over one port."""

    def __init__(self, port: RedisExecutor) -> None:
        self._port = port

    async def stamp(self, keys: Keys, claim: Claim, token: int, until: float) -> bool:
        call = Call(scripts.STAMP, keys.line(claim.name), (claim.id, token), floor=keys.floor)
        (_, stamped), is_kept = await self._port.ask_kept(call, until)
        return stamped == 1 and is_kept

    async def settled(self, key: bytes, least: float, until: float) -> float:
        """A server that syncs each write before it answers loses nothing; any other one may have, when it started."""
        up = await self._uptime(key, until)
        return up if up >= least or not await self._keeps_all(key, until) else inf

    async def clock(self, key: bytes, until: float) -> float:
        seconds, fraction = await self._port.command(key, _TIME, until)
        return int(seconds) + int(fraction) / MICROSECONDS

    async def _uptime(self, key: bytes, until: float) -> float:
        told = await self._port.command(key, _INFO, until)
        for line in told.splitlines() if isinstance(told, bytes) else ():
            name, _, value = line.partition(b":")
            if name == b"uptime_in_seconds" and value.isdigit():
                return max(int(value) - _COARSE, 0.0)
        raise StoreError("the server does not report its uptime", step="allow INFO, or connect with guard=0")

    async def _keeps_all(self, key: bytes, until: float) -> bool:
        """Of one that does not let us read its settings we believe the worse."""
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
