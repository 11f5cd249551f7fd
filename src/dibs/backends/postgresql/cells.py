"""Seam 3 over a port: values that nobody owns, one row each, which is never deleted."""

from __future__ import annotations

from dibs.backends.postgresql.connection import MICROSECONDS, RoutineCall
from dibs.backends.postgresql.errors import strange
from dibs.backends.postgresql.executor import PostgresqlExecutor, words_of
from dibs.backends.postgresql.polling import POLL_INTERVAL
from dibs.backends.postgresql.queue import NOBODY
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.cells import UNSET_CELL, CellKey, CellValue, Write
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import Conflict, StoreError, StoreUnavailable

HIGHEST = 2**63 - 2
"""As high as a version gets that another one can follow."""


class PostgresqlCells:
    """See core/cells.py."""

    def __init__(
        self,
        executor: PostgresqlExecutor,
        subscriber: PostgresqlSubscriber | None,
        runtime: Runtime,
        me: ClientIdentity,
    ) -> None:
        self._executor = executor
        self._verbs = executor.routines
        self._subscriber = subscriber
        self._runtime = runtime
        self._me = me

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        result, _ = await self._executor.ask_often(
            RoutineCall(self._verbs.get, (cell_key.space.encode(), cell_key.name.encode())), until
        )
        if not result.ntuples:
            return UNSET_CELL
        value, version = result.get_value(0, 1), result.get_value(0, 2)
        if value is None or version is None:
            raise strange()
        return CellValue(bytes.fromhex(value.decode()), int(version))

    async def put(self, write: Write, until: float) -> int:
        space, name = write.cell_key
        if write.version > HIGHEST:  # the server could not even compare it
            raise _conflict((await self.get(write.cell_key, until)).version, write)
        values = (
            space.encode(), name.encode(), write.value, b"%d" % write.version, write.id, b"",
            b"t" if write.asked else b"f", self._executor.floors.epoch,
        )  # fmt: skip
        write.asked = True
        words = words_of(await self._executor.ask(RoutineCall(self._verbs.put, values, write.by, 5), until))
        if len(words) == 2:
            raise StoreUnavailable("the write came too late to count")
        if not words[1].isdigit():
            raise strange()
        version, done = int(words[1]), words[2] == b"1"
        if not done:
            raise _conflict(version, write)
        return version

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        subscriber = self._subscriber
        hears = await self._executor.hears(subscriber, until)
        now = self._runtime.now()
        client = self._me.id if hears else NOBODY
        patience = max(min(until - now, 3600.0), 0.0)
        values = (
            cell_key.space.encode(),
            cell_key.name.encode(),
            b"%d" % version,
            key,
            client,
            b"%d" % (patience * MICROSECONDS),
            self._executor.floors.epoch,
        )
        words = await self._executor.words(RoutineCall(self._verbs.watch, values), until)
        if words[1] != b"%d" % version:
            return
        if subscriber is not None and hears:
            await subscriber.hear(key, until)
        else:
            await self._me.inbox.wait(key, min(until, now + POLL_INTERVAL))

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        values = (name.encode(), b"%d" % token, b"t" if shared else b"f", self._executor.floors.epoch)
        words = await self._executor.words(RoutineCall(self._verbs.admit, values), until)
        if words[1] == b"-":
            raise StoreError(
                "dibs did not write the record of this fence", step="find the program that writes there, and stop it"
            )
        if not words[1].isdigit():
            raise strange()
        return int(words[1])

    def close(self) -> None:
        self._executor.close()


def _conflict(version: int, write: Write) -> Conflict:
    return Conflict(f"it is at version {version}, not at {write.version}", step="read the value again, then write")
