"""The shared primitives: latch, cell and fence. Each is a versioned value in the store (`VersionedSlot`).

If the store does not answer, the same write is retried for the client's `retry` seconds. It takes effect at most once,
and a repetition reports success. After a timeout the write may still take effect until `write.by`: the error says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from dibs.core import names
from dibs.core.cells import CELL, FENCE, LARGEST, LATCH, Admits, CellKey, Cells, CellValue, Write
from dibs.core.client import Client
from dibs.core.deadline import FOREVER, LEAST_PATIENCE, gaps, patience
from dibs.core.kinds.options import MOST, count_of
from dibs.core.queue import CELLS
from dibs.errors import Conflict, DibsError, StaleToken, StoreError, StoreUnavailable, public

T = TypeVar("T")
TRIES = 40
"""How often `Cell.update` calls its function while others write first: with growing pauses, some 15 seconds."""
_LARGEST_TOKEN = 2**63 - 1


class VersionedSlot:
    """One name in one space of the cells, with retries."""

    def __init__(self, client: Client, space: str, name: object, what: str) -> None:
        self.name = names.check(name)
        client.require(CELLS, what)
        self.client = client
        self.cell_key = CellKey(space, client.prefix + self.name)

    def patience(self) -> float:
        """Until when to retry a store that does not answer."""
        return self.client.now() + max(self.client.retry, LEAST_PATIENCE)

    async def get(self, until: float | None = None) -> CellValue:
        end = self.patience() if until is None else until
        return await self.ask(lambda cells: cells.get(self.cell_key, end), end)

    async def put(self, value: bytes, version: int) -> int:
        """Write the value if it still has this version, and return the new version; otherwise raise Conflict."""
        write = Write(self.cell_key, value, version, self.client.runtime.fresh_id(), self.patience())
        try:
            return await self.ask(lambda cells: cells.put(write, write.by), write.by)
        except StoreUnavailable as error:
            if not write.asked:
                raise
            raise self.client.error(
                StoreUnavailable, self.name, f"{error.what}; whether the change happened is not known",
                step="read the value again",
            ) from None  # fmt: skip

    async def update(self, change: Callable[[bytes | None], bytes | None], tries: int) -> CellValue:
        """Apply `change` to the value, and retry on a conflict. If it returns None, nothing is written. Returns the
        present value."""
        for gap in gaps(tries):
            current = await self.get()
            value = change(current.value)
            if value is None:
                return current
            try:
                return CellValue(value, await self.put(value, current.version))
            except Conflict:
                await self.client.runtime.sleep(self.client.runtime.jitter(gap))
        raise self.client.error(
            Conflict, self.name, f"others changed it first, {tries} times in a row",
            step="try again later, or take a lock for it",
        )  # fmt: skip

    async def changed(self, version: int, until: float) -> None:
        """Wait until the version differs; returning without a change is fine."""
        cells = await self.client.cells()
        await self.client.await_notice(self.name, lambda key, end: cells.watch(self.cell_key, version, key, end), until)

    async def ask(self, question: Callable[[Cells], Awaitable[T]], until: float) -> T:
        cells = await self.client.cells()
        return await self.client.patiently(self.name, lambda: question(cells), until)


def not_open(client: Client, name: str, left: int) -> Conflict:
    """The error of a caller that arms a latch which is not open."""
    return client.error(
        Conflict, name, f"the latch is not open: {left} to go",
        step="wait for it to open; if nobody will count it down any more: latch.count_down(latch.count())",
    )  # fmt: skip


class LatchState(NamedTuple):
    """The record of a latch: two numbers, separated by a space."""

    generation: int
    left: int

    def record(self) -> bytes:
        return b"%d %d" % self


class Latch:
    """`arm(count)` closes it, and it opens when it was counted down. It has no owner and can be armed again.

    Each arm begins a generation. A caller waits for one generation to open, so it notices that even if the latch was
    armed again since. A count-down that began in one generation never counts in the next.
    """

    def __init__(self, client: Client, name: object) -> None:
        self._slot = VersionedSlot(client, LATCH, name, "latches")
        self._client = client
        self.name = self._slot.name

    async def arm(self, count: object) -> None:
        wanted = count_of(count, "count")

        def armed(value: bytes | None) -> bytes:
            current = self._read(value)
            if current.left:
                raise not_open(self._client, self.name, current.left)
            return LatchState(current.generation + 1, wanted).record()

        await self._slot.update(armed, MOST)

    async def count_down(self, n: object = 1) -> None:
        less, generation = count_of(n, "n"), -1

        def counted(value: bytes | None) -> bytes | None:
            nonlocal generation
            current = self._read(value)
            generation = current.generation if generation < 0 else generation
            if not current.left or current.generation != generation:
                return None  # this generation has opened
            return LatchState(generation, max(current.left - less, 0)).record()

        await self._slot.update(counted, MOST)  # every conflict is a count-down by another caller: at most MOST

    async def count(self) -> int:
        return self._read((await self._slot.get()).value).left

    async def wait(self, timeout: object, armed: object) -> bool:
        """True: it opened. False: timed out."""
        if not isinstance(armed, bool):
            raise TypeError(f"armed must be True or False, not {armed!r}")
        limit = patience(timeout)
        deadline = FOREVER if limit is None else self._client.now() + limit
        current, version = await self._look(deadline)
        if not (current.left or armed):
            return True
        awaited = current.generation + (0 if current.left else 1)
        while not (current.generation > awaited or current == (awaited, 0)):
            if self._client.now() >= deadline:
                return False
            await self._slot.changed(version, deadline)
            before = version
            current, version = await self._look(deadline)
            if version < before:
                raise self._client.error(
                    StoreError, self.name, "the store lost this latch while this client waited for it",
                    step="find the program that empties the store, then arm the latch again",
                )  # fmt: skip
        return True

    def describe(self) -> str:
        return self._client.place(self.name)

    async def _look(self, deadline: float) -> tuple[LatchState, int]:
        """Read the latch. The store has some seconds to answer even after the deadline."""
        until = None if deadline == FOREVER else max(deadline, self._client.now() + LEAST_PATIENCE)
        current = await self._slot.get(until)
        return self._read(current.value), current.version

    def _read(self, value: bytes | None) -> LatchState:
        if value is None:
            return LatchState(0, 0)
        generation, _, count = value.partition(b" ")
        if not (generation.isdigit() and count.isdigit() and len(value) < 40):
            raise self._client.error(
                StoreError, self.name, "dibs did not write the record of this latch",
                step="find the program that writes there, and stop it",
            )  # fmt: skip
        return LatchState(int(generation), int(count))


class Cell:
    """A versioned value, written by compare-and-set."""

    def __init__(self, client: Client, name: object) -> None:
        self._slot = VersionedSlot(client, CELL, name, "versioned values (cell)")
        self.name = self._slot.name

    async def get(self) -> tuple[bytes | None, int]:
        current = await self._slot.get()
        return current.value, current.version

    async def set(self, value: object, version: object) -> int:
        return await self._slot.put(_checked_value(value), _checked_version(version))

    async def update(self, fn: Callable[[bytes | None], bytes]) -> tuple[bytes, int]:
        current = await self._slot.update(lambda value: _checked_value(fn(value)), TRIES)
        assert current.value is not None  # it was written just now
        return current.value, current.version

    def describe(self) -> str:
        return self._slot.client.place(self.name)


class Fence:
    """The checking half of fencing. The resource calls it in the same atomic step as the change.

    It records the highest exclusive token that it admitted, for ever. A lower token is stale: another client has held
    the lock since. Tokens of readers (`shared`) are compared with the record but not recorded, because readers do not
    exclude each other. Holders of permits run in parallel, so the tokens of a semaphore are not for a fence.
    """

    def __init__(self, client: Client, name: object) -> None:
        self._slot = VersionedSlot(client, FENCE, name, "fences")
        self.name = self._slot.name

    async def admit(self, token: object, shared: object, within: Admits | None) -> None:
        if not isinstance(shared, bool):
            raise TypeError(f"shared must be True or False, not {shared!r}")
        number, is_shared = _checked_token(token), shared is True
        slot, end = self._slot, self._slot.patience()
        name, where = slot.cell_key.name, slot.client.shown
        if within is None:
            highest = await slot.ask(lambda cells: cells.admit(name, number, is_shared, end), end)
        else:
            where = "your own transaction"
            try:
                highest = await within.admit(name, number, is_shared, end)
            except DibsError as error:
                raise public(error.about(self.name, where)) from None
        if highest > number:
            raise StaleToken(
                f"token {number} is stale: {highest} was admitted before", name=self.name, store=where,
                step="do not write: a later holder has written since",
            )  # fmt: skip

    def describe(self) -> str:
        return self._slot.client.place(self.name)


def _checked_token(token: object) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"token must be an int, as hold.token is, not {token!r}")
    if not 1 <= token <= _LARGEST_TOKEN:
        raise ValueError(f"token must be from 1 to {_LARGEST_TOKEN}, as hold.token is, not {token}")
    return token


def _checked_value(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a value must be bytes, not {type(value).__name__}")
    if len(value) > LARGEST:
        raise ValueError(f"a value has at most {LARGEST} bytes, not {len(value)}")
    return value


def _checked_version(version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int):
        raise TypeError(f"version must be an int, as get() gave it, not {version!r}")
    if version < 0:
        raise ValueError(f"version must be at least 0, which is that of an unset cell, not {version}")
    return version
