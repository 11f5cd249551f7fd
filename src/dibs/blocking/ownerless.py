"""What nobody owns, in the blocking face: latch, cell and fence; one line over the core for each method."""

from __future__ import annotations

from collections.abc import Callable

from dibs.core.kinds.cell import Cell as CoreCell
from dibs.core.kinds.fence import Fence as CoreFence
from dibs.core.kinds.latch import Latch as CoreLatch
from dibs.faces import Connection, Seconds, Unpicklable, admits
from dibs.runtime.threads import step


class Latch(Unpicklable):
    """Closed by `arm(count)`, open once it was counted down; a latch that is not armed is open.

    >>> import dibs
    >>> latch = dibs.connect("memory://example").latch("shards-loaded")
    >>> latch.arm(2)
    >>> latch.count_down()
    >>> latch.count(), latch.wait(timeout=0)
    (1, False)
    >>> latch.count_down()
    >>> latch.wait()
    True
    """

    __slots__ = ("_core",)

    def __init__(self, core: CoreLatch) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    def arm(self, count: int) -> None:
        step(self._core.arm(count))

    def count_down(self, n: int = 1) -> None:
        step(self._core.count_down(n))

    def count(self) -> int:
        return step(self._core.count())

    def wait(self, timeout: Seconds | None = None, armed: bool = False) -> bool:
        return step(self._core.wait(timeout, armed))

    def __repr__(self) -> str:
        return f"<dibs.Latch {self._core.describe()}>"


class Cell(Unpicklable):
    """A versioned value: bytes, or None while it is unset, which is version 0.

    >>> import dibs
    >>> cell = dibs.connect("memory://example").cell("schema")
    >>> cell.set(b"v1", 0)
    1
    >>> cell.get()
    (b'v1', 1)
    >>> cell.update(lambda value: value + b".1")
    (b'v1.1', 2)
    >>> try:
    ...     cell.set(b"v2", 1)
    ... except dibs.Conflict as error:
    ...     print(error.what)
    it is at version 2, not at 1
    """

    __slots__ = ("_core",)

    def __init__(self, core: CoreCell) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    def get(self) -> tuple[bytes | None, int]:
        return step(self._core.get())

    def set(self, value: bytes, version: int) -> int:
        return step(self._core.set(value, version))

    def update(self, fn: Callable[[bytes | None], bytes]) -> tuple[bytes, int]:
        return step(self._core.update(fn))

    def __repr__(self) -> str:
        return f"<dibs.Cell {self._core.describe()}>"


class Fence(Unpicklable):
    """The checking half of fencing: for the resource to call in the same atomic step as the change.

    >>> import dibs
    >>> fence = dibs.connect("memory://example").fence("stock")
    >>> fence.admit(1732)
    >>> try:
    ...     fence.admit(1731)
    ... except dibs.StaleToken as error:
    ...     print(error.what)
    token 1731 is stale: 1732 was admitted before
    """

    __slots__ = ("_core",)

    def __init__(self, core: CoreFence) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    def admit(self, token: int, shared: bool = False, *, within: Connection | None = None) -> None:
        step(self._core.admit(token, shared, admits(within, awaits=False)))

    def __repr__(self) -> str:
        return f"<dibs.Fence {self._core.describe()}>"
