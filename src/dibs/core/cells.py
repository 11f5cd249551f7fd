"""Interface Cells: versioned values for the shared primitives. Latch, cell and fence each have a space of their own.

A call raises StoreUnavailable at `until` at the latest; its outcome is then unknown. Invariants, each a test in
dibs.testing.contract:

1. A name is unset, at version 0, until its first put. Each successful put raises its version by one. Nothing is deleted
   and no version comes back, so a late put finds another version and changes nothing.
2. A put succeeds only at the version that it names, in one atomic step; otherwise it raises Conflict.
3. A put that is repeated with the same id reports its first success, even if others wrote since. The store remembers
   that until `write.by`; after that instant a put has no effect and raises StoreUnavailable.
4. `watch` returns once the version differs from the given one, even if it differed before. Returning without a change
   is fine; a missed change costs a few seconds.
5. `admit` is one atomic step. Its records never expire.
6. Acknowledged writes to the spaces in `DURABLE` survive a power cut, as far as the store can ensure it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from dibs.errors import StoreError

LATCH, CELL, FENCE = "latch", "cell", "fence"
DURABLE = frozenset({CELL, FENCE})
"""A power cut that resets a latch only delays its waiters; a reset fence would admit stale tokens."""
LARGEST = 65_536
"""The size limit of a value, in bytes."""


class CellKey(NamedTuple):
    """The key of a value or a queue that can be watched: a name in a space."""

    space: str
    name: str


class CellValue(NamedTuple):
    """A value and its version; unset, it is None at version 0."""

    value: bytes | None
    version: int


UNSET_CELL = CellValue(None, 0)


class Write:
    """One compare-and-set request. Its id is random and used for this request only."""

    __slots__ = ("asked", "by", "cell_key", "id", "value", "version")

    def __init__(
        self, cell_key: CellKey, value: bytes, version: int, id: bytes, by: float, asked: bool = False
    ) -> None:
        self.cell_key = cell_key
        self.value = value
        self.version = version
        """The version that the value must have."""
        self.id = id
        self.by = by
        """A local instant after which a put has no effect."""
        self.asked = asked
        """Set by the store before it first sends the put: until then the store cannot have this id."""


class Admits(Protocol):
    """Checks tokens: in the cells of a store, or in a transaction of the caller."""

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        """Return the highest exclusive token admitted before. Unless `shared`, record `token` if it is higher."""


class Cells(Admits, Protocol):
    """One way to talk to the cells of a store."""

    async def get(self, cell_key: CellKey, until: float) -> CellValue: ...

    async def put(self, write: Write, until: float) -> int:
        """Write the value, and return its new version."""

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        """Wait for a change. The writer notifies the inbox under `key`, which expects it already."""

    def close(self) -> None:
        """Free local resources."""


def token_of(cell_value: CellValue) -> int:
    """Parse the record of a fence; an unset fence has admitted no token."""
    if cell_value.value is None:
        return 0
    if not cell_value.value.isdigit() or len(cell_value.value) > 20:
        raise StoreError(
            "dibs did not write the record of this fence", step="find the program that writes there, and stop it"
        )
    return int(cell_value.value)


def record_of(token: int) -> bytes:
    return b"%d" % token
