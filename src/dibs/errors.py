"""The errors that dibs raises.

Every error has the attributes `name`, `store`, `info`, `what` and `step`. Its text names the lock and the store, says
what happened, and ends with the next step. It contains no password. Every error can be pickled.

Bad arguments raise `ValueError` or `TypeError`, as elsewhere in Python.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from dibs.info import LockInfo

LossReason = Literal["expired", "broken", "unreachable", "max_hold", "closed", "standstill"]
"""The values of `LockLost.reason` and `hold.lost_reason`; `LockLost` explains them."""


class DibsError(Exception):
    """The base class of all errors of dibs.

    Attributes:

    - `name`: the name of the lock, or None if the error concerns no single lock.
    - `store`: the URL of the store, without user, password and query; None if no store was chosen yet.
    - `info`: a `LockInfo` with the holders and waiters that were seen, or None.
    - `what`: what happened, without the lock, the store and the next step.
    - `step`: what to do next, or None.

    >>> error = DibsError("not free", name="invoice:42", store="redis://cache", step="dibs show invoice:42")
    >>> print(error)
    "invoice:42" on redis://cache: not free. Next: dibs show invoice:42
    >>> error.name, error.store
    ('invoice:42', 'redis://cache')
    """

    def __init__(
        self,
        what: str,
        *,
        name: str | None = None,
        store: str | None = None,
        info: LockInfo | None = None,
        step: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.name = name
        self.store = store
        self.info = info
        self.step = step

    def __str__(self) -> str:
        quoted = None if self.name is None else f'"{self.name}"'
        where = " on ".join(part for part in (quoted, self.store) if part is not None)
        text = f"{where}: {self.what}" if where else self.what
        if not self.step:
            return text
        return f"{text}{'' if text.endswith(('.', '?', '!')) else '.'} Next: {self.step}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self._facts())

    def _facts(self) -> dict[str, Any]:
        return {"name": self.name, "store": self.store, "info": self.info, "step": self.step}

    def about(self, name: str | None, store: str | None) -> Self:
        """Fill in the lock and the store if they are not known yet. For stores; no program needs it."""
        self.name = self.name if self.name is not None else name
        self.store = self.store if self.store is not None else store
        return self


def public(error: DibsError) -> DibsError:
    """The error as callers see it, of a class of this module. Inside dibs, stores use subclasses of their own."""
    rebuild, (kind, *rest) = error.__reduce__()
    if kind.__module__ == __name__ or not kind.__module__.startswith("dibs."):
        return error
    made: DibsError = rebuild(next(base for base in kind.__mro__ if base.__module__ == __name__), *rest)
    return made


def _rebuild(kind: type[DibsError], what: str, facts: dict[str, Any]) -> DibsError:
    return kind(what, **facts)


class Busy(DibsError):
    """Another client holds the lock, or waits for it before you; `info` has the holders and the waiters.

    The base class of `AcquireTimeout`. dibs raises only that one; `except Busy` catches it too.
    """


class AcquireTimeout(Busy, TimeoutError):
    """The lock did not become free within the timeout. `with` raises it; `acquire()` returns None instead.

    >>> import dibs
    >>> with dibs.connect("memory://example", owner="ana") as client, client.lock("invoice:42"):
    ...     try:
    ...         with client.lock("invoice:42", timeout=0.01):
    ...             pass
    ...     except dibs.AcquireTimeout as error:
    ...         [holder.owner for holder in error.info.holders]
    ['ana']
    """


class LockLost(DibsError):
    """The hold was lost: it is no longer certain that this process holds the lock.

    `hold.check()`, `release()` and the end of a `with` block raise it. `reason` says why, and `hold.lost_reason` is
    the same value:

    - `expired`: the lease ran out, and the lock was taken with `renew=False`.
    - `broken`: somebody broke the lock (`dibs break`, `client.break_`, an operator), or the store lost it, as in a
      fail-over, or when the connection of a session-mode lock was cut.
    - `unreachable`: renewals failed until the lease ran out.
    - `max_hold`: the hold reached its `max_hold`.
    - `closed`: the client was closed, the process ended, or the hold belongs to the parent of a forked process.
    - `standstill`: this process did not run for so long that the lease ran out: it was stopped or suspended, or it got
      no CPU time.

    `reason` is None if the hold was not lost: it had been released before.

    >>> import dibs
    >>> client = dibs.connect("memory://example")
    >>> hold = client.lock("invoice:42").acquire()
    >>> client.close()
    >>> try:
    ...     hold.check()
    ... except dibs.LockLost as error:
    ...     error.reason
    'closed'
    """

    def __init__(self, what: str, *, reason: LossReason | None = None, **facts: Any) -> None:
        super().__init__(what, **facts)
        self.reason = reason

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "reason": self.reason}


class NotHeld(DibsError, RuntimeError):
    """There is no such hold: `lock.release()` without an `acquire()`, or `client.break_()` with an old token.

    >>> import dibs
    >>> dibs.connect("memory://example").lock("invoice:42").release()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dibs.errors.NotHeld: "invoice:42" on memory://example: this thread or task took no hold ...
    """


class Deadlock(DibsError, RuntimeError):
    """The caller would wait for itself: it asks for the write side of an `rwlock` whose read side it holds.

    >>> import dibs
    >>> rw = dibs.connect("memory://example").rwlock("stock")
    >>> with rw.read, rw.write:  # doctest: +ELLIPSIS
    ...     pass
    Traceback (most recent call last):
    dibs.errors.Deadlock: "stock" on memory://example: you hold its read side: ...
    """


class Closed(DibsError, RuntimeError):
    """The client was closed.

    >>> import dibs
    >>> client = dibs.connect("memory://example")
    >>> client.close()
    >>> client.lock("invoice:42").acquire()
    Traceback (most recent call last):
    dibs.errors.Closed: memory://example: this client was closed. Next: connect again
    """


class Mismatch(DibsError):
    """The name is in use as another kind, or with another size, mode, layout or number of stripes.

    >>> import dibs
    >>> client = dibs.connect("memory://example")
    >>> with client.semaphore("api", 5), client.semaphore("api", 3):  # doctest: +ELLIPSIS
    ...     pass
    Traceback (most recent call last):
    dibs.errors.Mismatch: "api" on memory://example: ...
    """


class Unsupported(DibsError):
    """This store cannot do what was asked. Raised when the lock is made, before any request to the store."""


class Conflict(DibsError):
    """A versioned value changed in the meantime, or a latch is not open yet.

    >>> import dibs
    >>> cell = dibs.connect("memory://example").cell("price")
    >>> cell.set(b"10", 0)
    1
    >>> cell.set(b"11", 0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dibs.errors.Conflict: "price" on memory://example: ...
    """


class StaleToken(DibsError):
    """A fence already admitted a higher token: the caller's lock has a newer holder, so the write must not happen.

    >>> import dibs
    >>> fence = dibs.connect("memory://example").fence("invoice:42")
    >>> fence.admit(34)
    >>> fence.admit(33)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dibs.errors.StaleToken: "invoice:42" on memory://example: ...
    """


class StoreError(DibsError):
    """The store refuses, is damaged, or holds data that dibs did not write. `StoreUnavailable` is a `StoreError`."""


class StoreUnavailable(StoreError, ConnectionError):
    """The store cannot be reached, or does not answer in time. The same call may succeed later.

    The outcome of the request is unknown. dibs itself repeats a request until the timeout of the call, or for `retry`
    seconds, before it raises this.
    """


class MissingDriver(DibsError, ImportError):
    """The Python package of this store is not installed; the text has the command that installs it."""


class BadName(DibsError, ValueError):
    """The name of a lock must be 1 to 512 bytes of UTF-8, not blank, without control characters or lone surrogates.

    >>> import dibs
    >>> dibs.connect("memory://example").lock("")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dibs.errors.BadName: the name is empty. ...
    """
