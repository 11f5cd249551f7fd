"""The subscriptions of a client: one connection, or in a cluster with sharded messages one to each primary."""

from __future__ import annotations

from typing import Protocol


class Subscribers(Protocol):
    async def listen(self, channel: bytes, key: bytes, until: float) -> None: ...

    async def hear(self, key: bytes, until: float) -> bytes | None: ...

    def hears(self, channel: bytes, key: bytes) -> bool: ...

    def ignore(self, channel: bytes, key: bytes) -> None: ...

    def listeners(self, channel: bytes) -> list[bytes]: ...
