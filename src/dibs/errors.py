"""Every error that dibs raises on purpose, with the facts that explain it.

Each carries `.name` (the lock), `.store` (where, without any secret) and, where somebody is in the way, `.info`
(a `LockInfo`). The text names the lock and the store, says what happened and ends with the next step.
All of them pickle, so that they may cross a process boundary.
"""

from __future__ import annotations

from typing import Any, Self

from dibs.info import LockInfo


class DibsError(Exception):
    """The root of all errors of dibs.

    >>> raise DibsError("not free", name="invoice:42", store="memory://", step="dibs show invoice:42")
    Traceback (most recent call last):
    dibs.errors.DibsError: "invoice:42" on memory://: not free. Next: dibs show invoice:42
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
        return f"{text}. Next: {self.step}" if self.step else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.name, self.store, self.info, self.step)

    def about(self, name: str | None, store: str | None) -> Self:
        """Fill in the lock and the store where the place that raised did not know them."""
        self.name = self.name if self.name is not None else name
        self.store = self.store if self.store is not None else store
        return self


def _rebuild(
    kind: type[DibsError], what: str, name: str | None, store: str | None, info: LockInfo | None, step: str | None
) -> DibsError:
    return kind(what, name=name, store=store, info=info, step=step)


class Busy(DibsError):
    """Somebody else is in the way; `.info` says who."""


class AcquireTimeout(Busy, TimeoutError):
    """The lock was not free in time."""


class LockLost(DibsError):
    """It is no longer certain that this hold is held."""


class NotHeld(DibsError, RuntimeError):
    """Release without a hold."""


class Deadlock(DibsError, RuntimeError):
    """Waiting for this would be waiting for oneself."""


class Closed(DibsError, RuntimeError):
    """The client was closed."""


class Mismatch(DibsError):
    """The name is busy as another kind, size, mode, layout or number of stripes."""


class Unsupported(DibsError):
    """This store cannot do that; raised when the lock is made."""


class Conflict(DibsError):
    """A versioned value was changed by somebody else in between."""


class StaleToken(DibsError):
    """A higher token was admitted before."""


class StoreError(DibsError):
    """The store is corrupt, foreign, or refuses."""


class StoreUnavailable(StoreError, ConnectionError):
    """The store does not answer, now."""


class MissingDriver(DibsError, ImportError):
    """The store's driver is not installed; the text names the extra."""


class BadName(DibsError, ValueError):
    """A lock's name must be 1-512 bytes of UTF-8, not blank, without control characters or lone surrogates."""
