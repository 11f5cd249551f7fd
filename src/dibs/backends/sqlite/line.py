"""Seam 2 over a port: one step of the file for each verb."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from dibs.backends import ledger
from dibs.backends.ledger import LINES
from dibs.backends.sqlite.port import Port, addressed
from dibs.backends.sqlite.table import SqliteTable
from dibs.core.cells import Spot
from dibs.core.line import Leave, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.errors import StoreError
from dibs.info import Finding, LockInfo


class SqliteLine:
    """See core/line.py."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def take_now(self, claim: Claim, place: Place, until: float) -> None:
        """There is no free path yet."""

    def leave_now(self, claim: Claim, until: float) -> None:
        """There is no free path yet."""

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        return await self._port.tell(lambda table, now: addressed(table, *ledger.join(table, claim, place, now)), until)

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Standing | None]:
        """Most looks of those who wait write nothing, and readers wait for nobody. Not in a loop, where a reader goes
        to a thread."""
        if self._port.is_blocking:
            seen = await self._port.read(lambda table, now: ledger.look(table, claims, now), until)
            if seen is not None:
                return seen
        return await self._port.tell(lambda table, now: addressed(table, *ledger.renew(table, claims, now)), until)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        await self._port.tell(lambda table, now: addressed(table, None, ledger.amend(table, claim, weight, now)), until)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        return await self._port.tell(
            lambda table, now: addressed(table, *ledger.leave(table, claim, answered, now)), until, urgent=True
        )

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        return await self._port.tell(
            lambda table, now: addressed(table, *ledger.leave_all(table, leaving, now)), until, urgent=True
        )

    async def connect(self, until: float) -> None:
        """The file is opened at first use: that takes a millisecond."""

    def round_trip(self) -> float:
        return 0.0

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._port.me.inbox.wait(claim.id, until))

    async def line(self, name: str, until: float) -> LockInfo:
        return await self._port.read(lambda table, now: _seen(table, name, now), until)

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        return await self._port.read(
            lambda table, now: ledger.page(table, table.lines(prefix, after), now, datetime.now(UTC)), until
        )

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await self._port.tell(
            lambda table, now: addressed(table, *ledger.revoke(table, name, token, now)), until
        )

    async def evict(self, name: str, token: int, until: float) -> bool:
        return await self._port.tell(lambda table, now: addressed(table, *ledger.evict(table, name, token, now)), until)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._port.watch(
            Spot(LINES, name), key, lambda table, now: ledger.foremost(table, name, now)[0] != seen, until
        )

    async def identity(self, until: float) -> str:
        return await self._port.read(lambda table, _: table.identity(), until)

    async def doctor(self, until: float) -> list[Finding]:
        return await self._port.doctor(until)

    def close(self) -> None:
        self._port.close()


def _seen(table: SqliteTable, name: str, now: float) -> LockInfo:
    table.with_about = True
    try:
        return ledger.view(table, name, now, datetime.now(UTC))
    finally:
        table.with_about = False
