"""Interface Cells: shared values, each in a row that is never deleted."""

from __future__ import annotations

from dibs.backends.mysql.calls import query, routine_call
from dibs.backends.mysql.errors import strange
from dibs.backends.mysql.executor import MysqlExecutor, number, row
from dibs.backends.mysql.subscriber import MysqlSubscriber
from dibs.core.cells import LARGEST, UNSET_CELL, CellKey, CellValue, Write, token_of
from dibs.errors import Conflict, StoreError, StoreUnavailable

_GET = "SELECT value, version FROM dibs_cells WHERE space = {} AND name = {}"
_NO_VERSION = 2**63
_LONGEST_TOKEN = 10**20


class MysqlCells:
    def __init__(self, executor: MysqlExecutor, subscriber: MysqlSubscriber, prefix: str) -> None:
        self._executor = executor
        self._subscriber = subscriber
        self._prefix = prefix
        self.close = executor.transport.close

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        (found,) = await self._executor.ask(query(_GET, cell_key.space, self._key(cell_key.name)), until)
        if not found:
            return UNSET_CELL
        value, version = found[0][0], number(found[0][1])
        if version == 0 and value is None:
            return UNSET_CELL
        if value is None or len(value) > LARGEST or not 1 <= version < _NO_VERSION:
            raise StoreError(
                "a cell holds a value that dibs did not write", step="find the program that writes there, and stop it"
            )
        return CellValue(value, version)

    async def put(self, write: Write, until: float) -> int:
        space, name = write.cell_key.space, self._key(write.cell_key.name)
        call = routine_call("put", space, name, write.id, write.version, write.value, by=write.by)
        write.asked = True
        _, what, version = map(number, row(await self._executor.ask_once(call, until), 3)[:3])
        if what == 0:
            raise StoreUnavailable("the write came too late to count")
        if what == 2:
            raise Conflict(
                f"it is at version {version}, not at {write.version}", step="read the value again, then write"
            )
        return version

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        await self._subscriber.watch(self._executor, cell_key.space, self._key(cell_key.name), version, key, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        if token >= _LONGEST_TOKEN:
            raise strange()
        said = row(await self._executor.ask(routine_call("admit", self._key(name), token, int(shared)), until), 2)
        return token_of(CellValue(said[1], 1))

    def _key(self, name: str) -> bytes:
        return (self._prefix + name).encode()
