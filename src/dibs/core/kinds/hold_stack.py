"""The holds taken through one lock object, to find the hold for `release()` or the end of a `with` block.

`release()` releases the latest hold that the calling thread or task took through this object. The end of a `with` block
releases the one that this thread or task entered; a block that ends elsewhere takes the only open one.

A released hold is forgotten at once. A lost hold may never be released, such as the permits of a rate limit. It is
kept only while its thread or task lives and has taken no other hold since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from dibs.core.client import Client
from dibs.core.grantor import Given
from dibs.core.kinds.options import UNSET
from dibs.errors import DibsError, NotHeld

_FEW = 64
"""A sweep runs after this many holds were taken or lost, or after half the number of known holds, if that is more."""


class Takeable(Protocol):
    caller: object
    over: bool
    when_lost: Callable[[], None] | None

    @property
    def lost_seen(self) -> bool: ...

    def wanted(self) -> bool: ...


H = TypeVar("H", bound=Takeable)


class HoldStack(Generic[H]):
    __slots__ = ("_client", "_name", "_until_sweep", "entered", "holds")

    def __init__(self, name: str, client: Client) -> None:
        self._name = name
        self._client = client
        self.holds: dict[H, object] = {}
        """In order, each with a weak reference to the lock that it was taken through, if any. Only atomic operations
        change it: a thread that notices a loss sweeps while others use it."""
        self.entered: list[H] = []
        self._until_sweep = _FEW

    def remember(self, hold: H, entered: bool, through: object = None) -> None:
        hold.when_lost = self.one_lost
        self.holds[hold] = through
        if entered:
            self.entered.append(hold)
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._sweep()

    def one_lost(self) -> None:
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._sweep()

    def _sweep(self) -> None:
        takers: set[object] = set()
        for hold in reversed(list(self.holds)):
            caller = hold.caller
            if hold.over or (hold.lost_seen and (caller in takers or _has_ended(caller))):
                self.holds.pop(hold, None)
            else:
                takers.add(caller)
        self._until_sweep = max(_FEW, len(self.holds) // 2)

    def released(self, hold: H) -> None:
        """Forget it for `release()`; the end of a `with` block may still find it."""
        self.holds.pop(hold, None)

    def forget(self, hold: H) -> None:
        """Forget it for `release()` and for `with` blocks."""
        self.released(hold)
        self.left(hold)

    def left(self, hold: H) -> None:
        """Forget it for `with` blocks."""
        if hold in self.entered:
            self.entered.remove(hold)

    def latest(self) -> H:
        """The hold for `release()`."""
        caller = self._client.runtime.caller()
        for hold in reversed(list(self.holds)):
            if hold.caller is caller and hold.wanted():
                return hold
        raise self._client.error(
            NotHeld, self._name, "this thread or task took no hold through this object",
            step="release the hold itself: hold.release()",
        )  # fmt: skip

    def opened_here(self) -> H:
        """The hold for the end of a `with` block."""
        caller = self._client.runtime.caller()
        if len(self.entered) == 1 and self.entered[0].caller is caller:  # the common case
            return self.entered[0]
        mine = [hold for hold in self.entered if hold.caller is caller]
        if not mine and len(self.entered) > 1:
            raise RuntimeError(
                f'"{self._name}": {len(self.entered)} with blocks of other threads or tasks are open on this object '
                "and none of this one: give each thread or task an object of its own, client.lock(name)"
            )
        if not self.entered:
            raise self._client.error(
                NotHeld, self._name, "no with block is open on this object", step="enter a with block first"
            )
        return (mine or self.entered)[-1]


class Takes(Protocol[H]):
    """A lock or a multi-lock, through which holds are taken and given back."""

    hold_stack: HoldStack[H]

    def begin(self, timeout: object = UNSET, blocking: object = True) -> H:
        """A hold for which nothing was asked yet."""

    def take(self, hold: H, *, entered: bool = False) -> bool | Awaitable[bool]:
        """The free path: see `Lock.take`."""
        return False

    async def acquire(self, hold: H, *, entered: bool = False) -> bool: ...

    async def enter(self, hold: H) -> None:
        """`acquire` for a `with` block: raises AcquireTimeout if it is busy."""

    on_lost: Callable[[Any], object] | None
    """The user's callback for a loss; if there is one, call `set_callbacks`."""

    def set_callbacks(self, hold: H, shown: object, cancels: Callable[[], object] | None = None) -> None:
        """Set the callbacks for a loss. `shown` is the API object of the hold."""

    def give(self, hold: H) -> Given:
        """The free path: see `Lock.give`."""
        return None

    async def release(self, hold: H, given: Given = None) -> None: ...

    def abandon(self, hold: H) -> None:
        """Clean up after an exception. Awaits nothing: the watchdog gives back. Does nothing if the hold is over."""

    async def end(self, hold: H, raised: BaseException | None, given: Given = None) -> None:
        """`release` at the end of a `with` block. An exception of the block stays, with a failure added as a note."""
        try:
            await self.release(hold, given)
        except DibsError as error:
            if raised is None:
                raise
            if str(error) != str(raised):  # unless `hold.check()` raised the same loss in the block
                raised.add_note(f"and leaving the lock failed: {error}")

    def drop(self, hold: H) -> None:
        """Clean up after an exception: `abandon` a hold that the user does not have, or whose `with` block ends."""
        self.abandon(hold)
        self.hold_stack.forget(hold)


def _has_ended(caller: Any) -> bool:
    """Whether a thread or task has ended."""
    return bool(caller.done() if hasattr(caller, "done") else hasattr(caller, "is_alive") and not caller.is_alive())
