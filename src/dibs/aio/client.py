"""`connect` and the client of the async API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from dibs._shared import NAMESPACE, Connection, ExcType, Raised, Seconds, Target, Trace, enclosing, make_client
from dibs.aio.election import Election
from dibs.aio.locks import Hold, Lock, RLock, RWLock, Semaphore
from dibs.aio.primitives import Cell, Fence, Latch
from dibs.aio.several import Striped
from dibs.aio.within import Within
from dibs.bases import AsyncWith, OverCore
from dibs.core.client import Client as CoreClient
from dibs.core.kinds import lock as kinds
from dibs.core.kinds import primitives
from dibs.core.kinds.any_latch import latch
from dibs.core.kinds.election import Election as CoreElection
from dibs.core.kinds.options import Options
from dibs.core.kinds.striped import Striped as CoreStriped
from dibs.errors import AcquireTimeout
from dibs.events import Observer
from dibs.info import Finding, LockInfo
from dibs.runtime.aio import AioRuntime

P = ParamSpec("P")
T = TypeVar("T")


def connect(
    url: Target = None,
    *,
    lease: Seconds = 30.0,
    owner: str | None = None,
    info: Mapping[str, Any] | None = None,
    namespace: str = NAMESPACE,
    retry: Seconds = 10.0,
    observer: Observer | None = None,
    **store_options: Any,
) -> Client:
    """Make a client for a store. Does no I/O: the first use connects.

    Args:
        url: The URL of the store, such as `"redis://localhost"`; or a driver object, such as a `redis.Redis`; or a
            list of them, which is a quorum. None, the default: the URL in `$DIBS_URL`, or else the embedded store,
            one SQLite file for this user on this machine.
        lease: Seconds that a lock without a `lease` of its own survives without renewal, at least 0.5; by default 30.
        owner: The `owner` of locks without one of their own: see `Client.lock`.
        info: A small dict that others see of every lock of this client.
        namespace: The prefix of every name; `"dibs"` by default, with `layout="redisson"` none. `""`: names as written.
        retry: Seconds to retry a store that does not answer, in calls without a timeout. The default is 10.
        observer: A function that receives every event of this client: see `dibs.observe`. None by default.
        store_options: Options that only this store has; its page in the documentation lists them.

    Raises:
        MissingDriver: The driver of this store is not installed.
        Unsupported: There is no URL, and this process runs in Kubernetes.
        ValueError: The URL, or an option, is not valid.
        TypeError: The store has no such option, or an option has the wrong type.

    Example:
        >>> import asyncio, dibs.aio
        >>> async def main() -> None:
        ...     async with dibs.aio.connect("memory://example") as client, client.lock("invoice:42") as hold:
        ...         hold.check()
        >>> asyncio.run(main())
    """
    return Client(
        make_client(
            AioRuntime(), url, lease=lease, owner=owner, info=info, namespace=namespace, retry=retry,
            observer=observer, store_options=store_options,
        )
    )  # fmt: skip


class Client(AsyncWith, OverCore):
    """Makes locks of one store, and looks at them. `connect` makes one.

    Making a lock is cheap and does no I/O. After `fork()` a client works in the child too, and holds nothing there.
    `async with client:` closes it at the end.

    Note:
        A client belongs to the first event loop that uses it, or to another one once that is closed. Tasks share it.

    Example:
        >>> import asyncio, dibs.aio
        >>> async def main() -> None:
        ...     async with dibs.aio.connect("memory://example") as client:
        ...         print((await client.inspect("invoice:42")).holders)
        >>> asyncio.run(main())
        ()
    """

    __slots__ = ("_core",)
    _core: CoreClient

    def lock(
        self, name: str, *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Lock:  # fmt: skip
        """Make an exclusive lock that is not re-entrant.

        Args:
            name: 1 to 512 bytes of UTF-8, not blank, without control characters.
            timeout: Seconds that `async with` and `acquire` wait. None, the default, waits for ever; 0 tries once.
            lease: Seconds that the lock survives without renewal, at least 0.5. None, the default: the client's.
            renew: Whether the watchdog renews the lock at a third of its lease; True by default. If False, a hold
                is lost after nine tenths of `lease`.
            fenced: Whether holds must have a token; False by default. With `layout="redisson"` others have none.
            max_hold: Seconds after which a hold ends, as lost, though it is renewed. None, the default: never.
            fair: Whether waiters are served in their order. None, the default: wherever the store can, which is
                everywhere but in a quorum. False: it stays outside the queue, and others may overtake it.
            owner: The owner, which may re-enter an `rlock`. None, the default: the calling thread or task. `"client"`:
                the whole client. Any other string: every user of that string in this client. Others see the string.
            info: A small dict that others see, merged with the client's. None by default.
            on_lost: A plain function, not a coroutine function, called with the hold when it is lost: in the sync API
                on a thread of its own, in the async API in the event loop of the client. None by default.
            cancel_on_lost: Whether a loss cancels the task in the block, which then raises `LockLost`. Default: False.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store cannot do what an option asks for.
            TypeError: An option has the wrong type, such as an `on_lost` that is a coroutine function.

        Example:
            >>> import asyncio, dibs.aio
            >>> async def main() -> None:
            ...     async with dibs.aio.connect("memory://example") as client:
            ...         async with client.lock("invoice:42", timeout=5, max_hold=60) as hold:
            ...             print(hold.remaining < 60)
            >>> asyncio.run(main())
            True
        """
        options = Options.checked(timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost)
        return Lock(kinds.mutex(self._core, name, options, share=False))

    def rlock(
        self, name: str, *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> RLock:  # fmt: skip
        """Make an exclusive lock that its owner may acquire again.

        `lock` and `rlock` of one name exclude each other. The option `owner` decides who re-enters.

        Args:
            name: 1 to 512 bytes of UTF-8, not blank, without control characters.
            timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost: As in `Client.lock`.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store cannot do what an option asks for.
        """
        options = Options.checked(timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost)
        return RLock(kinds.mutex(self._core, name, options, share=True))

    def rwlock(
        self, name: str, *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> RWLock:  # fmt: skip
        """Make a read-write lock. Its `read` and `write` are locks; both are re-entrant.

        A writer may acquire `read` too. A reader that asks for `write` gets `Deadlock`.

        Args:
            name: 1 to 512 bytes of UTF-8, not blank, without control characters.
            timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost: As in `Client.lock`.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store has no read-write locks, or cannot do what an option asks for.
        """
        options = Options.checked(timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost)
        return RWLock(*kinds.read_write(self._core, name, options))

    def semaphore(
        self, name: str, permits: int, *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Semaphore:  # fmt: skip
        """Make a semaphore: at most `permits` permits of this name are held at a time.

        With `renew=False` it is a rate limit: each permit comes back by itself after nine tenths of `lease`.

        Args:
            name: 1 to 512 bytes of UTF-8, not blank, without control characters.
            permits: From 1 to 1,000,000, the same number for every user of the name.
            timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost: As in `Client.lock`.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store has no semaphores, or cannot do what an option asks for.
        """
        options = Options.checked(timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost)
        return Semaphore(kinds.semaphore(self._core, name, permits, options))

    def striped(
        self, name: str, stripes: int, *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Striped:  # fmt: skip
        """Make a fixed number of locks for any number of keys; `at(key)` is the lock of a key.

        Args:
            name: 1 to 512 bytes of UTF-8, not blank, without control characters.
            stripes: From 1 to 1,000,000, the same number for every user of the name.
            timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost: As in `Client.lock`.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store has no stripes, or cannot do what an option asks for.
        """
        options = Options.checked(timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost)
        return Striped(CoreStriped(self._core, name, stripes, options))

    def election(
        self, name: str, *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Election:  # fmt: skip
        """Make an election: the holder of its lock leads, and anyone can see and follow the leader.

        Args:
            name: 1 to 512 bytes of UTF-8, not blank, without control characters.
            timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost: As in `Client.lock`.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store has no elections, or cannot do what an option asks for.
        """
        options = Options.checked(timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost)
        return Election(CoreElection(self._core, name, options))

    def latch(self, name: str) -> Latch:
        """Make a latch: `arm(count)` closes it, `count_down()` opens it, `wait()` waits for that. Nobody holds it.

        Args:
            name: 1 to 512 bytes of UTF-8. Latches have names of their own: a lock may have the same.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store has no latches.
        """
        return Latch(latch(self._core, name))

    def cell(self, name: str) -> Cell:
        """Make a cell: a small value with a version, for compare-and-set. Nobody holds it.

        Args:
            name: 1 to 512 bytes of UTF-8. Cells have names of their own: a lock may have the same.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store has no cells.
        """
        return Cell(primitives.Cell(self._core, name))

    def fence(self, name: str) -> Fence:
        """Make a fence: the resource that a lock protects uses it to refuse the writes of earlier holders.

        Args:
            name: 1 to 512 bytes of UTF-8. Fences have names of their own: give it the name of its lock.

        Raises:
            BadName: The name is not valid.
            Unsupported: The store has no fences.
        """
        return Fence(primitives.Fence(self._core, name))

    def within(self, connection: Connection) -> Within:
        """Make locks that the transaction of an open connection of yours holds until it ends.

        For PostgreSQL, MySQL and MariaDB. dibs does not begin, commit or roll back your transaction.

        Args:
            connection: An open connection to the server of this client. In the sync API of psycopg, PyMySQL,
                SQLAlchemy (or a Session), or Django; in the async API of psycopg, asyncmy or SQLAlchemy.

        Raises:
            Unsupported: The store has no such locks.
            TypeError: The connection is of another kind, or of another server.
        """
        return Within(enclosing(self._core, connection, awaits=True))

    @overload
    def synchronized(
        self, name: str, on_busy: Literal["wait", "raise"] = "wait", *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]: ...  # fmt: skip

    @overload
    def synchronized(
        self, name: str, on_busy: Literal["skip"], *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]]: ...  # fmt: skip

    def synchronized(
        self, name: str, on_busy: Literal["wait", "skip", "raise"] = "wait", *,
        timeout: Seconds | None = None, lease: Seconds | None = None, renew: bool = True, fenced: bool = False,
        max_hold: Seconds | None = None, fair: bool | None = None, owner: str | None = None,
        info: Mapping[str, Any] | None = None, on_lost: Callable[[Hold], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]]:  # fmt: skip
        """Decorate a function so that it runs only while it holds the lock of this name.

        The sync API decorates plain functions, the async API coroutine functions.

        Args:
            name: The name of the lock. It may have fields of `str.format` over the arguments of the call.
            on_busy: The reaction to a busy lock: `"wait"`, the default, waits as `async with` does; `"skip"` returns
                None and logs it at INFO; `"raise"` raises `AcquireTimeout`. The last two try once unless a `timeout`
                is given.
            timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost: As in `Client.lock`.

        Raises:
            ValueError: The name has a field that the function has no parameter for. Checked while decorating.
            TypeError: The function cannot be decorated, such as a generator function.

        Example:
            >>> import asyncio, dibs.aio
            >>> client = dibs.aio.connect("memory://example")
            >>> @client.synchronized("invoice:{number}", timeout=5)
            ... async def pay(number: int) -> bool:
            ...     return await client.lock("invoice:42").locked()
            >>> async def main() -> None:
            ...     print(await pay(42), await pay(43))
            ...     await client.close()
            >>> asyncio.run(main())
            True False
        """
        from dibs.synchronized import Plan, sign, skipped  # noqa: PLC0415  (it needs `inspect`, a costly import)

        options = Options.checked(timeout, lease, renew, fenced, max_hold, fair, owner, info, on_lost, cancel_on_lost)
        plan = Plan(self._core, Lock, name, on_busy, options)

        def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T | None]]:
            locks = plan.locks(function, awaited=True)

            @wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
                lock = locks(args, kwargs)
                entered = False  # an AcquireTimeout of the body is not ours
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
        """The holders and waiters of a name; of a free name, a `LockInfo` without holders. Asks the store.

        Args:
            name: The name of a lock, an election or a stripe.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        return await self._core.inspect(name)

    async def locks(self, prefix: str = "") -> AsyncIterator[LockInfo]:
        """Iterate over the names that are held or waited for: `async for info in client.locks():`. Asks page by page.

        Args:
            prefix: Only names that begin with it. `""`, the default: all names of this namespace.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        page, after = await self._core.page(prefix, "")
        while after:
            for info in page:
                yield info
            page, after = await self._core.page(prefix, after)

    async def break_(self, name: str, *, token: int | None = None, holder: str | None = None) -> None:
        """Remove a holder by force. It loses the lock as soon as it hears of it: only its token protects.

        Args:
            name: The name of the lock.
            token: The token of the holder, as `inspect` shows it. Another holder is left alone.
            holder: With `layout="redisson"`, in place of the token: the owner that `inspect` shows.

        Raises:
            NotHeld: There is no such holder any more.
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        await self._core.break_(name, token, holder)

    async def ping(self, timeout: Seconds = 5.0) -> float:
        """Ask the store for a sign of life, and return the seconds until it answered. The first call also connects.

        Args:
            timeout: Seconds to wait for the answer of a primary, or of a majority of a quorum. The default is 5.

        Raises:
            StoreUnavailable: The store did not answer within `timeout`.
        """
        return await self._core.ping(timeout)

    async def doctor(self) -> list[Finding]:
        """Check how the store is set up: its guarantees, and what endangers them, each with its fix. Asks the store.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        return await self._core.doctor()

    async def close(self) -> None:
        """Release every hold, which is then lost, and disconnect. Callers that wait get `Closed`.

        A second time it does nothing. Holds of a client that is not closed are released when the process exits.
        """
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        await self.close()
