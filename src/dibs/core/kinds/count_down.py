"""The latch of a store that keeps latches itself. Redisson calls it RCountDownLatch.

It has no generations: a count-down that is late may count in the next one, as in Java. A waiter listens before it
reads the count, so it notices that the latch opened even if it is armed again at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from dibs.core import names
from dibs.core.client import Client
from dibs.core.deadline import FOREVER, LEAST_PATIENCE, patience
from dibs.core.kinds.options import count_of
from dibs.core.kinds.primitives import not_open
from dibs.core.latches import OPENED, LatchChange, Latches
from dibs.errors import DibsError, StoreUnavailable

T = TypeVar("T")


class CountDown:
    def __init__(self, client: Client, name: object) -> None:
        self.name = names.check(name)
        self._client = client
        self._encoded = client.prefix + self.name

    async def arm(self, count: object) -> None:
        change = self._change(count_of(count, "count"))
        left = await self._write(lambda latches: latches.arm(change, change.by), change.by)
        if left:
            raise not_open(self._client, self.name, left)

    async def count_down(self, n: object = 1) -> None:
        change = self._change(count_of(n, "n"))
        await self._write(lambda latches: latches.count_down(change, change.by), change.by)

    async def count(self) -> int:
        return await self._count(self._patience())

    async def wait(self, timeout: object, armed: object) -> bool:
        """True: it opened. False: timed out."""
        if not isinstance(armed, bool):
            raise TypeError(f"armed must be True or False, not {armed!r}")
        client, limit = self._client, patience(timeout)
        deadline = FOREVER if limit is None else client.now() + limit
        latches, key, was_closed = await client.latches(), client.begin_watch(), not armed
        try:
            while True:
                end = self._patience() if deadline == FOREVER else max(deadline, client.now() + LEAST_PATIENCE)
                with suppress(StoreUnavailable):  # without messages the waiter is only slower
                    await latches.listen(self._encoded, key, end)
                left = await self._count(end)
                if was_closed and not left:
                    return True
                was_closed = was_closed or left > 0
                if (now := client.now()) >= deadline:
                    return False
                message = await client.me.inbox.wait(key, min(deadline, now + latches.poll_interval))
                client.registry.check_open()
                if message == OPENED:
                    return True
        except DibsError as error:
            raise client.completed(error, self.name) from None
        finally:
            latches.ignore(self._encoded, key)
            client.end_watch(key)

    def describe(self) -> str:
        return self._client.place(self.name)

    def _patience(self) -> float:
        return self._client.now() + max(self._client.retry, LEAST_PATIENCE)

    def _change(self, amount: int) -> LatchChange:
        return LatchChange(self._client.runtime.fresh_id(), self._encoded, amount, self._patience())

    async def _count(self, until: float) -> int:
        latches = await self._client.latches()
        return await self._client.patiently(self.name, lambda: latches.count(self._encoded, until), until)

    async def _write(self, write: Callable[[Latches], Awaitable[T]], until: float) -> T:
        latches = await self._client.latches()
        try:
            return await self._client.patiently(self.name, lambda: write(latches), until)
        except StoreUnavailable as error:
            raise self._client.error(
                StoreUnavailable, self.name, f"{error.what}; whether the change happened is not known",
                step="read the count again",
            ) from None  # fmt: skip
