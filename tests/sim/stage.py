"""A schedule written by hand: processes, clocks that agree in rate, and faults that a test puts where it wants them.

`stage.next("reply", "join", fate)` decides the fate of the next such message; everything else arrives. `go` starts a
coroutine in a process and gives a `Doing` to ask for its result; `pass_time` and `until` let events happen, with the
invariants of every schedule looked at after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from dibs.core.grants import Hold
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options
from dibs.core.rule import Entry
from sim.clockwork import Interrupted, Node, Sim, Task
from sim.faults import FINE, Fate
from sim.invariants import Watcher
from sim.network import Network
from sim.workload import RETRY, Process

__all__ = ["Doing", "Fate", "Stage"]


class Doing:
    """The outcome of a coroutine."""

    def __init__(self) -> None:
        self.task: Task
        self.over = False
        self.result: Any = None
        self.error: BaseException | None = None

    async def follow(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.result = await work
        except (Exception, Interrupted) as error:
            self.error = error
        self.over = True

    def get(self) -> Any:
        assert self.over, "it is not over"
        if self.error is not None:
            raise self.error
        return self.result


class Stage:
    """Stands where `Faults` and `Users` stand in a schedule of the simulator."""

    def __init__(self, seed: int = 0) -> None:
        self.sim = Sim(seed, trace=True)
        self.dice = self.sim.dice("stage")
        self.watcher = Watcher(self.sim)
        self._fates: list[tuple[str, str, Fate]] = []
        self.network = Network(self.sim, self, self.watcher)  # type: ignore[arg-type]  # the faults are ours
        self.server = self.network.server
        self.server.node.rate = 1.0
        self.watcher.meet(self.server)

    # What happens to messages.

    def next(self, what: str, verb: str, fate: Fate) -> None:
        """`what`: request or reply. Several for one verb come true one after the other."""
        self._fates.append((what, verb, fate))

    def faults_left(self) -> int:
        """Not yet come true: a test that expects a fault wants 0 in the end."""
        return len(self._fates)

    def fate(self, node: Node, what: str, verb: str) -> Fate:
        for planned in self._fates:
            if planned[:2] == (what, verb):
                self._fates.remove(planned)
                self.sim.note(verb, f"FAULT {planned[2]}")
                return planned[2]
        return FINE

    # Who acts.

    def process(self, name: str, retry: float = RETRY) -> Process:
        process = Process(self, name, retry=retry)  # type: ignore[arg-type]  # it needs of `Users` what is here
        process.node.rate = 1.0
        return process

    def lock(self, process: Process, name: str = "x", *, share: bool = False, **options: Any) -> Lock:
        return Lock(process.client, name, Options(**{"lease": 1.0, **options}), share=share)

    def take(self, process: Process, lock: Lock, timeout: float | None = None) -> Doing:
        async def take() -> Hold | None:
            holds = await process.take(lock, lock.begin(timeout))
            return holds[0] if holds else None

        return self.go(process, take())

    def give(self, process: Process, lock: Lock, hold: Hold) -> Doing:
        return self.go(process, process.give(lock, hold))

    def go(self, process: Process, work: Coroutine[Any, Any, Any]) -> Doing:
        doing = Doing()
        doing.task = self.sim.start(process.node, "user", doing.follow(work))
        return doing

    # Time.

    def pass_time(self, seconds: float) -> None:
        end = self.sim.now + seconds
        self.sim.run(lambda: False, end, self.watcher.check)
        self.sim.now = end

    def until(self, condition: Callable[[], object], within: float = 30.0) -> float:
        """Lets events happen until the condition is true; gives the seconds that it took."""
        began = self.sim.now
        while not condition():
            assert self.sim.now - began < within, f"not within {within:g} s:\n{self.shown()}"
            self.pass_time(0.0005)
        return self.sim.now - began

    def done(self, doing: Doing, within: float = 30.0) -> Any:
        self.until(lambda: doing.over, within)
        return doing.get()

    def runs(self, process: Process, work: Coroutine[Any, Any, Any], within: float = 30.0) -> Any:
        """All of it."""
        return self.done(self.go(process, work), within)

    # What stands in the store.

    def queue(self, name: str = "x") -> list[Entry]:
        return list(self.server.world.queues.get(name, {}).values())

    def shown(self) -> str:
        return "\n".join(f"{at:10.4f}  {node:8}{text}" for at, node, text in self.sim.trace or [])
