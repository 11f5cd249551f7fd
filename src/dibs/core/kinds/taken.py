"""Which hold does `release()`, or the end of a `with`, mean? One small memory per lock object.

`release()` means the latest one that the calling thread or task took through this object. A `with` pairs by thread or
task; one that ends elsewhere takes the only open one.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from dibs.core.client import Client
from dibs.errors import DibsError, NotHeld


class Takeable(Protocol):
    taker: object
    over: bool

    def wanted(self) -> bool: ...


H = TypeVar("H", bound=Takeable)


class Taken(Generic[H]):
    __slots__ = ("_client", "_entered", "_name", "_taken")

    def __init__(self, name: str, client: Client) -> None:
        self._name = name
        self._client = client
        self._taken: list[H] = []
        self._entered: list[H] = []

    def remember(self, hold: H, *, entered: bool) -> None:
        while self._taken and self._taken[-1].over:
            self._taken.pop()
        self._taken.append(hold)
        if entered:
            self._entered.append(hold)

    def forget(self, hold: H) -> None:
        """No `release()` and no `with` will come for it any more."""
        for there in (self._taken, self._entered):
            if hold in there:
                there.remove(hold)

    def latest(self) -> H:
        """What `release()` means."""
        taker = self._client.runtime.taker()
        for hold in reversed(self._taken):
            if hold.taker is taker and hold.wanted():
                return hold
        raise self._client.error(
            NotHeld, self._name, "this thread or task took no hold through this object",
            step="release the Hold itself: hold.release()",
        )  # fmt: skip

    def opened_here(self) -> H:
        """Take out what the end of a `with` means."""
        taker = self._client.runtime.taker()
        if len(self._entered) == 1 and self._entered[0].taker is taker:  # nearly always
            hold = self._entered.pop()
            if hold in self._taken:
                self._taken.remove(hold)
            return hold
        mine = [hold for hold in self._entered if hold.taker is taker]
        if not mine and len(self._entered) > 1:
            raise RuntimeError(
                f'"{self._name}": {len(self._entered)} with blocks of other threads or tasks are open on this object '
                "and none of this one: give each thread or task an object of its own, client.lock(name)"
            )
        if not self._entered:
            raise self._client.error(NotHeld, self._name, "no with block is open on this object", step="enter it first")
        hold = (mine or self._entered)[-1]
        self._entered.remove(hold)
        with suppress(ValueError):
            self._taken.remove(hold)
        return hold


async def noting(raised: BaseException | None, giving_back: Awaitable[None]) -> None:
    """The body's own exception stays the one that is raised; what giving back says is attached to it."""
    try:
        await giving_back
    except DibsError as error:
        if raised is None:
            raise
        raised.add_note(f"and leaving the lock failed: {error}")
