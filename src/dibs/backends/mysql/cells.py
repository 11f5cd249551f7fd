"""Interface Cells: shared values, each in a row that is never deleted. Also how to wait for a change of a value, or
of a leader.

The server has a row for each watcher. The client that makes a change wakes the watchers. The row of a watcher that has
stopped is removed by the next call of watch.sql.
"""

from __future__ import annotations

from collections import deque

from dibs.backends.mysql.calls import MICROSECONDS, query, routine_call
from dibs.backends.mysql.errors import strange
from dibs.backends.mysql.executor import MysqlExecutor, number, row
from dibs.backends.mysql.subscriber import MysqlSubscriber
from dibs.core.cells import LARGEST, UNSET_CELL, CellKey, CellValue, Write, token_of
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import Conflict, StoreError, StoreUnavailable

_GET = "SELECT value, version FROM dibs_cells WHERE space = {} AND name = {}"
_NO_VERSION = 2**63
_LONGEST_TOKEN = 10**20

_MOST = 100
_REMEMBERED = 60.0
"""Seconds that the row of a watcher lasts at most; no call watches for longer."""
POLL_INTERVAL = 2.0
"""Seconds after which a watcher looks by itself, in case a message was lost."""


class Watching:
    def __init__(
        self, executor: MysqlExecutor, subscriber: MysqlSubscriber, runtime: Runtime, me: ClientIdentity,
        over: deque[bytes],
    ) -> None:  # fmt: skip
        """`over`: the keys of watchers that have stopped, of all queues and cells of this store."""
        self._executor = executor
        self._subscriber = subscriber
        self._runtime = runtime
        self._me = me
        self._over = over

    async def watch(self, cell_key: CellKey, name: bytes, seen: int, key: bytes, until: float) -> None:
        """Wait until the version or ticket is not `seen`, a message comes, or a poll is due."""
        now = self._runtime.now()
        over = [self._over.popleft() for _ in range(min(len(self._over), _MOST))]
        patience = int(min(until - now + 1, _REMEMBERED) * MICROSECONDS)
        call = routine_call("watch", cell_key.space, name, key, self._me.id, patience, b"".join(over))
        self._subscriber.listen(key)
        try:
            _, there, left = map(number, row(await self._executor.ask(call, until), 3)[:3])
            if there == seen:
                by_itself = left / MICROSECONDS if left >= 0 else POLL_INTERVAL
                await self._me.inbox.wait(key, min(until, self._runtime.now() + min(by_itself, POLL_INTERVAL)))
        finally:
            self._subscriber.ignore(key)
            self._subscriber.forget(key)
            self._over.append(key)  # a request is not possible here: an interrupt awaits nothing


class MysqlCells:
    def __init__(self, executor: MysqlExecutor, watching: Watching, prefix: str) -> None:
        self._executor = executor
        self._watching = watching
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
        await self._watching.watch(cell_key, self._key(cell_key.name), version, key, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        if token >= _LONGEST_TOKEN:
            raise strange()
        said = row(await self._executor.ask(routine_call("admit", self._key(name), token, int(shared)), until), 2)
        return token_of(CellValue(said[1], 1))

    def _key(self, name: str) -> bytes:
        return (self._prefix + name).encode()
