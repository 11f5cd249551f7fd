"""Seam 3: shared values, one row each, which is never deleted; and how to wait for a change of one, or of a leader.

Watchers are noted in the server, and told by the client that makes the change. One that stopped watching is struck out
by the next one.
"""

from __future__ import annotations

from collections import deque

from dibs.backends.mysql.calls import MICROSECONDS, Query, RoutineCall
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
"""Seconds that a watcher stands at most: none watches for longer."""
POLL_INTERVAL = 2.0
"""How often who watches looks by itself, should it not be told."""


class Watching:
    def __init__(
        self,
        executor: MysqlExecutor,
        subscriber: MysqlSubscriber,
        runtime: Runtime,
        me: ClientIdentity,
        over: deque[bytes],
    ) -> None:
        """`over`: keys that need not be told any more; those of all ways to the store."""
        self._executor = executor
        self._subscriber = subscriber
        self._runtime = runtime
        self._me = me
        self._over = over

    async def watch(self, cell_key: CellKey, name: bytes, seen: int, key: bytes, until: float) -> None:
        """Until it is not at `seen`, or somebody says so, or a while has passed."""
        now = self._runtime.now()
        over = [self._over.popleft() for _ in range(min(len(self._over), _MOST))]
        patience = int(min(until - now + 1, _REMEMBERED) * MICROSECONDS)
        call = RoutineCall("watch", (cell_key.space, name, key, self._me.id, patience, b"".join(over)))
        self._subscriber.listen(key)
        try:
            _, there, left = map(number, row(await self._executor.ask(call, until), 3)[:3])
            if there == seen:
                by_itself = left / MICROSECONDS if left >= 0 else POLL_INTERVAL
                await self._me.inbox.wait(key, min(until, self._runtime.now() + min(by_itself, POLL_INTERVAL)))
        finally:
            self._subscriber.ignore(key)
            self._subscriber.forget(key)
            self._over.append(key)  # an interrupt awaits nothing


class MysqlCells:
    """See core/cells.py."""

    def __init__(self, executor: MysqlExecutor, watching: Watching, prefix: str) -> None:
        self._executor = executor
        self._watching = watching
        self._prefix = prefix

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        (found,) = await self._executor.ask(Query(_GET, cell_key.space, self._key(cell_key.name)), until)
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
        call = RoutineCall(
            "put",
            (write.cell_key.space, self._key(write.cell_key.name), write.id, write.version, write.value),
            write.by,
        )
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
        said = row(await self._executor.ask(RoutineCall("admit", (self._key(name), token, int(shared))), until), 2)
        return token_of(CellValue(said[1], 1))

    def close(self) -> None:
        self._executor.close()

    def _key(self, name: str) -> bytes:
        return (self._prefix + name).encode()
