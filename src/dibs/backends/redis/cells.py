"""Seam 3 over a port: values that nobody owns, one hash each, which never expires."""

from __future__ import annotations

from dibs.backends.redis import scripts
from dibs.backends.redis.errors import Refusal, final, strange
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.inspection import SPIN
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.scripts import MICROSECONDS, Command, ScriptCall
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.core.cells import FENCE, LARGEST, UNSET_CELL, CellKey, CellValue, Write
from dibs.core.deadline import FOREVER
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import Conflict, Mismatch, StoreError, StoreUnavailable

_REMEMBERED = 60 * MICROSECONDS
"""How long a write is remembered at most: none is repeated for longer."""


class RedisCells:
    """See core/cells.py."""

    def __init__(
        self,
        executor: RedisExecutor,
        subscriber: RedisSubscriber | None,
        runtime: Runtime,
        me: ClientIdentity,
        keys: Keys,
    ) -> None:
        self._executor = executor
        self._keys = keys
        self._subscriber = subscriber
        self._runtime = runtime
        self._me = me

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        key = self._keys.cell(cell_key)
        reply = await self._executor.command(key, Command("HMGET", key, "value", "version"), until)
        if not isinstance(reply, list) or len(reply) != 2:
            raise strange()
        value, version = reply
        if version is None:
            if value is None:
                return UNSET_CELL
            raise _foreign(key)
        if not version.isdigit() or value is None or len(value) > LARGEST:
            raise _foreign(key)
        return CellValue(value, int(version))

    async def put(self, write: Write, until: float) -> int:
        call = ScriptCall(
            scripts.PUT, self._keys.cell(write.cell_key),
            (write.id, _REMEMBERED, write.version, write.value), write.by,
        )  # fmt: skip
        write.asked = True
        reply, is_replicated = await self._executor.ask_replicated(call, until)
        if len(reply) == 1:
            raise StoreUnavailable("the write came too late to count")
        if len(reply) != 3:
            raise strange()
        _, done, version = reply
        if not done:
            raise Conflict(
                f"it is at version {version}, not at {write.version}", step="read the value again, then write"
            )
        if not is_replicated:
            raise self._executor.unkept()
        return int(version)

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        channel = self._keys.cell(cell_key)
        poll_interval = FOREVER if self._subscriber is not None else SPIN
        try:
            if self._subscriber is not None:
                await self._subscriber.listen(channel, key, until)
            if (await self.get(cell_key, until)).version == version:
                await self._me.inbox.wait(key, min(until, self._runtime.now() + poll_interval))
        finally:
            if self._subscriber is not None:
                self._subscriber.ignore(channel, key)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        kind = "shared" if shared else "exclusive"
        reply, is_replicated = await self._executor.ask_replicated(
            ScriptCall(scripts.ADMIT, self._keys.cell(CellKey(FENCE, name)), (token, kind)), until
        )
        if len(reply) != 2:
            raise strange()
        if not is_replicated:
            raise self._executor.unkept()
        return int(reply[1])

    def close(self) -> None:
        self._executor.close()


def _foreign(key: bytes) -> StoreError | Mismatch:
    return final(Refusal("WRONGTYPE the record is not one of ours"), key)
