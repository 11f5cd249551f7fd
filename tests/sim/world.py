"""The runtime of a simulated process: `core.runtime.Runtime` over the scheduler, one per node.

A watchdog's turn is a task like any other here, so that it suspends in its store's calls while users' tasks go on: what
threads do in parallel becomes a choice of the scheduler. Interleavings between two awaits are not explored; those are
for tests/interrupts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from sim.clockwork import Node, Parked, Sim

T = TypeVar("T")
INSTANT = 1e-9
POLL_INTERVAL = 1.0
"""How often who watches something in the store looks for itself: a signal can get lost, a leader die without a word."""
WATCHDOG = "watchdog"
"""The name of the watchdog's tasks."""
FOLLOWER = "follower"
"""A user's tasks that go on for as long as their client is open: nobody waits for their end."""


class SimEvent:
    __slots__ = ("_parked", "_runtime", "_set")

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self._set = False
        self._parked: list[Parked] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        if not self._set:
            self._set = True
            for parked in self._parked:
                self._runtime.sim.soon(self._runtime.node, parked.wake)

    async def wait(self, until: float) -> bool:
        if not self._set:
            parked = Parked()
            self._parked.append(parked)
            self._runtime.alarm(parked, until)
            try:
                await parked
            finally:
                self._parked.remove(parked)
        return self._set

    def __deepcopy__(self, memo: object) -> SimEvent:
        return SimEvent(self._runtime)


class SimInbox:
    __slots__ = ("_runtime", "expected")

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self.expected: dict[bytes, Parked | bytes | None] = {}

    def expect(self, key: bytes) -> None:
        self.expected[key] = None

    def forget(self, key: bytes) -> None:
        self.expected.pop(key, None)

    def deliver(self, key: bytes, message: bytes) -> None:
        if key not in self.expected:
            return
        there, self.expected[key] = self.expected[key], message
        if isinstance(there, Parked):
            self._runtime.sim.soon(self._runtime.node, there.wake)

    async def wait(self, key: bytes, until: float) -> bytes | None:
        if not isinstance(self.expected.get(key), bytes):
            parked = self.expected[key] = Parked()
            self._runtime.alarm(parked, until)
            try:
                await parked
            finally:
                if self.expected.get(key) is parked:
                    self.expected[key] = None
        message = self.expected.get(key)  # it may have come together with the alarm
        if isinstance(message, Parked) or message is None:
            return None
        self.expected[key] = None
        return message

    def listen(self, source: object) -> None:
        raise AssertionError("the simulated store delivers by itself")

    def unlisten(self) -> None:
        """Nothing was listened to."""

    def __deepcopy__(self, memo: object) -> SimInbox:
        return SimInbox(self._runtime)


class SimGate:
    """Opening the simulated store never suspends: nobody can come at the same time."""

    async def once(self, known: Callable[[], T | None], make: Callable[[], Awaitable[T]]) -> T:
        there = known()
        return there if there is not None else await make()


class SimMutex:
    """Never held over an await: whoever finds it held has found a bug."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        assert not self._held, "a mutex was held over an await"
        self._held = True

    def __exit__(self, *exc: object) -> None:
        self._held = False


class SimWorker:
    """A thread of the watchdog: turns, and in between a sleep that a ring ends."""

    __slots__ = ("_bell", "_rung", "_running", "_runtime", "_stopped", "_turn")

    def __init__(self, runtime: SimRuntime, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._runtime = runtime
        self._turn = turn
        self._bell: Parked | None = None
        self._rung = self._running = self._stopped = False

    def ring(self) -> None:
        self._rung = True
        if self._stopped:
            return
        if not self._running:
            self._running = True
            self._runtime.sim.start(self._runtime.node, WATCHDOG, self._run())
        elif self._bell is not None:
            bell, self._bell = self._bell, None
            self._runtime.sim.soon(self._runtime.node, bell.wake)

    def stop(self) -> None:
        self.ring()
        self._stopped = True

    def retire(self) -> None:
        """It never lingers here."""

    async def _run(self) -> None:
        while not self._stopped:
            self._rung = False
            pause = await self._turn()
            if self._rung:
                continue
            if pause is None:
                break
            self._bell = bell = Parked()
            self._runtime.alarm(bell, self._runtime.now() + min(pause, 1.0))
            await bell
            self._bell = None
        self._running = False

    def __deepcopy__(self, memo: object) -> SimWorker:
        return SimWorker(self._runtime, self._turn)


class SimRuntime:
    """See core/runtime.py."""

    bind = None

    def __init__(self, sim: Sim, node: Node) -> None:
        self.sim = sim
        self.node = node
        self.now = node.now
        self._dice = sim.ids

    def alarm(self, parked: Parked, until: float) -> None:
        """Wake it at that instant of this node's clock, whatever happens; at `FOREVER`, never."""
        if until != float("inf"):
            # Time must go on: a wait that is shorter than the clock's last digit would be waited for again for ever.
            self.sim.at(max(self.node.globally(until), self.sim.now + INSTANT), self.node, parked)

    async def sleep(self, seconds: float) -> None:
        parked = Parked()
        self.alarm(parked, self.now() + seconds)
        await parked

    def event(self) -> SimEvent:
        return SimEvent(self)

    def mutex(self) -> SimMutex:
        return SimMutex()

    def gate(self) -> SimGate:
        return SimGate()

    def inbox(self) -> SimInbox:
        return SimInbox(self)

    def caller(self) -> object:
        return self.sim.running

    def caller_name(self) -> str:
        return "nobody" if self.sim.running is None else self.sim.running.name

    def fresh_id(self) -> bytes:
        return self._dice.randbytes(16)

    def jitter(self, most: float) -> float:
        return self._dice.random() * most

    async def offload(self, work: Callable[[], T]) -> T:
        return work()

    def worker(self, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> SimWorker:
        return SimWorker(self, turn)

    def call_back(self, callback: Callable[[], object]) -> None:
        self.sim.soon(self.node, callback)

    def is_through(self, caller: object) -> bool:
        return False

    def after_fork(self) -> None:
        """The child's runtime was made for its node."""

    def close(self) -> None:
        """Its node's tasks end by themselves."""

    def blocking(self) -> SimRuntime:
        return self
