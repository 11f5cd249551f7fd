"""Which hold does `release()`, or the end of a `with`, mean? One small memory per lock object.

`release()` means the latest one that the calling thread or task took through this object. A `with` pairs by thread or
task; one that ends elsewhere takes the only open one.

A hold that was released is forgotten at once. One that was lost may never be released, as the permits of a rate limit:
it is kept only while its thread or task can still ask what became of it, and took no other one since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from dibs.core.client import Client
from dibs.core.registry import Given
from dibs.errors import DibsError, NotHeld

_FEW = 64
"""The memory is swept after so many were taken or lost, or half as many as it has, if that is more."""


class Takeable(Protocol):
    taker: object
    over: bool
    when_lost: Callable[[], None] | None

    @property
    def lost_seen(self) -> bool: ...

    def wanted(self) -> bool: ...


H = TypeVar("H", bound=Takeable)


class Taken(Generic[H]):
    __slots__ = ("_client", "_entered", "_name", "_until_sweep", "holds")

    def __init__(self, name: str, client: Client) -> None:
        self._name = name
        self._client = client
        self.holds: dict[H, object] = {}
        """In their order, each with a weak reference to the lock that it was taken through, if any. Each step on it is
        one in C: the thread that learns of a loss sweeps beside the others."""
        self._entered: list[H] = []
        self._until_sweep = _FEW

    def remember(self, hold: H, entered: bool, through: object = None) -> None:
        hold.when_lost = self.one_lost
        self.holds[hold] = through
        if entered:
            self._entered.append(hold)
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
            taker = hold.taker
            if hold.over or (hold.lost_seen and (taker in takers or _has_ended(taker))):
                self.holds.pop(hold, None)
            else:
                takers.add(taker)
        self._until_sweep = max(_FEW, len(self.holds) // 2)

    def released(self, hold: H) -> None:
        """A `with` may still end with it."""
        self.holds.pop(hold, None)

    def forget(self, hold: H) -> None:
        """No `release()` and no `with` will come for it any more."""
        self.released(hold)
        self.left(hold)

    def left(self, hold: H) -> None:
        """Its `with` ends."""
        if hold in self._entered:
            self._entered.remove(hold)

    def latest(self) -> H:
        """What `release()` means."""
        taker = self._client.runtime.taker()
        for hold in reversed(list(self.holds)):
            if hold.taker is taker and hold.wanted():
                return hold
        raise self._client.error(
            NotHeld, self._name, "this thread or task took no hold through this object",
            step="release the hold itself: hold.release()",
        )  # fmt: skip

    def opened_here(self) -> H:
        """What the end of a `with` means."""
        taker = self._client.runtime.taker()
        if len(self._entered) == 1 and self._entered[0].taker is taker:  # nearly always
            return self._entered[0]
        mine = [hold for hold in self._entered if hold.taker is taker]
        if not mine and len(self._entered) > 1:
            raise RuntimeError(
                f'"{self._name}": {len(self._entered)} with blocks of other threads or tasks are open on this object '
                "and none of this one: give each thread or task an object of its own, client.lock(name)"
            )
        if not self._entered:
            raise self._client.error(
                NotHeld, self._name, "no with block is open on this object", step="enter a with block first"
            )
        return (mine or self._entered)[-1]


class Takes(Protocol[H]):
    """A lock, or several as one: what holds are taken through, and given back."""

    taken: Taken[H]

    def take(self, hold: H, *, entered: bool = False) -> bool | Awaitable[bool]:
        """The free path: see `Lock.take`."""
        return False

    async def acquire(self, hold: H, *, entered: bool = False) -> bool: ...

    async def enter(self, hold: H) -> None:
        """`acquire` for a `with`: busy is an error."""

    on_lost: Callable[[Any], object] | None
    """The user's callback for a loss; then `told` must be called."""

    def told(self, hold: H, shown: object, cancels: Callable[[], object] | None = None) -> None:
        """Set the callbacks for a loss. `shown` is the hold as its API shows it."""

    def give(self, hold: H) -> Given:
        """The free path: see `Lock.give`."""
        return None

    async def release(self, hold: H, given: Given = None) -> None: ...

    def abandon(self, hold: H) -> None:
        """From an exception: nothing is awaited, the watchdog does the rest. Does nothing to a hold that is over."""

    def latest(self) -> H:
        """What `release()` means."""
        return self.taken.latest()

    async def end(self, hold: H, raised: BaseException | None, given: Given = None) -> None:
        """`release` at the end of a `with`. The exception of the body stays; a failure is added to it as a note."""
        try:
            await self.release(hold, given)
        except DibsError as error:
            if raised is None:
                raise
            if str(error) != str(raised):  # `hold.check()` raised the same loss in the block
                raised.add_note(f"and leaving the lock failed: {error}")

    def drop(self, hold: H) -> None:
        """From an exception: `abandon` what no user has, or whose `with` ends."""
        self.abandon(hold)
        self.taken.forget(hold)


def _has_ended(taker: Any) -> bool:
    """A task that is done, or a thread."""
    return bool(taker.done() if hasattr(taker, "done") else hasattr(taker, "is_alive") and not taker.is_alive())
