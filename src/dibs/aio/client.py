"""`connect` and the client of the asyncio face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from dibs import faces
from dibs.aio.locks import Election, Hold, Lock, RLock, RWLock, Semaphore, Striped
from dibs.aio.ownerless import Cell, Fence, Latch
from dibs.aio.within import Within
from dibs.core.client import Client as CoreClient
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.cell import Cell as CoreCell
from dibs.core.kinds.election import Election as CoreElection
from dibs.core.kinds.fence import Fence as CoreFence
from dibs.core.kinds.latch import Latch as CoreLatch
from dibs.core.kinds.lock import Options
from dibs.core.kinds.striped import Striped as CoreStriped
from dibs.errors import AcquireTimeout
from dibs.faces import Connection, Kind, Raised, Seconds, Target, Trace, Unpicklable, enclosing, make_client
from dibs.info import Finding, LockInfo
from dibs.runtime.aio import AioRuntime

P = ParamSpec("P")
T = TypeVar("T")


class LockOptions(faces.LockOptions, total=False):
    """What every lock takes, by keyword."""

    on_lost: Callable[[Hold], object] | None
    cancel_on_lost: bool


def connect(
    url: Target = None,
    *,
    lease: Seconds = 30.0,
    owner: str | None = None,
    info: Mapping[str, Any] | None = None,
    namespace: str = "dibs",
    retry: Seconds = 10.0,
    **store_options: Any,
) -> Client:
    """A client for a store; no I/O happens before its first use."""
    return Client(
        make_client(
            AioRuntime(), url,
            lease=lease, owner=owner, info=info, namespace=namespace, retry=retry, store_options=store_options,
        )
    )  # fmt: skip


class Client(Unpicklable):
    """What `connect` gives: makes locks, and looks at them. One client belongs to one loop at a time."""

    __slots__ = ("_core",)

    def __init__(self, core: CoreClient) -> None:
        self._core = core

    def lock(self, name: str, **options: Unpack[LockOptions]) -> Lock:
        return Lock(kinds.mutex(self._core, name, Options.checked(**options), share=False))

    def rlock(self, name: str, **options: Unpack[LockOptions]) -> RLock:
        return RLock(kinds.mutex(self._core, name, Options.checked(**options), share=True))

    def rwlock(self, name: str, **options: Unpack[LockOptions]) -> RWLock:
        return RWLock(*kinds.read_write(self._core, name, Options.checked(**options)))

    def semaphore(self, name: str, permits: int, **options: Unpack[LockOptions]) -> Semaphore:
        return Semaphore(kinds.semaphore(self._core, name, permits, Options.checked(**options)))

    def striped(self, name: str, stripes: int, **options: Unpack[LockOptions]) -> Striped:
        return Striped(CoreStriped(self._core, name, stripes, Options.checked(**options)))

    def election(self, name: str, **options: Unpack[LockOptions]) -> Election:
        return Election(CoreElection(self._core, name, Options.checked(**options)))

    def latch(self, name: str) -> Latch:
        return Latch(CoreLatch(self._core, name))

    def cell(self, name: str) -> Cell:
        return Cell(CoreCell(self._core, name))

    def fence(self, name: str) -> Fence:
        return Fence(CoreFence(self._core, name))

    def within(self, connection: Connection) -> Within:
        """Locks that the transaction of this connection of yours holds until it ends."""
        return Within(enclosing(self._core, connection, awaits=True))

    @overload
    def synchronized(
        self, name: str, on_busy: Literal["wait", "raise"] = "wait", **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]: ...

    @overload
    def synchronized(
        self, name: str, on_busy: Literal["skip"], **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]]: ...

    def synchronized(
        self, name: str, on_busy: Literal["wait", "skip", "raise"] = "wait", **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]]:
        """A coroutine function that runs only while it holds the lock of this name: see `dibs.Client.synchronized`."""
        from dibs.synchronized import Plan, sign, skipped  # noqa: PLC0415  (it needs `inspect`, a costly import)

        plan = Plan(self._core, Lock, name, on_busy, options)

        def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T | None]]:
            locks = plan.locks(function, awaited=True)

            @wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
                lock = locks(args, kwargs)
                entered = False  # a body may wait in vain too: that is its own affair
                try:
                    async with lock:
                        entered = True
                        return await function(*args, **kwargs)
                except AcquireTimeout as busy:
                    if entered or not plan.skips:
                        raise
                    skipped(function, busy)
                    return None

            sign(call, function)
            return call

        return decorate

    async def inspect(self, name: str) -> LockInfo:
        return await self._core.inspect(name)

    async def locks(self, prefix: str = "") -> AsyncIterator[LockInfo]:
        page, after = await self._core.page(prefix, "")
        while after:
            for info in page:
                yield info
            page, after = await self._core.page(prefix, after)

    async def break_(self, name: str, *, token: int) -> None:
        await self._core.break_(name, token)

    async def doctor(self) -> list[Finding]:
        """What the store promises as it stands, and what endangers that: see `dibs.Client.doctor`."""
        return await self._core.doctor()

    async def close(self) -> None:
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<dibs.aio.Client {self._core.describe()}>"
