"""What nobody owns, in the asyncio face: latch, cell and fence; one line over the core for each method."""

from __future__ import annotations

from collections.abc import Callable

from dibs.core.kinds.cell import Cell as CoreCell
from dibs.core.kinds.fence import Fence as CoreFence
from dibs.core.kinds.latch import Latch as CoreLatch
from dibs.faces import Connection, Seconds, Unpicklable, admits


class Latch(Unpicklable):
    """Closed by `arm(count)`, open once it was counted down; a latch that is not armed is open."""

    __slots__ = ("_core",)

    def __init__(self, core: CoreLatch) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    async def arm(self, count: int) -> None:
        await self._core.arm(count)

    async def count_down(self, n: int = 1) -> None:
        await self._core.count_down(n)

    async def count(self) -> int:
        return await self._core.count()

    async def wait(self, timeout: Seconds | None = None, armed: bool = False) -> bool:
        return await self._core.wait(timeout, armed)

    def __repr__(self) -> str:
        return f"<dibs.aio.Latch {self._core.describe()}>"


class Cell(Unpicklable):
    """A versioned value: bytes, or None while it is unset, which is version 0."""

    __slots__ = ("_core",)

    def __init__(self, core: CoreCell) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    async def get(self) -> tuple[bytes | None, int]:
        return await self._core.get()

    async def set(self, value: bytes, version: int) -> int:
        return await self._core.set(value, version)

    async def update(self, fn: Callable[[bytes | None], bytes]) -> tuple[bytes, int]:
        return await self._core.update(fn)

    def __repr__(self) -> str:
        return f"<dibs.aio.Cell {self._core.describe()}>"


class Fence(Unpicklable):
    """The checking half of fencing: for the resource to call in the same atomic step as the change."""

    __slots__ = ("_core",)

    def __init__(self, core: CoreFence) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    async def admit(self, token: int, shared: bool = False, *, within: Connection | None = None) -> None:
        await self._core.admit(token, shared, admits(within, awaits=True))

    def __repr__(self) -> str:
        return f"<dibs.aio.Fence {self._core.describe()}>"
