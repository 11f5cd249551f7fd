"""Seam 3 over a port: values that nobody owns, one row each, which is never deleted."""

from __future__ import annotations

from dibs.backends.postgresql.answers import strange
from dibs.backends.postgresql.connection import MICROSECONDS, Call
from dibs.backends.postgresql.executor import PostgresqlExecutor, words_of
from dibs.backends.postgresql.line import NOBODY
from dibs.backends.postgresql.looks import GLANCE
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.cells import UNSET, Kept, Spot, Write
from dibs.core.line import Me
from dibs.core.runtime import Runtime
from dibs.errors import Conflict, StoreError, StoreUnavailable

HIGHEST = 2**63 - 2
"""As high as a version gets that another one can follow."""


class PostgresqlCells:
    """See core/cells.py."""

    def __init__(self, port: PostgresqlExecutor, ear: PostgresqlSubscriber | None, runtime: Runtime, me: Me) -> None:
        self._port = port
        self._verbs = port.routines
        self._ear = ear
        self._runtime = runtime
        self._me = me

    async def get(self, spot: Spot, until: float) -> Kept:
        result, _ = await self._port.ask_often(Call(self._verbs.get, (spot.space.encode(), spot.name.encode())), until)
        if not result.ntuples:
            return UNSET
        value, version = result.get_value(0, 1), result.get_value(0, 2)
        if value is None or version is None:
            raise strange()
        return Kept(bytes.fromhex(value.decode()), int(version))

    async def put(self, write: Write, until: float) -> int:
        space, name = write.spot
        if write.version > HIGHEST:  # the server could not even compare it
            raise _conflict((await self.get(write.spot, until)).version, write)
        values = (
            space.encode(), name.encode(), write.value, b"%d" % write.version, write.id, b"",
            b"t" if write.asked else b"f", self._port.floors.epoch,
        )  # fmt: skip
        write.asked = True
        words = words_of(await self._port.ask(Call(self._verbs.put, values, write.by, 5), until))
        if len(words) == 2:
            raise StoreUnavailable("the write came too late to count")
        if not words[1].isdigit():
            raise strange()
        version, done = int(words[1]), words[2] == b"1"
        if not done:
            raise _conflict(version, write)
        return version

    async def watch(self, spot: Spot, version: int, key: bytes, until: float) -> None:
        ear = self._ear
        hears = await self._port.hears(ear, until)
        now = self._runtime.now()
        client = self._me.id if hears else NOBODY
        patience = max(min(until - now, 3600.0), 0.0)
        values = (
            spot.space.encode(), spot.name.encode(), b"%d" % version, key, client, b"%d" % (patience * MICROSECONDS),
            self._port.floors.epoch,
        )  # fmt: skip
        words = await self._port.words(Call(self._verbs.watch, values), until)
        if words[1] != b"%d" % version:
            return
        if ear is not None and hears:
            await ear.hear(key, until)
        else:
            await self._me.inbox.wait(key, min(until, now + GLANCE))

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        values = (name.encode(), b"%d" % token, b"t" if shared else b"f", self._port.floors.epoch)
        words = await self._port.words(Call(self._verbs.admit, values), until)
        if words[1] == b"-":
            raise StoreError(
                "dibs did not write the record of this fence", step="find the program that writes there, and stop it"
            )
        if not words[1].isdigit():
            raise strange()
        return int(words[1])

    def close(self) -> None:
        self._port.close()


def _conflict(version: int, write: Write) -> Conflict:
    return Conflict(f"it is at version {version}, not at {write.version}", step="read the value again, then write")
