"""`connect` and the client of the blocking face."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from dibs import faces
from dibs.blocking.locks import Election, Hold, Lock, RLock, RWLock, Semaphore, Striped
from dibs.blocking.ownerless import Cell, Fence, Latch
from dibs.blocking.within import Within
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
from dibs.runtime.threads import ThreadRuntime, step

P = ParamSpec("P")
T = TypeVar("T")


class LockOptions(faces.LockOptions, total=False):
    """What every lock takes, by keyword."""

    on_lost: Callable[[Hold], object] | None


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
        return Within(enclosing(self._core, connection, awaits=False))

    @overload
    def synchronized(
        self, name: str, on_busy: Literal["wait", "raise"] = "wait", **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    @overload
    def synchronized(
        self, name: str, on_busy: Literal["skip"], **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...

    def synchronized(
        self, name: str, on_busy: Literal["wait", "skip", "raise"] = "wait", **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
        """A function that runs only while it holds the lock of this name, which may hold fields of the call.

        Busy: "wait" as `with` does; "skip" gives None and says so in the log; "raise" raises `Busy`. The last two try
        once, unless a `timeout` is given.

        >>> import dibs
        >>> client = dibs.connect("memory://example")
        >>> @client.synchronized("invoice:{number}", timeout=5)
        ... def pay(number: int) -> bool:
        ...     return client.lock("invoice:42").locked()
        >>> pay(42), pay(43)
        (True, False)
        >>> client.close()
        """
        from dibs.synchronized import Plan, sign, skipped  # noqa: PLC0415  (it needs `inspect`, a costly import)

        plan = Plan(self._core, Lock, name, on_busy, options)

        def decorate(function: Callable[P, T]) -> Callable[P, T | None]:
            locks = plan.locks(function, awaited=False)

            @wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
                lock = locks(args, kwargs)
                entered = False  # a body may wait in vain too: that is its own affair
                try:
                    with lock:
                        entered = True
                        return function(*args, **kwargs)
                except AcquireTimeout as busy:
                    if entered or not plan.skips:
                        raise
                    skipped(function, busy)
                    return None

            sign(call, function)
            return call

        return decorate

    def inspect(self, name: str) -> LockInfo:
        return step(self._core.inspect(name))

    def locks(self, prefix: str = "") -> Iterator[LockInfo]:
        page, after = step(self._core.page(prefix, ""))
        while after:
            yield from page
            page, after = step(self._core.page(prefix, after))

    def break_(self, name: str, *, token: int) -> None:
        step(self._core.break_(name, token))

    def doctor(self) -> list[Finding]:
        """What the store promises as it stands, and what endangers that, with the fix.

        >>> import dibs
        >>> client = dibs.connect("memory://example")
        >>> print(client.doctor()[0].what)
        memory://example, the memory of this process
        >>> [finding.fix for finding in client.doctor() if finding.level == "danger"]
        []
        >>> client.close()
        """
        return step(self._core.doctor())

    def close(self) -> None:
        step(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dibs.Client {self._core.describe()}>"
