"""`connect` and the client of the asyncio face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self, Unpack

from dibs import faces
from dibs.aio.locks import Hold, Lock, RLock, RWLock, Semaphore, Striped
from dibs.core.client import Client as CoreClient
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.lock import Options
from dibs.core.kinds.striped import Striped as CoreStriped
from dibs.faces import Kind, Raised, Seconds, Trace, Unpicklable, make_client
from dibs.info import LockInfo
from dibs.runtime.aio import AioRuntime


class LockOptions(faces.LockOptions, total=False):
    """What every lock takes, by keyword."""

    on_lost: Callable[[Hold], object] | None
    cancel_on_lost: bool


def connect(
    url: str | None = None,
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

    async def close(self) -> None:
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<dibs.aio.Client {self._core.describe()}>"
