"""Latches (core/latches.py) as Redisson's RCountDownLatch: a key with the count, which is absent while it is open."""

from __future__ import annotations

from typing import Any

from dibs.backends.redis.errors import strange
from dibs.backends.redis.redisson import scripts
from dibs.backends.redis.redisson.forms import LATCH_MS, milliseconds
from dibs.backends.redis.redisson.names import Names
from dibs.backends.redis.redisson.queue import Redisson, not_redissons
from dibs.backends.redis.redisson.requests import deletion
from dibs.backends.redis.scripts import Script, ScriptCall
from dibs.core.latches import LatchChange
from dibs.errors import StoreUnavailable

_POLL = 15.0
"""Seconds until a waiter looks again in case a message was lost."""


class RedissonLatches:
    def __init__(self, redisson: Redisson) -> None:
        self._redisson = redisson
        self._executor = redisson.context.executor
        self._subscriber = redisson.subscriber
        self._now = redisson.context.runtime.now
        self.poll_interval = min(_POLL, redisson.context.poll_interval)
        self.close = redisson.context.executor.close

    async def count(self, name: str, until: float) -> int:
        call = ScriptCall(scripts.LATCH_COUNT, self._redisson.keys.queue(name), ())
        match await self._executor.ask(call, until):
            case [_, int(left)]:
                return max(left, 0)
            case [_, bytes(kind)]:
                raise not_redissons(kind.decode(errors="replace"))
        raise strange()

    async def arm(self, change: LatchChange, until: float) -> int:
        match await self._ask(scripts.LATCH_ARM, change, until):
            case [1, int()]:
                return 0
            case [0, int(left)] if left > 0:
                return left
        raise not_redissons("string")

    async def count_down(self, change: LatchChange, until: float) -> None:
        await self._ask(scripts.LATCH_COUNT_DOWN, change, until)

    async def _ask(self, script: Script, change: LatchChange, until: float) -> list[Any]:
        await self._redisson.ready(until)
        names, terms = self._redisson.keys.of(change.name), self._redisson.terms
        mark = names.latch + change.id.hex().encode()
        is_first, change.asked = not change.asked, True
        remembered = LATCH_MS + milliseconds(max(change.by - self._now(), 0.0))  # no copy arrives later
        words = (names.latch_channel, terms.publish, remembered, change.amount)
        call = ScriptCall(script, names.key, words, change.by, (mark,))
        (_, *said), is_replicated = await self._executor.ask_replicated(call, until)
        if said == [-1]:
            raise StoreUnavailable("the change came too late to count")
        if said and isinstance(said[0], bytes):
            raise not_redissons(said[0].decode(errors="replace"))
        if not said:
            raise strange()
        if not is_replicated:
            raise self._executor.not_replicated()
        if is_first:  # else an earlier copy can still arrive
            self._executor.tell(names.key, deletion(names, change.id.hex().encode()))
        return said

    async def listen(self, name: str, key: bytes, until: float) -> None:
        await self._redisson.ready(until)
        channel = self._names(name).latch_channel
        if self._subscriber is not None and not self._subscriber.hears(channel, key):
            await self._subscriber.listen(channel, key, until)

    def ignore(self, name: str, key: bytes) -> None:
        if self._subscriber is not None:
            self._subscriber.ignore(self._names(name).latch_channel, key)

    def _names(self, name: str) -> Names:
        return self._redisson.keys.of(name)
