"""A latch: `arm(count)` closes it, and it opens when it was counted down. It has no owner and can be armed again.

Each arm begins a generation. A caller waits for one generation to open, so it notices that even if the latch was armed
again since. A count-down that began in one generation never counts in the next.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.core.cells import LATCH
from dibs.core.client import Client
from dibs.core.deadline import FOREVER, LEAST_PATIENCE, patience
from dibs.core.kinds.options import MOST, count_of
from dibs.core.kinds.versioned_slot import VersionedSlot
from dibs.errors import Conflict, StoreError


class State(NamedTuple):
    """The record of a latch: two numbers, separated by a space."""

    generation: int
    left: int

    def record(self) -> bytes:
        return b"%d %d" % self


class Latch:
    def __init__(self, client: Client, name: object) -> None:
        self._slot = VersionedSlot(client, LATCH, name, "latches")
        self._client = client
        self.name = self._slot.name

    async def arm(self, count: object) -> None:
        wanted = count_of(count, "count")

        def armed(value: bytes | None) -> bytes:
            there = self._read(value)
            if there.left:
                raise self._client.error(
                    Conflict, self.name, f"the latch is not open: {there.left} to go",
                    step="wait for it to open; if nobody will count it down any more: latch.count_down(latch.count())",
                )  # fmt: skip
            return State(there.generation + 1, wanted).record()

        await self._slot.update(armed, MOST)

    async def count_down(self, n: object = 1) -> None:
        less, generation = count_of(n, "n"), -1

        def counted(value: bytes | None) -> bytes | None:
            nonlocal generation
            there = self._read(value)
            generation = there.generation if generation < 0 else generation
            if not there.left or there.generation != generation:
                return None  # this generation has opened
            return State(generation, max(there.left - less, 0)).record()

        await self._slot.update(counted, MOST)  # every conflict is a count-down by another caller: at most MOST

    async def count(self) -> int:
        return self._read((await self._slot.get()).value).left

    async def wait(self, timeout: object, armed: object) -> bool:
        """True: it opened. False: timed out."""
        if not isinstance(armed, bool):
            raise TypeError(f"armed must be True or False, not {armed!r}")
        limit = patience(timeout)
        deadline = FOREVER if limit is None else self._client.now() + limit
        there, version = await self._look(deadline)
        if not (there.left or armed):
            return True
        awaited = there.generation + (0 if there.left else 1)
        while not (there.generation > awaited or there == (awaited, 0)):
            if self._client.now() >= deadline:
                return False
            await self._slot.changed(version, deadline)
            before = version
            there, version = await self._look(deadline)
            if version < before:
                raise self._client.error(
                    StoreError, self.name, "the store lost this latch while this client waited for it",
                    step="find the program that empties the store, then arm the latch again",
                )  # fmt: skip
        return True

    def describe(self) -> str:
        return self._client.place(self.name)

    async def _look(self, deadline: float) -> tuple[State, int]:
        """Read the latch. The store has some seconds to answer even after the deadline."""
        until = None if deadline == FOREVER else max(deadline, self._client.now() + LEAST_PATIENCE)
        there = await self._slot.get(until)
        return self._read(there.value), there.version

    def _read(self, value: bytes | None) -> State:
        if value is None:
            return State(0, 0)
        generation, _, count = value.partition(b" ")
        if not (generation.isdigit() and count.isdigit() and len(value) < 40):
            raise self._client.error(
                StoreError, self.name, "dibs did not write the record of this latch",
                step="find the program that writes there, and stop it",
            )  # fmt: skip
        return State(int(generation), int(count))
