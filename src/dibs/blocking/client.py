"""`connect` and the client of the blocking face."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, Unpack

from dibs import faces
from dibs.blocking.locks import Hold, Lock, RLock, RWLock, Semaphore, Striped
from dibs.core.client import Client as CoreClient
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.lock import Options
from dibs.core.kinds.striped import Striped as CoreStriped
from dibs.faces import Kind, Raised, Seconds, Trace, Unpicklable, make_client
from dibs.info import LockInfo
from dibs.runtime.threads import ThreadRuntime, step


class LockOptions(faces.LockOptions, total=False):
    """What every lock takes, by keyword."""

    on_lost: Callable[[Hold], object] | None


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
    """A client for a store; no I/O happens before its first use.

    >>> import dibs
    >>> with dibs.connect("memory://example") as client, client.lock("invoice:42", timeout=5) as hold:
    ...     hold.check()
    """
    return Client(
        make_client(
            ThreadRuntime(), url,
            lease=lease, owner=owner, info=info, namespace=namespace, retry=retry, store_options=store_options,
        )
    )  # fmt: skip


class Client(Unpicklable):
    """What `connect` gives: makes locks, and looks at them. Safe to share between threads.

    >>> import dibs
    >>> client = dibs.connect("memory://example")
    >>> client.inspect("invoice:42").holders
    ()
    >>> client.close()
    """

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

    def inspect(self, name: str) -> LockInfo:
        return step(self._core.inspect(name))

    def locks(self, prefix: str = "") -> Iterator[LockInfo]:
        page, after = step(self._core.page(prefix, ""))
        while after:
            yield from page
            page, after = step(self._core.page(prefix, after))

    def break_(self, name: str, *, token: int) -> None:
        step(self._core.break_(name, token))

    def close(self) -> None:
        step(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dibs.Client {self._core.describe()}>"
