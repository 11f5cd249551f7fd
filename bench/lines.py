"""A line of many who wait for one lock, and what a server is asked to do while it moves.

Tasks share five clients, and no client has two in a row, so that each hand-off goes from one client to another. The
server counts; `Counted` reads what it has counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from crew import Failed

CLIENTS = 5
SPELL = 5
"""Hand-offs between two looks at the counts."""
PATIENCE = 30.0
_QUIET = 0.02


class Counts(NamedTuple):
    """Commands that a server carried out."""

    sent: float
    inside: float

    def __sub__(self, other: Counts) -> Counts:  # type: ignore[override]
        return Counts(self.sent - other.sent, self.inside - other.inside)

    def per(self, number: float) -> Counts:
        return Counts(self.sent / number, self.inside / number)


Counted = Callable[[], Counts]


async def spells(
    url: str, counted: Counted, size: int, spells: int, seconds: float
) -> tuple[list[Counts], list[Counts], Counts, float]:  # fmt: skip
    """Per hand-off and per join, of each spell; per second while all wait, and this process's CPU share of it."""
    async with _line_of(url, counted) as line:
        await line.grow(size + 1)  # one of them holds
        passing, joining = [], []
        for _ in range(spells):
            before = counted()
            for _ in range(SPELL):
                await line.pass_on()
            between = counted()
            await line.grow(SPELL)
            after = counted()
            passing.append((between - before).per(SPELL))
            joining.append((after - between).per(SPELL))
        before, began, used = counted(), time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        return passing, joining, (counted() - before).per(took), (time.process_time() - used) / took


class Line:
    """Tasks of several clients that want one lock, in an order that is known."""

    def __init__(self, clients: list[Any], counted: Counted) -> None:
        self._locks = [client.lock("line") for client in clients]
        self._counted, self._joined = counted, 0
        self._asked: list[asyncio.Task[Any]] = []

    async def grow(self, number: int) -> None:
        """So many more join, each once the one before it stands in line; nothing more is sent for any of them."""
        for _ in range(number):
            before = self._counted().sent
            lock = self._locks[self._joined % len(self._locks)]
            self._joined += 1
            self._asked.append(asyncio.create_task(self._hold(lock)))
            await self._until(lambda: self._counted().sent > before)  # noqa: B023  (awaited at once)
            await self._quiet()  # what was sent may have been something else than its join

    async def pass_on(self) -> None:
        """The first gives back; then the next one has it."""
        first = await asyncio.wait_for(self._asked.pop(0), PATIENCE)
        await first.release()
        await asyncio.wait_for(asyncio.shield(self._asked[0]), PATIENCE)

    async def disband(self) -> None:
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)

    async def _quiet(self) -> None:
        """Until nothing was sent for a while."""
        before, now = -1.0, self._counted().sent
        while now > before:
            await asyncio.sleep(_QUIET)
            before, now = now, self._counted().sent

    async def _hold(self, lock: Any) -> Any:
        return await lock.acquire()

    async def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"nothing was sent for {PATIENCE:g} s")
            await asyncio.sleep(0)


@asynccontextmanager
async def _line_of(url: str, counted: Counted) -> AsyncIterator[Line]:
    import dibs.aio

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(dibs.aio.connect(url)) for _ in range(CLIENTS)]
        for client in clients:
            async with client.lock("first"):  # connects, and loads the scripts
                pass
        line = Line(clients, counted)
        stack.push_async_callback(line.disband)
        yield line
