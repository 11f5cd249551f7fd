"""The rule: who may hold.

A line is a first-come-first-served weighted semaphore. **A claim holds if the weight ahead of it plus its own weight
is at most the capacity.** Mutex: capacity 1. Semaphore: n. Read-write: readers weigh 1, a writer the whole capacity.
Stripes: claims of weight 0 on the name itself, so that only the number of stripes is guarded there.

Why this is safe. Claims that hold are a prefix of the line, because weight ahead only grows along it. Newcomers go to
the end and weights only fall (`amend` lowers, leaving and expiry remove), so for one claim the weight ahead can only
fall: once it holds, it holds until it leaves or expires. Hence a stale look can delay a grant and never invent one, a
lost wake-up costs time and not safety, and nobody ever writes "granted". Expiry is the one event that takes a grant
away; it is a write (the entry is deleted), and the holder's own deadline has passed before (see deadline.py).

`head` is the only walk over a line. Stores that decide by themselves render it in their own language; a differential
test holds the renderings equal. It stops at the first claim that must wait: everything behind it waits too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dibs.errors import StoreUnavailable

RW_CAPACITY = 1_000_000
"""What a writer weighs: more readers than this cannot hold at once."""


class Prepared:
    """What a store keeps for all claims of one lock object that differ only in id and deadline."""

    __slots__ = ("request",)

    def __init__(self) -> None:
        self.request: Any = None
        """The packed request, once the store has made it."""


class Claim:
    """One request to hold. The id is random, made for this acquisition, and shown to nobody."""

    __slots__ = (
        "about", "asked", "by", "capacity", "client", "id", "kind", "lease", "name", "prepared", "ticket", "waiting",
        "weight",
    )  # fmt: skip

    def __init__(
        self, id: bytes, name: str, kind: str, capacity: int, weight: int, lease: float, waiting: float, by: float,
        client: bytes, about: str, asked: bool = False, ticket: int | None = None, prepared: Prepared | None = None,
    ) -> None:  # fmt: skip
        self.id = id
        self.name = name
        self.kind = kind
        self.capacity = capacity
        self.weight = weight
        self.lease = lease
        self.waiting = waiting
        self.by = by
        """A local instant: a join that runs later does nothing."""
        self.client = client
        self.about = about
        self.asked = asked
        """Set by a store before it first sends the join: until then nobody can know the id, nobody need look for it."""
        self.ticket = ticket
        """Set by a store once it knows the place, as the quickest way back to it."""
        self.prepared = prepared
        """Shared by the claims of one lock object, description and client; None: nothing is kept."""

    def __repr__(self) -> str:
        return f"<Claim on {self.name!r}: {self.kind}, weight {self.weight}, ticket {self.ticket}, {self.about}>"


class Standing:
    """What the store says of a claim."""

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
        """Seconds until something ahead can end by itself."""
        self.revoked = revoked
        self.held_back = held_back
        """Nobody is ahead, and yet the store grants nothing now: why. A wait that ends so was not for a busy lock."""


class Entry:
    """A claim as it stands in a store."""

    __slots__ = (
        "about", "asked", "capacity", "client", "held", "id", "kind", "revoked", "ticket", "until", "was", "weight",
    )  # fmt: skip

    def __init__(
        self, ticket: int, id: bytes, client: bytes, kind: str, capacity: int, weight: int, until: float, asked: float,
        held: float | None, revoked: bool, about: str, was: int | None = None,
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
        self.about = about
        self.was = was
        """What it weighed before the change in hand; None where the change is not its own."""


class Head:
    """What a walk saw."""

    __slots__ = ("blocked", "freed", "gone", "holding", "next", "used")

    def __init__(
        self, holding: list[Entry], freed: list[Entry], gone: list[Entry], blocked: Entry | None, used: int, next: float
    ) -> None:
        self.holding = holding
        self.freed = freed
        """Those among the holding that the change in hand made holders: exactly they are to be woken."""
        self.gone = gone
        self.blocked = blocked
        """The first that must wait."""
        self.used = used
        self.next = next
        """The instant at which something seen here can expire."""


def fits(ahead: int, weight: int, capacity: int) -> bool:
    """The rule itself."""
    return ahead + weight <= capacity


def head(line: Iterable[Entry], gone: Callable[[Entry], bool]) -> Head:
    """Walk a line, in ticket order, as far as the rule looks. All its entries bear the same capacity."""
    holding: list[Entry] = []
    freed: list[Entry] = []
    ended: list[Entry] = []
    before = used = 0
    upcoming = float("inf")
    for entry in line:
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
