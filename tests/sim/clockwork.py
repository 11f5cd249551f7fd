"""Virtual time and a seeded scheduler: everything that happens in a schedule is one event in one heap.

A `Node` is a process with a clock of its own (offset and rate); a paused node's events wait until it runs again, a dead
one's never come. A `Task` is a coroutine that runs on a node until it parks; whoever wakes it gives it a value. Between
two events nothing else runs, so an event is the smallest step, and what must always be true is looked at after each.

Nothing here reads a clock, a socket or the system's randomness, and nothing iterates over a set: a seed gives the same
events again, in the same order, on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Self

PACE = 0.0001
"""How long, at most, a runnable task waits for its node's processor."""
MOST_STEPS = 50_000
"""The limit for one schedule, a hundred times what most need: beyond it, something loops."""
_AT_A_TIME = 8
"""Events between two questions whether it is enough."""


class Interrupted(BaseException):
    """Thrown into a task where it waits, as a cancellation or a signal is."""


class Node:
    """A process, and the machine whose clock it reads."""

    def __init__(self, sim: Sim, name: str, offset: float, rate: float) -> None:
        self.name = name
        self.offset = offset
        self.rate = rate
        self.paused = False
        self.stood = 0.0
        """Seconds for which it was paused, all in all."""
        self.dead = False
        self.deferred: list[Callable[[], object]] = []
        self.tasks: list[Task] = []
        self._sim = sim
        sim.nodes.append(self)

    def now(self) -> float:
        return self.offset + self.rate * self._sim.now

    def globally(self, local: float) -> float:
        return (local - self.offset) / self.rate

    def pause(self) -> None:
        self.paused = True
        self.stood -= self._sim.now

    def resume(self) -> None:
        self.paused = False
        self.stood += self._sim.now
        waiting, self.deferred = self.deferred, []
        for call in waiting:
            self._sim.soon(self, call)

    def die(self) -> None:
        """Nothing of it runs any more, not even a `finally`: its tasks stay as they are until the schedule is over."""
        self.dead = True
        self.deferred.clear()


class Parked:
    """A wait of a task: woken once, with a value; later wake-ups do nothing."""

    __slots__ = ("over", "task", "value")

    def __init__(self) -> None:
        self.task: Task | None = None
        self.over = False
        self.value: Any = None

    def __await__(self) -> Generator[Parked, Any, Any]:
        if self.over:
            return self.value
        return (yield self)

    def wake(self, value: Any = None) -> None:
        if not self.over:
            self.over = True
            self.value = value
            if self.task is not None:
                self.task.run(value)


class Shared:
    """An object that a forked process shares with its parent."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Task(Shared):
    """A coroutine on its node."""

    __slots__ = ("_coroutine", "_parked", "done", "name", "node", "sim")

    def __init__(self, sim: Sim, node: Node, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.sim = sim
        self.node = node
        self.name = name
        self.done = False
        self._coroutine = coroutine
        self._parked: Parked | None = None
        node.tasks.append(self)

    def run(self, value: Any = None) -> None:
        if self.done:
            return
        self.sim.running = self
        try:
            self._parked = parked = self._coroutine.send(value)
            parked.task = self
        except (StopIteration, Interrupted):
            self._end()
        self.sim.running = None

    def waits(self) -> bool:
        return self._parked is not None and not self._parked.over

    def interrupt(self) -> None:
        """As a cancellation: it surfaces where the task waits."""
        assert self._parked is not None
        self._parked.over = True
        self.sim.running = self
        try:
            self._parked = parked = self._coroutine.throw(Interrupted())
            parked.task = self
        except (StopIteration, Interrupted):
            self._end()
        self.sim.running = None

    def bury(self) -> None:
        """The schedule is over: whatever its `finally` blocks still say is of no interest."""
        if not self.done:
            self.done = True
            with suppress(RuntimeError):
                self._coroutine.close()

    def _end(self) -> None:
        self.done = True
        self.node.tasks.remove(self)


class Sim(Shared):
    """The heap, the clock, and one source of randomness per concern, so that a draw in one does not shift another."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.running: Task | None = None
        self.steps = 0
        self.nodes: list[Node] = []
        self.trace: list[tuple[float, str, str]] | None = [] if trace else None
        self._heap: list[tuple[float, int, Node | None, Any]] = []
        self._order = 0
        self._pace = self.dice("pace").random
        self.ids = self.dice("ids")

    def dice(self, concern: str) -> random.Random:
        return random.Random(f"{self.seed}/{concern}")

    def note(self, node: str, text: str) -> None:
        if self.trace is not None:
            self.trace.append((self.now, node, text))

    def at(self, when: float, node: Node | None, call: Callable[[], object] | Parked) -> None:
        """Something to call, or somebody to wake who may be awake by then."""
        self._order += 1
        heappush(self._heap, (max(self.now, when), self._order, node, call))

    def soon(self, node: Node | None, call: Callable[[], object]) -> None:
        self._order += 1
        heappush(self._heap, (self.now + self._pace() * PACE, self._order, node, call))

    def start(self, node: Node, name: str, coroutine: Coroutine[Any, Any, Any]) -> Task:
        task = Task(self, node, name, coroutine)
        self.soon(node, task.run)
        return task

    def run(self, until: Callable[[], bool], limit: float, after: Callable[[], object]) -> bool:
        """Events one by one, `after` each. False: the limit came first, nothing was left to happen, or far too much."""
        heap = self._heap
        while not until():
            for _ in range(_AT_A_TIME):
                if not heap or heap[0][0] > limit:
                    return until()
                when, _, node, call = heappop(heap)
                if isinstance(call, Parked):
                    if call.over:  # an alarm that nobody waits for any more
                        continue
                    call = call.wake
                self.now = when
                if node is not None:
                    if node.dead:
                        continue
                    if node.paused:
                        node.deferred.append(call)
                        continue
                self.steps += 1
                call()
                after()
            if self.steps > MOST_STEPS:
                return False
        return True

    def bury(self) -> None:
        """At the end of a schedule: let go of what never came to its end."""
        for node in self.nodes:
            node.dead = True
            for task in node.tasks:
                task.bury()
