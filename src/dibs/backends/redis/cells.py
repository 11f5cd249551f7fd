"""Seam 3 over a port: values that nobody owns, one hash each, which never expires."""

from __future__ import annotations

from dibs.backends.redis import scripts
from dibs.backends.redis.answers import Refusal, final, strange
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.inspection import SPIN
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.scripts import MICROSECONDS, Call, Command
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.core.cells import FENCE, LARGEST, UNSET, Kept, Spot, Write
from dibs.core.deadline import FOREVER
from dibs.core.line import Me
from dibs.core.runtime import Runtime
from dibs.errors import Conflict, Mismatch, StoreError, StoreUnavailable

_REMEMBERED = 60 * MICROSECONDS
"""How long a write is remembered at most: none is repeated for longer."""


class RedisCells:
    """See core/cells.py."""

    def __init__(self, port: RedisExecutor, ear: RedisSubscriber | None, runtime: Runtime, me: Me, keys: Keys) -> None:
        self._port = port
        self._keys = keys
        self._ear = ear
        self._runtime = runtime
        self._me = me

    async def get(self, spot: Spot, until: float) -> Kept:
        key = self._keys.cell(spot)
        reply = await self._port.command(key, Command("HMGET", key, "value", "version"), until)
        if not isinstance(reply, list) or len(reply) != 2:
            raise strange()
        value, version = reply
        if version is None:
            if value is None:
                return UNSET
            raise _foreign(key)
        if not version.isdigit() or value is None or len(value) > LARGEST:
            raise _foreign(key)
        return Kept(value, int(version))

    async def put(self, write: Write, until: float) -> int:
        call = Call(
            scripts.PUT, self._keys.cell(write.spot),
            (write.id, _REMEMBERED, write.version, write.value), write.by,
        )  # fmt: skip
        write.asked = True
        reply, is_kept = await self._port.ask_kept(call, until)
        if len(reply) == 1:
            raise StoreUnavailable("the write came too late to count")
        if len(reply) != 3:
            raise strange()
        _, done, version = reply
        if not done:
            raise Conflict(
                f"it is at version {version}, not at {write.version}", step="read the value again, then write"
            )
        if not is_kept:
            raise self._port.unkept()
        return int(version)

    async def watch(self, spot: Spot, version: int, key: bytes, until: float) -> None:
        channel = self._keys.cell(spot)
        glance = FOREVER if self._ear is not None else SPIN
        try:
            if self._ear is not None:
                await self._ear.listen(channel, key, until)
            if (await self.get(spot, until)).version == version:
                await self._me.inbox.wait(key, min(until, self._runtime.now() + glance))
        finally:
            if self._ear is not None:
                self._ear.ignore(channel, key)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        kind = "shared" if shared else "exclusive"
        reply, is_kept = await self._port.ask_kept(
            Call(scripts.ADMIT, self._keys.cell(Spot(FENCE, name)), (token, kind)), until
        )
        if len(reply) != 2:
            raise strange()
        if not is_kept:
            raise self._port.unkept()
        return int(reply[1])

    def close(self) -> None:
        self._port.close()


def _foreign(key: bytes) -> StoreError | Mismatch:
    return final(Refusal("WRONGTYPE the record is not one of ours"), key)
