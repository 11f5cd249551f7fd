"""A cell: a versioned value, written by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable

from dibs.core.cells import CELL, LARGEST
from dibs.core.client import Client
from dibs.core.kinds.versioned_slot import VersionedSlot

TRIES = 40
"""How often `update` calls its function while others write first: with growing pauses, some 15 seconds."""


class Cell:
    def __init__(self, client: Client, name: object) -> None:
        self._slot = VersionedSlot(client, CELL, name, "versioned values (cell)")
        self.name = self._slot.name

    async def get(self) -> tuple[bytes | None, int]:
        there = await self._slot.get()
        return there.value, there.version

    async def set(self, value: object, version: object) -> int:
        return await self._slot.put(checked(value), version_of(version))

    async def update(self, fn: Callable[[bytes | None], bytes]) -> tuple[bytes, int]:
        there = await self._slot.update(lambda value: checked(fn(value)), TRIES)
        assert there.value is not None  # it was written just now
        return there.value, there.version

    def describe(self) -> str:
        return self._slot.client.place(self.name)


def checked(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a value must be bytes, not {type(value).__name__}")
    if len(value) > LARGEST:
        raise ValueError(f"a value has at most {LARGEST} bytes, not {len(value)}")
    return value


def version_of(version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int):
        raise TypeError(f"version must be an int, as get() gave it, not {version!r}")
    if version < 0:
        raise ValueError(f"version must be at least 0, which is that of an unset cell, not {version}")
    return version
