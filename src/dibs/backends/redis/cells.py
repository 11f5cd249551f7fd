"""Shared values without an owner (core/cells.py). Each is a hash, which never expires."""

from __future__ import annotations

from dibs.backends.redis import scripts
from dibs.backends.redis.context import Context
from dibs.backends.redis.errors import Refusal, final, strange
from dibs.backends.redis.scripts import MICROSECONDS, Command, ScriptCall
from dibs.core.cells import FENCE, LARGEST, UNSET_CELL, CellKey, CellValue, Write
from dibs.errors import Conflict, StoreUnavailable

_REMEMBERED = 60 * MICROSECONDS
"""How long a write is remembered at most: no caller retries for longer."""


class RedisCells:
    """See core/cells.py."""

    def __init__(self, context: Context) -> None:
        self._executor = context.executor
        self._keys = context.keys
        self._subscriber = context.subscriber
        self._now = context.runtime.now
        self._inbox = context.identity.inbox
        self._poll_interval = context.poll_interval
        self.close = context.executor.close

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        key = self._keys.cell(cell_key)
        match await self._executor.command(key, Command("HMGET", key, "value", "version"), until):
            case [None, None]:
                return UNSET_CELL
            case [bytes(value), bytes(version)] if version.isdigit() and len(value) <= LARGEST:
                return CellValue(value, int(version))
            case [_, _]:
                raise final(Refusal("WRONGTYPE the record is not one of ours"), key)
        raise strange()

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
            raise self._executor.not_replicated()
        return int(version)

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        channel = self._keys.cell(cell_key)
        try:
            if self._subscriber is not None:
                await self._subscriber.listen(channel, key, until)
            if (await self.get(cell_key, until)).version == version:
                await self._inbox.wait(key, min(until, self._now() + self._poll_interval))
        finally:
            if self._subscriber is not None:
                self._subscriber.ignore(channel, key)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        kind = "shared" if shared else "exclusive"
        call = ScriptCall(scripts.ADMIT, self._keys.cell(CellKey(FENCE, name)), (token, kind))
        reply, is_replicated = await self._executor.ask_replicated(call, until)
        if len(reply) != 2:
            raise strange()
        if not is_replicated:
            raise self._executor.not_replicated()
        return int(reply[1])
