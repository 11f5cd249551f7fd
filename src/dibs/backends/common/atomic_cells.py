"""The verbs of `Cells` for stores that this process can read and write in one atomic step (memory, sqlite).

The store calls each verb inside its own atomic step. A verb returns its reply and the `Wake`s to send once that step is
committed. A watcher is notified once; for the next change it watches again.
"""

from __future__ import annotations

from typing import Protocol

from dibs.backends.common.atomic_queue import Wake, Watched, tell
from dibs.core.cells import FENCE, CellKey, CellValue, Write, record_of, token_of
from dibs.errors import Conflict, StoreUnavailable


class CellTable(Watched, Protocol):
    """The values of a store; every method runs inside the caller's atomic step."""

    def cell(self, cell_key: CellKey) -> CellValue: ...

    def keep(self, cell_key: CellKey, cell_value: CellValue) -> None: ...

    def written(self, write: Write) -> int | None:
        """The version that this write made, if it has succeeded before."""

    def note(self, write: Write, version: int, now: float) -> None:
        """Remember the success of a write until `write.by`."""


def put(table: CellTable, write: Write, now: float) -> tuple[int, list[Wake]]:
    if now > write.by:
        raise StoreUnavailable("the write came too late to count")
    again, write.asked = write.asked, True
    if again and (done := table.written(write)) is not None:
        return done, []
    there = table.cell(write.cell_key)
    if there.version != write.version:
        raise Conflict(
            f"it is at version {there.version}, not at {write.version}", step="read the value again, then write"
        )
    version = write.version + 1
    table.keep(write.cell_key, CellValue(write.value, version))
    table.note(write, version, now)
    return version, tell(table, write.cell_key)


def admit(table: CellTable, name: str, token: int, shared: bool) -> int:
    cell_key = CellKey(FENCE, name)
    there = table.cell(cell_key)
    highest = token_of(there)
    if token > highest and not shared:
        table.keep(cell_key, CellValue(record_of(token), there.version + 1))
    return highest
