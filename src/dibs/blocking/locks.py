"""Locks of the sync API: each method runs one coroutine of the core, which never suspends."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Generic, Self
from weakref import ref

from dibs._shared import ExcType, H, Raised, Seconds, Timeout, Trace, instant
from dibs.bases import HoldFacts, Named, Owned, SyncWith
from dibs.blocking.entry import LOOPS, ask, modules, warn_in_a_loop
from dibs.core.grants import Frame
from dibs.core.grants import Hold as CoreHold
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.hold_stack import Takes
from dibs.core.kinds.options import UNSET
from dibs.errors import NotHeld
from dibs.runtime.threads import step


class HoldEvent:
    """Something that may happen to a hold: its loss (`Hold.lost`), or a request to release it.

    Example:
        >>> import dibs
        >>> with dibs.connect("memory://example") as client, client.lock("invoice:42") as hold:
        ...     hold.lost.is_set(), hold.lost.wait(0.01)
        (False, False)
    """

    __slots__ = ("_is_set", "_now", "_wait")

    def __init__(self, is_set: Callable[[], bool], wait: Callable[[float], Any], now: Callable[[], float]) -> None:
        self._is_set = is_set
        self._wait = wait
        self._now = now

    def is_set(self) -> bool:
        """Whether it has happened. Reads the local clock, so a hold past its deadline counts as lost at once."""
        return self._is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until it happens.

        Args:
            timeout: Seconds to wait. None, the default, waits until the hold ends.

        Returns:
            True if it has happened; False if the time is over, or the hold was released.
        """
        return bool(ask(self._wait(instant(timeout, self._now))))


class AnyHold(SyncWith):
    """The common part of `Hold` and `MultiHold`. Each method has its own `try`, so that no interrupt escapes it."""

    __slots__ = ("_core", "_lock")

    def __init__(self, core: Any, lock: Takes[Any]) -> None:
        self._core = core
        self._lock = lock

    def release(self) -> None:
        """Release this hold. Works from any thread or task; a second time it does nothing.

        Waits for the store at most 5 seconds, or as long as the hold lasts.

        Raises:
            LockLost: The hold was lost before.
            StoreUnavailable: The store did not answer. The release is retried in the background.
        """
        lock, hold = self._lock, self._core
        try:
            if (given := lock.give(hold)) is not True:
                step(lock.release(hold, given))
        except BaseException:
            lock.abandon(hold)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        lock, hold = self._lock, self._core
        try:
            if (given := lock.give(hold)) is not True:
                step(lock.end(hold, raised, given))
        except BaseException:
            lock.abandon(hold)
            raise


class Hold(AnyHold, HoldFacts):
    """The result of one acquire. It lasts until it is released or lost, or until its client is closed.

    A hold does not end when its variable goes away: release it, or use it in `with`.

    Example:
        >>> import dibs
        >>> client = dibs.connect("memory://example")
        >>> hold = client.lock("invoice:42").acquire()
        >>> hold.mode, hold.remaining > 20, hold.lost.is_set()
        ('exclusive', True, False)
        >>> hold.release()
    """

    __slots__ = ()
    _core: CoreHold
    _lock: kinds.Lock

    @property
    def lost(self) -> HoldEvent:
        """Set when it is no longer certain that this hold is held."""
        return HoldEvent(self._core.is_lost, self._core.wait_lost, self._core.context.now)

    @property
    def revoke_requested(self) -> HoldEvent:
        """Set when somebody asked for the release, with `Lock.revoke`. The hold stays held."""
        return HoldEvent(self._core.revoke_requested, self._core.wait_revoked, self._core.context.now)

    def downgrade(self) -> None:
        """Turn the write hold of a read-write lock into a read hold, without letting another writer in between.

        Raises:
            LockLost: The hold is lost, or was released.
            Unsupported: It is not a hold of a read-write lock.
            StoreUnavailable: The store did not answer within 5 seconds.
        """
        ask(self._lock.downgrade(self._core))


class Exit:
    """A descriptor that makes a new `__exit__` for each `with` statement.

    The statement looks `__exit__` up before it enters, and keeps it on its stack until the block has ended. But an
    interrupt may end the block before the first instruction of our method. The hold has only a weak reference to this
    `__exit__` (`Hold.lifeline`). So the reference is then dead, and the watchdog gives the hold back.
    """

    def __init__(self, leave: Callable[[Any, ExcType, Raised, Trace], None]) -> None:
        self._leave = leave

    def __get__(self, lock: object, owner: type) -> Callable[..., None]:
        if lock is None:  # ExitStack asks the class
            return self._leave
        block = partial(self._leave, lock)
        _entering[get_ident()] = ref(block)
        return block


_entering: dict[int, ref[partial[None]]] = {}


def entering(lock: object) -> ref[partial[None]] | None:
    """The `with` statement that enters this lock on this thread; None: `__enter__` was called directly."""
    found = _entering.pop(get_ident(), None)
    block = None if found is None else found()
    return found if block is not None and block.args[0] is lock else None


class AnyLock(SyncWith, Generic[H]):
    """The common part of `Lock` and `Multi`."""

    __slots__ = ("_core",)
    _core: Takes[Any]
    _shows: ClassVar[type[Any]]
    """The class of its holds."""

    def release(self) -> None:
        """Release the latest hold that the calling thread or task acquired with this object.

        To release from another thread or task, use `Hold.release`.

        Raises:
            NotHeld: This thread or task acquired none with this object, or has released it.
            LockLost: The hold was lost before.
            StoreUnavailable: The store did not answer. The release is retried in the background.
        """
        core, hold = self._core, None
        try:
            hold = core.hold_stack.latest()
            if (given := core.give(hold)) is not True:
                step(core.release(hold, given))
        except BaseException:
            with suppress(NotHeld):  # an interrupt may come before the hold is found
                core.abandon(hold or core.hold_stack.latest())
            raise

    def _acquire(self, hold: Any, shown: H) -> H | None:
        """Acquire, and abandon the hold on any exception, until the caller has it."""
        core, here = self._core, Frame()
        try:
            if LOOPS in modules and modules[LOOPS]._get_running_loop() is not None:
                warn_in_a_loop()
            hold.lifeline = ref(here)
            if core.on_lost is not None:
                core.set_callbacks(hold, shown)
            if core.take(hold) is not True and not step(core.acquire(hold)):
                return None
            hold.lifeline = None
            return shown
        except BaseException:
            core.drop(hold)
            raise

    def __enter__(self) -> H:
        core, here = self._core, Frame()
        hold = core.begin()
        shown: H = self._shows(hold, core)
        try:
            if LOOPS in modules and modules[LOOPS]._get_running_loop() is not None:
                warn_in_a_loop()
            hold.lifeline = ref(here)
            if core.on_lost is not None:
                core.set_callbacks(hold, shown)
            if core.take(hold, entered=True) is not True:
                step(core.enter(hold))
            hold.lifeline = entering(self)
            return shown
        except BaseException:
            core.drop(hold)
            raise

    @Exit
    def __exit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        core, hold = self._core, None
        try:
            hold, entered = core.hold_stack.opened_here(), core.hold_stack.entered
            if hold in entered:
                entered.remove(hold)
            if (given := core.give(hold)) is not True:
                step(core.end(hold, raised, given))
        except BaseException:
            with suppress(RuntimeError):  # an interrupt may come before the hold is found; NotHeld is a RuntimeError
                core.drop(hold or core.hold_stack.opened_here())
            raise


class Lock(AnyLock[Hold], Owned):
    """A lock on one name, made by a client. `Client.lock` makes an exclusive one that is not re-entrant.

    The sides of a read-write lock, a stripe, a number of permits and the lead of an election are locks too.

    `with lock:` waits as `acquire` does and releases at the end. It raises `AcquireTimeout` if the lock is busy
    until its timeout, and `LockLost` at the end if the hold was lost meanwhile.

    Example:
        >>> import dibs
        >>> lock = dibs.connect("memory://example").lock("invoice:42")
        >>> with lock as hold:
        ...     lock.locked(), lock.owned()
        (True, True)
        >>> if lock.acquire(timeout=0):
        ...     lock.release()
    """

    __slots__ = ("__weakref__",)
    _core: kinds.Lock
    _shows = Hold

    def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> Hold | None:
        """Acquire the lock, and wait for it while it is busy.

        Args:
            timeout: Seconds to wait, connecting included. Not given: the `timeout` of the lock. None waits for ever,
                0 tries once.
            blocking: False is `timeout=0`.

        Returns:
            The hold, or None if the lock was busy until the timeout. In that case `with` raises an error.

        Raises:
            StoreUnavailable: The store did not answer in time.
            Mismatch: The name is in use as another kind of lock, or with another size.
            Deadlock: This owner has the read side of the same read-write lock.
            Closed: The client was closed.
        """
        hold = self._core.begin(timeout, blocking)
        return self._acquire(hold, Hold(hold, self._core))

    def locked(self) -> bool:
        """Whether anyone holds the lock. Asks the store.

        For a semaphore: whether anyone holds a permit. It is True even if other permits are free; that of
        `asyncio.Semaphore` is not.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        return ask(self._core.locked())

    def revoke(self) -> None:
        """Ask the present holders to release the lock: sets their `Hold.revoke_requested`.

        It is a request. A holder hears of it at once or at its next renewal, a third of its lease away at most.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        ask(self._core.revoke())


class RLock(Lock):
    """A lock that its owner may acquire again: see `Client.rlock`. It is free once every hold is released.

    Example:
        >>> import dibs
        >>> lock = dibs.connect("memory://example").rlock("invoice:42")
        >>> with lock, lock:
        ...     lock.owned()
        True
    """

    __slots__ = ()


class Semaphore(Lock):
    """A fixed number of permits: see `Client.semaphore`. `with semaphore:` takes one, `permits(n)` takes n.

    Example:
        >>> import dibs
        >>> calls = dibs.connect("memory://example").semaphore("api", 5)
        >>> with calls, calls.permits(2) as hold:
        ...     hold.mode
        'shared'
    """

    __slots__ = ()

    def acquire(self, n: int = 1, *, timeout: Timeout = UNSET, blocking: bool = True) -> Hold | None:
        """Acquire permits, all of them or none, and wait while there are too few.

        The result may be None, which `with` cannot use: write `with semaphore.permits(n):` for a block.

        Args:
            n: How many permits, from 1 to the size of the semaphore.
            timeout: Seconds to wait, connecting included. Not given: the `timeout` of the semaphore. None waits for
                ever, 0 tries once.
            blocking: False is `timeout=0`.

        Returns:
            One hold for all n permits, or None if there were too few until the timeout.

        Raises:
            ValueError: The semaphore has fewer than n permits.
            StoreUnavailable: The store did not answer in time.
            Mismatch: The name is in use as another kind of lock, or with another number of permits.
            Closed: The client was closed.
        """
        hold = self._core.begin(timeout, blocking, n)
        return self._acquire(hold, Hold(hold, self._core))

    def permits(self, n: int) -> Lock:
        """The lock that takes n permits at once, for `with` and `multi`. It has the options of the semaphore.

        Args:
            n: How many permits, from 1 to the size of the semaphore.

        Raises:
            ValueError: The semaphore has fewer than n permits.

        Example:
            >>> import dibs
            >>> calls = dibs.connect("memory://example").semaphore("api", 5, timeout=10)
            >>> with calls.permits(2):
            ...     calls.permits(4).acquire(timeout=0)
        """
        return Lock(self._core.permits(n))


class RWLock(Named):
    """A read-write lock: see `Client.rwlock`. Readers share it; a writer excludes everyone else.

    Example:
        >>> import dibs
        >>> rw = dibs.connect("memory://example").rwlock("stock")
        >>> with rw.write as hold:
        ...     hold.downgrade()
        ...     hold.mode
        'shared'
    """

    __slots__ = ("_core", "_read", "_write")

    def __init__(self, read: kinds.Lock, write: kinds.Lock) -> None:
        self._core = read
        self._read = Lock(read)
        self._write = Lock(write)

    @property
    def read(self) -> Lock:
        """The lock that readers share. Its owner may acquire it again, also while it has the write side."""
        return self._read

    @property
    def write(self) -> Lock:
        """The lock of a writer. Its owner may acquire it again."""
        return self._write
