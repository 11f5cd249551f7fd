"""Interface Latches: the latches of a store that keeps them itself (LATCHES in core/queue.py).

A latch is a count that only falls; at 0 it is open, and the store forgets it. A change that is repeated with the same
id reports its first outcome. After `change.by` a change has no effect and raises StoreUnavailable.
"""

from __future__ import annotations

from typing import Protocol

from dibs.core.queue import ClientIdentity, Store
from dibs.core.runtime import Runtime

OPENED = b"0"
"""The message that a latch has opened."""


class LatchChange:
    """A request to arm a latch, or to count it down."""

    __slots__ = ("amount", "asked", "by", "id", "name")

    def __init__(self, id: bytes, name: str, amount: int, by: float) -> None:
        self.id = id
        self.name = name
        self.amount = amount
        self.by = by
        self.asked = False
        """Set by the store before it first sends the request."""


class Latches(Protocol):
    """One way to talk to the latches of a store."""

    poll_interval: float
    """Seconds after which a waiter without a message looks again."""

    async def count(self, name: str, until: float) -> int:
        """0: it is open."""

    async def arm(self, change: LatchChange, until: float) -> int:
        """Close an open latch. Returns 0, or the count of a latch that was not open."""

    async def count_down(self, change: LatchChange, until: float) -> None: ...

    async def listen(self, name: str, key: bytes, until: float) -> None:
        """Deliver the messages of a latch to the inbox under `key`, until `ignore`. A repetition does nothing."""

    def ignore(self, name: str, key: bytes) -> None: ...

    def close(self) -> None:
        """Free local resources."""


class KeepsLatches(Store, Protocol):
    """A store with LATCHES among its capabilities."""

    def open_latches(self, runtime: Runtime, me: ClientIdentity) -> Latches: ...
