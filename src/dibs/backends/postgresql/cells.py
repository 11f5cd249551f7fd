"""Cells (core/cells.py) in a table: one row for each value, which is never deleted."""

from __future__ import annotations

from dibs.backends.postgresql.connection import RoutineCall
from dibs.backends.postgresql.errors import strange
from dibs.backends.postgresql.executor import PostgresqlExecutor, words_of
from dibs.core.cells import UNSET_CELL, CellKey, CellValue, Write
from dibs.errors import Conflict, StoreError, StoreUnavailable

HIGHEST = 2**63 - 2
"""The highest version that can be raised."""


class PostgresqlCells:
    def __init__(self, executor: PostgresqlExecutor) -> None:
        self._executor = executor
        self._routines = executor.routines
        self.close = executor.close

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        found = await self._executor.rows(self._routines.get, cell_key, until)
        if not found:
            return UNSET_CELL
        _, value, version = found[0]
        if value is None or version is None:
            raise strange()
        return CellValue(bytes.fromhex(value.decode()), int(version))

    async def put(self, write: Write, until: float) -> int:
        if write.version > HIGHEST:  # the server cannot represent the next version
            raise _conflict((await self.get(write.cell_key, until)).version, write)
        call = RoutineCall.of(
            self._routines.put, *write.cell_key, write.value, write.version, write.id, b"", write.asked,
            self._executor.floors.epoch, by=write.by, at=5,
        )  # fmt: skip
        write.asked = True
        words = words_of(await self._executor.ask_once(call, until))
        if len(words) == 2:
            raise StoreUnavailable("the write came too late to count")
        if not words[1].isdigit():
            raise strange()
        version, done = int(words[1]), words[2] == b"1"
        if not done:
            raise _conflict(version, write)
        return version

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        words, hears = await self._executor.watch(self._routines.watch, cell_key, version, key, until)
        if words[1] == b"%d" % version:
            await self._executor.hear(key, hears, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        values = (name, token, shared, self._executor.floors.epoch)
        words = await self._executor.words(self._routines.admit, values, until)
        if words[1] == b"-":
            raise StoreError(
                "dibs did not write the record of this fence", step="find the program that writes there, and stop it"
            )
        if not words[1].isdigit():
            raise strange()
        return int(words[1])


def _conflict(version: int, write: Write) -> Conflict:
    return Conflict(f"it is at version {version}, not at {write.version}", step="read the value again, then write")
