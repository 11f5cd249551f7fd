"""Seam 3: versioned values that nobody owns. Latch, cell and fence live on them, each in a space of its own.

Each call ends at `until`, at the latest, with StoreUnavailable; its outcome is then unknown. Invariants, each a test in
dibs.testing.contract:

1. A name is unset, at version 0, until its first put. Each put that succeeds raises its version by one; nothing is ever
   deleted and no version comes back, so a late put finds another version and changes nothing.
2. A put succeeds only at the very version it was made for, in one atomic step; otherwise it raises Conflict.
3. A put that is repeated with the same id reports its first success, whoever wrote since. That is remembered until
   `write.by`; after that instant a put does nothing and raises StoreUnavailable.
4. `watch` returns once the version is not the given one, also if it was not before. Returning without a change is
   fine; a change that is missed costs a few seconds.
5. `admit` is one atomic step. Its records never expire.
6. What is in `DURABLE` survives a power cut once it is answered, as far as the store can see to that.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from dibs.errors import StoreError

LATCH, CELL, FENCE = "latch", "cell", "fence"
DURABLE = frozenset({CELL, FENCE})
"""A latch that is set back by a power cut keeps people waiting; a fence that is would let them in."""
LARGEST = 65_536
"""Bytes of a value."""


class Spot(NamedTuple):
    """Where something stands that can be watched: a name in a space."""

    space: str
    name: str


class Kept(NamedTuple):
    """A value and its version; unset, it is None at version 0."""

    value: bytes | None
    version: int


UNSET = Kept(None, 0)


class Write:
    """One wish to change a value. The id is random and made for this wish alone."""

    __slots__ = ("asked", "by", "id", "spot", "value", "version")

    def __init__(self, spot: Spot, value: bytes, version: int, id: bytes, by: float, asked: bool = False) -> None:
        self.spot = spot
        self.value = value
        self.version = version
        """The one that it is to follow."""
        self.id = id
        self.by = by
        """A local instant: a put that runs later does nothing."""
        self.asked = asked
        """Set by a store before it first sends the put: until then nobody can know the id, nobody need look for it."""


class Admits(Protocol):
    """Where tokens are checked: a store's cells, or a transaction of the caller's own."""

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        """The highest exclusive token admitted before; unless `shared`, a higher one takes its place."""


class Cells(Admits, Protocol):
    """One way to talk to a store."""

    async def get(self, spot: Spot, until: float) -> Kept: ...

    async def put(self, write: Write, until: float) -> int:
        """The new version."""

    async def watch(self, spot: Spot, version: int, key: bytes, until: float) -> None:
        """Wait for a change; whoever makes one tells the inbox under `key`, which expects it already."""

    def close(self) -> None:
        """Let go of what this holds on the machine."""


def token_of(kept: Kept) -> int:
    """The token in a fence's record; an unset fence has admitted none."""
    if kept.value is None:
        return 0
    if not kept.value.isdigit() or len(kept.value) > 20:
        raise StoreError(
            "dibs did not write the record of this fence", step="find the program that writes there, and stop it"
        )
    return int(kept.value)


def record_of(token: int) -> bytes:
    return b"%d" % token
