"""Members that are the same in both APIs: they do no I/O, so nothing is awaited.

Members that do I/O are written twice, once with `await`. Their docstrings are literal in both places, because editors
read the source; `tests/architecture/test_docstrings.py` keeps the two texts equal.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from dibs.errors import LossReason


class Unpicklable:
    """Locks, holds and clients belong to the process that made them."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to its process and does not pickle: pass the name instead")


class WrongApi(TypeError, AttributeError):
    """An AttributeError, so that `hasattr` is False; a `with` statement raises it unchanged."""


class WrongWith:
    """Raises when the other kind of `with` looks up its method; the text names the right import.

    For a type checker the method does not exist, so it rejects the statement.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "<refused: it says which API is meant>"

    def __get__(self, instance: object, owner: type) -> WrongWith:
        if instance is None:
            return self
        raise WrongApi(self._text.format(owner.__name__))


class SyncWith(Unpicklable):
    """For `with`, and not for `async with`."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __aenter__ = WrongWith(
            'a dibs.{} is of the sync API: write "with", or make it with the client of dibs.aio.connect() '
            "(import dibs.aio)"
        )


class AsyncWith(Unpicklable):
    """For `async with`, and not for `with`."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __enter__ = WrongWith(
            'a dibs.aio.{} is of the async API: write "async with", or make it with the client of dibs.connect() '
            "(import dibs)"
        )


class OverCore(Unpicklable):
    """An object of an API: a thin layer over an object of the core."""

    __slots__ = ()
    _core: Any

    def __init__(self, core: Any) -> None:
        self._core = core

    def __repr__(self) -> str:
        api = "dibs.aio" if type(self).__module__.startswith("dibs.aio") else "dibs"
        return f"<{api}.{type(self).__name__} {self._core.describe()}>"


class Named(OverCore):
    __slots__ = ()

    @property
    def name(self) -> str:
        """The name, without the client's namespace."""
        name: str = self._core.name
        return name


class Owned(Named):
    """Shared by `Lock` and `Multi`."""

    __slots__ = ()

    def owned(self) -> bool:
        """Whether this owner holds the lock now. Asks the local clock, not the store.

        The owner is the calling thread or task, unless the option `owner` says otherwise. A hold past its own
        deadline does not count.
        """
        owned: bool = self._core.owned()
        return owned


class Watched(Unpicklable):
    """Shared by `Hold` and `MultiHold`."""

    __slots__ = ()
    _core: Any

    @property
    def remaining(self) -> float:
        """Seconds until this hold is lost if no renewal succeeds; 0.0 once it is lost or released.

        By the local clock, counted from before the request was sent. Renewal raises it again.
        """
        left: float = self._core.remaining()
        return left

    @property
    def lost_reason(self) -> LossReason | None:
        """Why it was lost, or None while it is not lost.

        `"expired"`, `"broken"`, `"unreachable"`, `"max_hold"`, `"closed"` or `"standstill"`, as in `LockLost.reason`.
        """
        reason: LossReason | None = self._core.lost_reason()
        return reason

    def check(self) -> None:
        """Return if this hold is certainly still held. Asks the local clock, not the store.

        Raises:
            LockLost: It is lost, or was released.
        """
        self._core.check()


class Granted(Named):
    """Shared by all holds of one lock."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """The fencing token, which rises with every grant of this name. Send it along with each write.

        Raises:
            Unsupported: This kind of lock has none. That is so only with `layout="redisson"`, without `fenced=True`.
        """
        token: int = self._core.token
        if not token:
            raise self._core.no_token()
        return token

    @property
    def mode(self) -> str:
        """`"exclusive"`, or `"shared"` where others can hold beside this one (a read lock, a permit)."""
        mode: str = self._core.mode
        return mode

    @property
    def owner(self) -> str:
        """The label that others see, which is the option `owner` or the login name. It proves nothing."""
        label: str = self._core.label
        return label

    @property
    def acquired_at(self) -> datetime:
        """When it was acquired, in UTC."""
        moment: datetime = self._core.acquired_at()
        return moment


class HoldFacts(Watched, Granted):
    """Shared by both `Hold` classes."""

    __slots__ = ()
    _lock: Any


class NoToken(Watched):
    """Shared by both `MultiHold` classes."""

    __slots__ = ()

    @property
    def token(self) -> None:
        """Always None, because each of `holds` has a token of its own."""
        return
