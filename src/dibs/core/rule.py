"""The rule that decides which claims hold.

A queue is a first-come-first-served weighted semaphore. **A claim holds if the weight ahead of it plus its own weight
is at most the capacity.** Mutex: capacity 1. Semaphore: n. Read-write: readers weigh 1, a writer the whole capacity.
Stripes: claims of weight 0 on the name itself, which guard only the number of stripes.

Why this is safe. Claims that hold are a prefix of the queue, because weight ahead only grows along it. New claims go to
the end and weights only fall (`amend` lowers, leaving and expiry remove). So for one claim the weight ahead can only
fall: once it holds, it holds until it leaves or expires. A stale read can therefore delay a grant but never invent one,
a lost wakeup costs time but not safety, and no store writes "granted". Only expiry ends a grant from outside. It is a
write (the entry is deleted), and the holder's own deadline has passed before it (see deadline.py).

Only `head` walks a queue. Stores that decide on the server implement it in their own language; a differential test
compares the implementations. It stops at the first claim that must wait: every claim behind it waits too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dibs.errors import StoreUnavailable

RW_CAPACITY = 1_000_000
"""The weight of a writer, and so the largest number of simultaneous readers."""


class Prepared:
    """A cache of the store for the claims of one lock object, which differ only in id and deadline."""

    __slots__ = ("request",)

    def __init__(self) -> None:
        self.request: Any = None
        """The packed request, once the store has packed it."""


class Claim:
    """One request to hold. Its id is random, new for each acquire, and secret: knowing it allows to end the claim."""

    __slots__ = (
        "asked", "by", "capacity", "client", "description", "id", "kind", "lease", "limit", "name", "prepared",
        "ticket", "waiting", "weight",
    )  # fmt: skip

    def __init__(
        self,
        id: bytes,
        name: str,
        kind: str,
        capacity: int,
        weight: int,
        lease: float,
        waiting: float,
        by: float,
        client: bytes,
        description: str,
        asked: bool = False,
        ticket: int | None = None,
        prepared: Prepared | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.kind = kind
        self.capacity = capacity
        self.weight = weight
        self.lease = lease
        self.waiting = waiting
        self.by = by
        """A local instant after which a join has no effect."""
        self.client = client
        self.description = description
        self.asked = asked
        """Set by the store before it first sends the join: until then the store cannot have this id."""
        self.ticket = ticket
        """Set by the store once it is known, to find the entry quickly."""
        self.prepared = prepared
        """Shared by the claims of one lock object, description and client; None: nothing is cached."""
        self.limit: float | None = None
        """How long its caller waits, in seconds; None: for ever, or it does not wait."""

    def __repr__(self) -> str:
        return f"<Claim on {self.name!r}: {self.kind}, weight {self.weight}, ticket {self.ticket}, {self.description}>"


class Standing:
    """The state of a claim, as the store reported it."""

    __slots__ = ("held_back", "holds", "left", "next", "revoked", "ticket")

    def __init__(
        self,
        ticket: int,
        holds: bool,
        left: float,
        next: float,
        revoked: bool,
        held_back: StoreUnavailable | None = None,
    ) -> None:
        self.ticket = ticket
        self.holds = holds
        self.left = left
        self.next = next
        """Seconds until a claim ahead can expire."""
        self.revoked = revoked
        self.held_back = held_back
        """Why the store grants nothing now although no claim is ahead. A timeout then raises this, not busy."""


class Entry:
    """A claim as the store keeps it."""

    __slots__ = (
        "asked", "capacity", "client", "description", "held", "id", "kind", "revoked", "ticket", "until", "was",
        "weight",
    )  # fmt: skip

    def __init__(
        self, ticket: int, id: bytes, client: bytes, kind: str, capacity: int, weight: int, until: float, asked: float,
        held: float | None, revoked: bool, description: str, was: int | None = None,
    ) -> None:  # fmt: skip
        self.ticket = ticket
        self.id = id
        self.client = client
        self.kind = kind
        self.capacity = capacity
        self.weight = weight
        self.until = until
        self.asked = asked
        self.held = held
        self.revoked = revoked
        self.description = description
        self.was = was
        """Its weight before the current change; None if the change is of another entry."""


class Head(NamedTuple):
    """The result of one walk over a queue."""

    holding: list[Entry]
    freed: list[Entry]
    """The entries of `holding` that became holders by the current change: exactly these are woken."""
    gone: list[Entry]
    blocked: Entry | None
    """The first entry that must wait."""
    used: int
    next: float
    """The instant of the next expiry among the entries seen."""


def fits(ahead: int, weight: int, capacity: int) -> bool:
    return ahead + weight <= capacity


def head(queue: Iterable[Entry], gone: Callable[[Entry], bool]) -> Head:
    """Walk a queue in ticket order, up to the first entry that must wait. All entries have the same capacity."""
    holding: list[Entry] = []
    freed: list[Entry] = []
    ended: list[Entry] = []
    before = used = 0
    upcoming = float("inf")
    for entry in queue:
        old = entry.weight if entry.was is None else entry.was
        held_before = fits(before, old, entry.capacity)
        before += old
        if gone(entry):
            ended.append(entry)
            continue
        upcoming = min(upcoming, entry.until)
        if not fits(used, entry.weight, entry.capacity):
            return Head(holding, freed, ended, entry, used, upcoming)
        used += entry.weight
        holding.append(entry)
        if not held_before:
            freed.append(entry)
    return Head(holding, freed, ended, None, used, upcoming)
