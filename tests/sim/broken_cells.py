"""Each safeguard of the shared primitives, and its broken twin; see broken.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.backends.common import atomic_cells, atomic_queue
from dibs.backends.memory import World
from dibs.core.cells import FENCE, CellKey, CellValue, Write, record_of
from dibs.core.deadline import FOREVER
from dibs.core.kinds.election import Election
from dibs.core.kinds.options import MOST
from dibs.core.kinds.primitives import Latch, LatchState, VersionedSlot
from dibs.errors import Conflict, StoreUnavailable
from sim.server import Server

_put, _admit, _slot_put, _change = atomic_cells.put, atomic_cells.admit, VersionedSlot.put, Election.change


def _at_any_version(table: Any, write: Write, now: float) -> Any:
    """Whatever stands there is written over."""
    version = table.cell(write.cell_key).version
    return _put(table, Write(write.cell_key, write.value, version, write.id, write.by, write.asked), now)


def _at_any_time(table: Any, write: Write, now: float) -> Any:
    return _put(table, write, min(now, write.by))


async def _whoever_won(self: VersionedSlot, value: bytes, version: int) -> int:
    """A conflict is taken for success: the value was written, if not by us."""
    try:
        return await _slot_put(self, value, version)
    except Conflict:
        return version + 1


async def _ask_as_another(self: VersionedSlot, value: bytes, version: int) -> int:
    """Each question to a silent store is a wish of its own."""
    end = self.patience()
    return await self.ask(
        lambda cells: cells.put(Write(self.cell_key, value, version, self.client.runtime.fresh_id(), end), end), end
    )


async def _fail_as_if_undone(self: VersionedSlot, value: bytes, version: int) -> int:
    """An end that is unknown is reported like one that is not."""
    try:
        return await _slot_put(self, value, version)
    except StoreUnavailable:
        raise StoreUnavailable("the store does not answer") from None


async def _count_what_is_there(self: Latch, n: int = 1) -> None:
    def counted(value: bytes | None) -> bytes | None:
        there = self._read(value)
        return LatchState(there.generation, max(there.left - n, 0)).record() if there.left else None

    await self._slot.update(counted, MOST)


async def _wait_for_nought(self: Latch, timeout: float | None, armed: bool) -> bool:
    """Until it is seen open; `armed`: closed first."""
    deadline = FOREVER if timeout is None else self._client.now() + timeout
    for wanted in (False, True) if armed else (True,):
        there, version = await self._look(deadline)
        while (there.left == 0) is not wanted:
            if self._client.now() >= deadline:
                return False
            await self._slot.changed(version, deadline)
            there, version = await self._look(deadline)
    return True


def _only_put_down(self: Server, cell_key: CellKey, seen: int, key: bytes, client: bytes, over: Sequence[Any]) -> bool:
    """Register the watcher without a look."""
    self.world.watch(cell_key, client, key)
    return False


def _tell_nobody(*_: Any) -> list[Any]:
    return []


def _let_all_in(table: Any, name: str, token: int, shared: bool) -> int:
    return min(_admit(table, name, token, shared), token)


def _refuse_the_same(table: Any, name: str, token: int, shared: bool) -> int:
    """Only a higher token is news."""
    highest = _admit(table, name, token, shared)
    return highest + (highest == token)


def _remember_the_newest(table: Any, name: str, token: int, shared: bool) -> int:
    highest = _admit(table, name, token, shared)
    if not shared:
        cell_key = CellKey(FENCE, name)
        table.keep(cell_key, CellValue(record_of(token), table.cell(cell_key).version))
    return highest


async def _look_first(self: Election, seen: int | None) -> Any:
    """Ignore the leader seen last: only a later change counts."""
    if seen is None:
        return await _change(self, None)
    leader = await self.leader()
    return await _change(self, 0 if leader is None else leader.token)


CELLS_BROKEN = {
    "id of a write": [(World, "written", lambda self, write: None)],
    "one id for one wish": [(VersionedSlot, "put", _ask_as_another)],
    "version of a put": [(atomic_cells, "put", _at_any_version)],
    "by of a put": [(atomic_cells, "put", _at_any_time)],
    "a conflict is no success": [(VersionedSlot, "put", _whoever_won)],
    "the unknown is said to be unknown": [(VersionedSlot, "put", _fail_as_if_undone)],
    "generation of a count": [(Latch, "count_down", _count_what_is_there)],
    "generation of a wait": [(Latch, "wait", _wait_for_nought)],
    "watching begins with a look": [(Server, "watch", _only_put_down)],
    "a change is told": [(atomic_cells, "tell", _tell_nobody)],
    "a change of leader is told": [(atomic_queue, "tell", _tell_nobody)],
    "stale tokens are refused": [(atomic_cells, "admit", _let_all_in)],
    "the same token is let in again": [(atomic_cells, "admit", _refuse_the_same)],
    "the mark never falls": [(atomic_cells, "admit", _remember_the_newest)],
    "readers raise no mark": [
        (atomic_cells, "admit", lambda table, name, token, shared: _admit(table, name, token, False))
    ],
    "what a watcher saw last": [(Election, "change", _look_first)],
}
