"""Seam 3 over a port. What must survive a power cut is synced to the disk before it is answered."""

from __future__ import annotations

from dibs.backends import cabinet
from dibs.backends.sqlite.port import Port, addressed
from dibs.core.cells import DURABLE, Kept, Spot, Write


class SqliteCells:
    """See core/cells.py."""

    def __init__(self, port: Port) -> None:
        self._port = port

    async def get(self, spot: Spot, until: float) -> Kept:
        return await self._port.read(lambda table, _: table.cell(spot), until)

    async def put(self, write: Write, until: float) -> int:
        return await self._port.tell(
            lambda table, now: addressed(table, *cabinet.put(table, write, now)),
            until,
            durable=write.spot.space in DURABLE,
        )

    async def watch(self, spot: Spot, version: int, key: bytes, until: float) -> None:
        await self._port.watch(spot, key, lambda table, _: table.cell(spot).version != version, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        return await self._port.step(lambda table, _: cabinet.admit(table, name, token, shared), until, durable=True)

    def close(self) -> None:
        self._port.close()
