"""The verbs of seam 3 for stores that this process can read and write in one atomic step (memory, sqlite).

The store calls each verb inside its own atomic step. A verb returns its reply and the `Wake`s to send once that step is
committed. A watcher is notified once; for the next change it watches again.
"""

from __future__ import annotations

from typing import Protocol

from dibs.backends.ledger import Wake, Watched, tell
from dibs.core.cells import FENCE, Kept, Spot, Write, record_of, token_of
from dibs.errors import Conflict, StoreUnavailable


class Table(Watched, Protocol):
    """The values of a store; every method runs inside the caller's atomic step."""

    def cell(self, spot: Spot) -> Kept: ...

    def keep(self, spot: Spot, kept: Kept) -> None: ...

    def written(self, write: Write) -> int | None:
        """The version that this write made, if it has succeeded before."""

    def note(self, write: Write, version: int, now: float) -> None:
        """Remember the success of a write until `write.by`."""


def put(table: Table, write: Write, now: float) -> tuple[int, list[Wake]]:
    if too_late(write, now):
        raise StoreUnavailable("the write came too late to count")
    again, write.asked = write.asked, True
    if again and (done := table.written(write)) is not None:
        return done, []
    there = table.cell(write.spot)
    if not follows(write, there):
        raise Conflict(
            f"it is at version {there.version}, not at {write.version}", step="read the value again, then write"
        )
    version = write.version + 1
    table.keep(write.spot, Kept(write.value, version))
    table.note(write, version, now)
    return version, tell(table, write.spot)


def admit(table: Table, name: str, token: int, shared: bool) -> int:
    spot = Spot(FENCE, name)
    there = table.cell(spot)
    highest = token_of(there)
    if token > highest and not shared:
        table.keep(spot, Kept(record_of(token), there.version + 1))
    return highest


def too_late(write: Write, now: float) -> bool:
    return now > write.by


def follows(write: Write, there: Kept) -> bool:
    """Whether the value still has the version that the write names."""
    return there.version == write.version
