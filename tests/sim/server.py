"""The memory store as a server: its own verbs, on a clock of its own, under the eyes of the watchers.

To watch is one step here: either something has changed already, or the watcher is put down. The signal itself travels,
and may get lost.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dibs.backends.common import atomic_queue
from dibs.backends.common.atomic_queue import QUEUES
from dibs.backends.memory import MemoryCells, MemoryQueue, World
from dibs.core.cells import FENCE, CellKey, CellValue, Write
from dibs.core.queue import ClientIdentity
from dibs.errors import DibsError
from dibs.runtime.threads import step
from sim.cells_invariants import CellWatcher
from sim.clockwork import Node, Sim
from sim.world import SimRuntime

if TYPE_CHECKING:
    from sim.invariants import Watcher

REMOVING = frozenset({"leave", "evict"})
CELL_VERBS = frozenset({"get", "put", "admit", "watch", "changed"})


class Server:
    def __init__(self, sim: Sim, watcher: Watcher) -> None:
        dice: random.Random = sim.dice("server's clock")
        self.node = Node(sim, "store", dice.uniform(10, 1000), dice.uniform(0.96, 1.04))
        self.world = World("sim")
        runtime = SimRuntime(sim, self.node)
        nobody = ClientIdentity(b"", runtime.inbox(), 0.0, lambda _: None)  # nobody waits at the server itself
        self._queue = MemoryQueue(self.world, runtime, nobody)
        self._cells = MemoryCells(self.world, runtime, nobody)
        self._sim = sim
        self._watcher = watcher
        self.cell_watcher = CellWatcher(sim, self.world, self.node)

    def run(self, verb: str, args: tuple[Any, ...]) -> tuple[float, Any]:
        """The store's time, as every reply carries it, and the answer; an error is an answer too."""
        if verb == "leave_all":
            for claim, answered in args[0]:
                self.run("leave", (claim, answered))
            return self.node.now(), [None] * len(args[0])
        of_cells = verb in CELL_VERBS
        before = self._watcher.before(verb, args[0]) if verb in REMOVING else None
        try:
            answer = getattr(self, verb)(*args) if of_cells else step(getattr(self._queue, verb)(*args, 0.0))
        except DibsError as error:
            answer = error
        if not of_cells:
            self._watcher.after(verb, args[0], before, answer)
        elif self._sim.trace is not None:
            self._sim.note("store", f"{verb} {_shown(args[0])} -> {str(answer)[:60]}")
        return self.node.now(), answer

    # The verbs of cells.

    def get(self, cell_key: CellKey) -> CellValue:
        return step(self._cells.get(cell_key, 0.0))

    def put(self, write: Write) -> int:
        before = self.world.cell(write.cell_key)
        version = step(self._cells.put(write, 0.0))
        self.cell_watcher.put(write, before, version)
        return version

    def admit(self, name: str, token: int, shared: bool) -> int:
        before = self.world.cell(CellKey(FENCE, name))
        highest = step(self._cells.admit(name, token, shared, 0.0))
        self.cell_watcher.admitted(name, token, shared, before, highest)
        return highest

    def watch(
        self, cell_key: CellKey, seen: int, key: bytes, client: bytes, over: Sequence[tuple[CellKey, bytes]]
    ) -> bool:
        """True: it has changed already. Whoever was put down before and watches no longer is struck out."""
        for past in over:
            self.world.unwatch(*past)
        if self.changed(cell_key, seen):
            return True
        self.world.watch(cell_key, client, key)
        return False

    def changed(self, cell_key: CellKey, seen: int) -> bool:
        """A look, without being put down."""
        if cell_key.space == QUEUES:
            return atomic_queue.foremost(self.world, cell_key.name, self.node.now())[0] != seen
        return self.world.cell(cell_key).version != seen


def _shown(what: object) -> str:
    if isinstance(what, Write):
        return f"{what.cell_key.name}@{what.version} {what.value!r}"
    return what.name if isinstance(what, CellKey) else str(what)
