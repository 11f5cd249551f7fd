"""The latch of a client: kept in a cell, or by the store itself."""

from __future__ import annotations

from typing import Protocol

from dibs.core.client import Client
from dibs.core.kinds.count_down import CountDown
from dibs.core.kinds.primitives import Latch
from dibs.core.queue import LATCHES


class AnyLatch(Protocol):
    name: str

    async def arm(self, count: object) -> None: ...

    async def count_down(self, n: object = 1) -> None: ...

    async def count(self) -> int: ...

    async def wait(self, timeout: object, armed: object) -> bool: ...

    def describe(self) -> str: ...


def latch(client: Client, name: object) -> AnyLatch:
    return CountDown(client, name) if LATCHES in client.store.capabilities else Latch(client, name)
