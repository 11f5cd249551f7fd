"""The network: every verb is a request and a reply that may get lost, come late, come twice, or overtake what went out
on another connection.

A channel is one connection: requests arrive in the order in which they were sent, as on TCP. A call that is not
answered in time raises `StoreUnavailable` and drops the connection; what was sent on it may still arrive, at any later
time. Signals to waiters travel on a connection of their own. Every reply carries the store's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dibs.errors import DibsError, StoreUnavailable
from sim.clockwork import Node, Parked, Shared, Sim
from sim.faults import FINE, LATENCY, Fate
from sim.server import Server
from sim.world import SimInbox, SimRuntime

if TYPE_CHECKING:
    from sim.faults import Faults
    from sim.invariants import Watcher

DOUBTFUL = 0.01
"""A message that takes longer than this may outlast its caller's patience: only then is an alarm worth its event."""


class Call(Parked):
    """One request, and the caller that waits for its answer."""

    __slots__ = ("_args", "_network", "alarmed", "node", "until", "verb")

    def __init__(self, network: Network, node: Node, verb: str, args: tuple[Any, ...], until: float) -> None:
        super().__init__()
        self._network = network
        self._args = args
        self.verb = verb
        self.node = node
        self.until = until
        self.alarmed = False

    def run(self) -> Any:
        """At the server."""
        return self._network.server.run(self.verb, self._args)

    def arrive(self) -> None:
        self._network.reply(self, self.run())


class Connection:
    """Whatever is sent on it arrives in order."""

    __slots__ = ("clear_at",)

    def __init__(self) -> None:
        self.clear_at = 0.0

    def arrival(self, when: float) -> float:
        self.clear_at = when = max(when, self.clear_at)
        return when


class Network(Shared):
    """Between the nodes and the server; `faults` decides what happens to each message."""

    def __init__(self, sim: Sim, faults: Faults, watcher: Watcher) -> None:
        self.sim = sim
        self.faults = faults
        self.watcher = watcher
        self.server = Server(sim, watcher)
        self.outstanding: dict[Call, None] = {}
        self._delay = sim.dice("latency").random

    def send(self, connection: Connection, call: Call) -> None:
        """It runs at the server; its answer travels back."""
        self.outstanding[call] = None
        fate = self.faults.fate(call.node, "request", call.verb)
        now = self.sim.now
        arrives = connection.arrival(now + self._delay() * LATENCY + fate.delay)
        if not fate.lost:
            self.sim.at(arrives, self.server.node, call.arrive)
        if fate.broken or arrives - now > DOUBTFUL or self.server.node.paused:
            self.alarm(call)
        if fate is not FINE:
            self._more(call, fate, self.server.node, call.run)

    def signal(self, inbox: SimInbox, node: Node, key: bytes, message: bytes) -> None:
        fate = self.faults.fate(node, "signal", node.name)
        if not fate.lost:
            when = self.sim.now + self._delay() * LATENCY + fate.delay
            self.sim.at(when, node, lambda: inbox.deliver(key, message))
        if fate.again:
            self.sim.at(self.sim.now + fate.again, node, lambda: inbox.deliver(key, message))

    def alarm(self, call: Call) -> None:
        if not call.alarmed:
            call.alarmed = True
            self.sim.at(call.node.globally(call.until), call.node, call)

    def alarm_all(self) -> None:
        for call in self.outstanding:
            self.alarm(call)

    def reply(self, call: Call, answer: Any) -> None:
        fate = self.faults.fate(call.node, "reply", call.verb)
        if not fate.lost:
            when = self.sim.now + self._delay() * LATENCY + fate.delay
            self.sim.at(when, call.node, lambda: call.wake(answer))
        if fate is not FINE:
            self.alarm(call)
            self._more(call, fate, call.node, lambda: call.wake(answer))

    def _more(self, call: Call, fate: Fate, to: Node, again: Callable[[], object]) -> None:
        """Other faults of a message: its connection breaks, or a second copy arrives."""
        if fate.broken:
            self.sim.at(self.sim.now + fate.broken, call.node, call)
        if fate.again:
            self.sim.at(self.sim.now + fate.again, to, again)


class StoreTime:
    """The store's time in the newest reply to a process, the one to connecting at first, and when that arrived."""

    __slots__ = ("here", "told")

    def __init__(self) -> None:
        self.told = self.here = 0.0

    def heard(self, told: float, here: float) -> None:
        self.told, self.here = told, here

    def early(self, local: float) -> float:
        """A local instant in the store's time; rather too early, by the time that a reply travels."""
        return self.told + local - self.here


class Channel:
    """One connection at a time from a process to the server."""

    def __init__(self, network: Network, runtime: SimRuntime, time: StoreTime) -> None:
        self._network = network
        self._runtime = runtime
        self._time = time
        self._connection = Connection()

    async def ask(self, verb: str, *args: Any, until: float) -> Any:
        call = Call(self._network, self._runtime.node, verb, args, until)
        self._network.send(self._connection, call)
        try:
            reply = await call
        finally:
            del self._network.outstanding[call]
            if call.value is None:
                self._connection = Connection()
        if reply is None:
            raise StoreUnavailable(f"no answer to {verb} in time")
        told, answer = reply
        self._time.heard(told, self._runtime.now())
        if isinstance(answer, DibsError):
            raise answer
        return answer


class Courier:
    """An inbox as the server sees it: at the other end of a network."""

    def __init__(self, network: Network, inbox: SimInbox, node: Node) -> None:
        self._network = network
        self._inbox = inbox
        self._node = node

    def deliver(self, key: bytes, message: bytes) -> None:
        self._network.signal(self._inbox, self._node, key, message)
