"""A slot: one name in one space, as latch, cell and fence use it, with retries.

If the store does not answer, the same write is retried for the client's `retry` seconds. It takes effect at most once,
and a repetition reports success. After a timeout the write may still take effect until `write.by`: the error says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dibs.core import names
from dibs.core.cells import CellKey, Cells, CellValue, Write
from dibs.core.client import Client
from dibs.core.deadline import LEAST_PATIENCE, gaps
from dibs.core.queue import CELLS
from dibs.errors import Conflict, StoreUnavailable

T = TypeVar("T")


class VersionedSlot:
    def __init__(self, client: Client, space: str, name: object, what: str) -> None:
        self.name = names.check(name)
        client.require(CELLS, what)
        self.client = client
        self.cell_key = CellKey(space, client.prefix + self.name)

    def patience(self) -> float:
        """Until when to retry a store that does not answer."""
        return self.client.now() + max(self.client.retry, LEAST_PATIENCE)

    async def get(self, until: float | None = None) -> CellValue:
        end = self.patience() if until is None else until
        return await self.ask(lambda cells: cells.get(self.cell_key, end), end)

    async def put(self, value: bytes, version: int) -> int:
        """Write the value if it still has this version, and return the new version; otherwise raise Conflict."""
        write = Write(self.cell_key, value, version, self.client.runtime.fresh_id(), self.patience())
        try:
            return await self.ask(lambda cells: cells.put(write, write.by), write.by)
        except StoreUnavailable as error:
            if not write.asked:
                raise
            raise self.client.error(
                StoreUnavailable, self.name, f"{error.what}; whether the change happened is not known",
                step="read the value again",
            ) from None  # fmt: skip

    async def update(self, change: Callable[[bytes | None], bytes | None], tries: int) -> CellValue:
        """Apply `change` to the value, and retry on a conflict. If it returns None, nothing is written. Returns the
        present value."""
        for gap in gaps(tries):
            there = await self.get()
            value = change(there.value)
            if value is None:
                return there
            try:
                return CellValue(value, await self.put(value, there.version))
            except Conflict:
                await self.client.runtime.sleep(self.client.runtime.jitter(gap))
        raise self.client.error(
            Conflict, self.name, f"others changed it first, {tries} times in a row",
            step="try again later, or take a lock for it",
        )  # fmt: skip

    async def changed(self, version: int, until: float) -> None:
        """Wait until the version differs; returning without a change is fine."""
        cells = await self.client.cells()
        await self.client.look_out(self.name, lambda key, end: cells.watch(self.cell_key, version, key, end), until)

    async def ask(self, question: Callable[[Cells], Awaitable[T]], until: float) -> T:
        cells = await self.client.cells()
        return await self.client.patiently(self.name, lambda: question(cells), until)
