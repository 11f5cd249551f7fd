"""The members that both APIs share, word for word: they do no I/O, so nothing in them is awaited.

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
    """To `hasattr` there is no such method; a `with` statement raises this as it is."""


class WrongWith:
    """The method that the other kind of `with` looks for: it says which import is meant.

    A descriptor that raises is enough: the statement looks the method up on the object and stops there. To a type
    checker the method does not exist, so it rejects the statement.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        """For `help()`."""
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


class Named(Unpicklable):
    __slots__ = ()
    _core: Any

    @property
    def name(self) -> str:
        """The name, without the client's namespace."""
        name: str = self._core.name
        return name


class Owned(Named):
    """What `Lock` and `Multi` share."""

    __slots__ = ()

    def owned(self) -> bool:
        """Whether this owner holds the lock now. Asks the local clock, not the store.

        The owner is the calling thread or task, unless the option `owner` says otherwise. A hold past its own
        deadline does not count.
        """
        owned: bool = self._core.owned()
        return owned


class Watched(Unpicklable):
    """What `Hold` and `MultiHold` share."""

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
    """The part that every hold of one lock has."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """The fencing token, which rises with every grant of this name. Send it along with each write."""
        token: int = self._core.token
        return token

    @property
    def mode(self) -> str:
        """`"exclusive"`, or `"shared"` where others can hold beside this one (a read lock, a permit)."""
        mode: str = self._core.mode
        return mode


class HoldFacts(Watched, Granted):
    """The part of a `Hold` that is the same in both APIs."""

    __slots__ = ()
    _lock: Any

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


class EnclosedFacts(Granted):
    """What the `WithinHold`s of both APIs share."""

    __slots__ = ()

    @property
    def owner(self) -> str:
        """The label that others see, which is the option `owner` or the login name."""
        owner: str = self._core.owner
        return owner

    @property
    def acquired_at(self) -> datetime:
        """When it was acquired, in UTC."""
        moment: datetime = self._core.acquired_at
        return moment


class NoToken(Watched):
    """What the `MultiHold`s of both APIs share."""

    __slots__ = ()

    @property
    def token(self) -> None:
        """Always None, because each of `holds` has a token of its own."""
        return
