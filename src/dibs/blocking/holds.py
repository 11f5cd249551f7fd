"""Holds of the sync API: what `acquire` and `with` give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from dibs.bases import HoldFacts, NoToken, SyncWith
from dibs.blocking.entry import ask
from dibs.core.grants import Hold as CoreHold
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.multi import MultiHold as CoreMultiHold
from dibs.core.kinds.taken import Takes
from dibs.faces import Kind, Raised, Seconds, Trace, instant
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


class _AnyHold(SyncWith):
    """What gives back one hold or several. Each method has its own `try`: an interrupt finds no way past it."""

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

    def __exit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        lock, hold = self._lock, self._core
        try:
            if (given := lock.give(hold)) is not True:
                step(lock.end(hold, raised, given))
        except BaseException:
            lock.abandon(hold)
            raise


class Hold(_AnyHold, HoldFacts):
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

    def __repr__(self) -> str:
        return f"<dibs.Hold {self._core.describe()}>"


class MultiHold(_AnyHold, NoToken):
    """Several holds as one, from `multi` or `Striped.all`. It is lost when any of them is.

    Example:
        >>> import dibs
        >>> client = dibs.connect("memory://example")
        >>> with dibs.multi(client.lock("a"), client.lock("b")) as hold:
        ...     hold.check()
        ...     [part.name for part in hold.holds]
        ['a', 'b']
    """

    __slots__ = ()
    _core: CoreMultiHold

    @property
    def holds(self) -> tuple[Hold, ...]:
        """One hold for each lock, in the order of the arguments. Equal locks share one."""
        return self._core.as_given()

    @property
    def lost(self) -> HoldEvent:
        """Set when it is no longer certain that all of them are held."""
        return HoldEvent(self._core.is_lost, self._core.wait_lost, self._core.parts[0].context.now)
