"""The memory store as a server, and the ports that reach it: every verb is a request and a reply that may get lost,
come late, come twice, or overtake what went out on another connection.

A port is one connection: requests arrive in the order in which they were sent, as on TCP. A call that is not answered
in time raises `StoreUnavailable` and drops the connection; what was sent on it may still arrive, at any later time.
Signals to waiters travel on a connection of their own. The server's clock is its own: `claim.by`, an instant of the
client, is turned into the store's time once per claim, from the store's times that came with replies, rounding early.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dibs.backends.memory import MemoryLine, MemoryStore, World
from dibs.core.line import Me, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.errors import DibsError, StoreUnavailable
from dibs.info import LockInfo
from dibs.runtime.threads import step
from sim.clockwork import Node, Parked, Sim
from sim.faults import FINE, Fate
from sim.world import SimInbox, SimRuntime

if TYPE_CHECKING:
    from sim.faults import Faults
    from sim.invariants import Watcher

LATENCY = 0.001
REMOVING = frozenset({"leave", "evict"})
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


class Network:
    """Between the nodes and the server; `faults` decides what happens to each message."""

    def __init__(self, sim: Sim, faults: Faults, watcher: Watcher) -> None:
        self.sim = sim
        self.faults = faults
        self.watcher = watcher
        self.server = Server(sim, self)
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
        """What else happens to a message: its connection breaks, a second copy arrives."""
        if fate.broken:
            self.sim.at(self.sim.now + fate.broken, call.node, call)
        if fate.again:
            self.sim.at(self.sim.now + fate.again, to, again)

    def __deepcopy__(self, memo: object) -> Network:
        return self


class Courier:
    """An inbox as the server sees it: at the other end of a network."""

    def __init__(self, network: Network, inbox: SimInbox, node: Node) -> None:
        self._network = network
        self._inbox = inbox
        self._node = node

    def deliver(self, key: bytes, message: bytes) -> None:
        self._network.signal(self._inbox, self._node, key, message)


class Server:
    """The memory store's own verbs, on the server's clock, under the eyes of the watcher."""

    def __init__(self, sim: Sim, network: Network) -> None:
        dice: random.Random = sim.dice("server's clock")
        self.node = Node(sim, "store", dice.uniform(10, 1000), dice.uniform(0.96, 1.04))
        self.world = World("sim")
        runtime = SimRuntime(sim, self.node)
        self._line = MemoryLine(self.world, runtime, Me(b"", runtime.inbox()))
        self._watcher = network.watcher

    def run(self, verb: str, args: tuple[Any, ...]) -> tuple[float, Any]:
        """Answer and the store's time, as every reply carries it; an error is an answer too."""
        before = self._watcher.before(verb, args[0]) if verb in REMOVING else None
        try:
            answer = step(getattr(self._line, verb)(*args, 0.0))
        except DibsError as error:
            answer = error
        self._watcher.after(verb, args[0], before, answer)
        return self.node.now(), answer


class SimStore:
    """One client's way to the server: see core/line.py."""

    capabilities: ClassVar[frozenset[str]] = MemoryStore.capabilities
    shown = "sim://"

    def __init__(self, network: Network) -> None:
        self.network = network
        self.seen = (0.0, 0.0)
        """The store's time in a reply, the one to connecting at first, and when that arrived here."""
        self.by: dict[bytes, float] = {}

    def open(self, runtime: SimRuntime, me: Me) -> SimPort:
        assert isinstance(me.inbox, SimInbox)
        self.seen = (self.network.server.node.now(), runtime.now())
        self.network.server.world.inboxes[me.id] = Courier(self.network, me.inbox, runtime.node)
        return SimPort(self, runtime, me)

    def close(self) -> None:
        self.by.clear()

    def before_fork(self) -> None:
        """Nothing is open that a child could harm."""

    def after_fork(self, child: bool) -> None:
        if child:
            self.by = {}


class SimPort:
    """Seam 2 over the network; see core/line.py."""

    def __init__(self, store: SimStore, runtime: SimRuntime, me: Me) -> None:
        self._store = store
        self._runtime = runtime
        self._network = store.network
        self._me = me
        self._connection = Connection()

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        claim.asked = True
        standing = await self._call("join", self._wire(claim), place, until=until)
        return self._learn(claim, standing)

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        self._network.watcher.renewing(claims)
        standings = await self._call("renew", [self._wire(claim) for claim in claims], until=until)
        return [self._learn(claim, standing) for claim, standing in zip(claims, standings, strict=True)]

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        await self._call("amend", self._wire(claim), weight, until=until)

    async def leave(self, claim: Claim, answered: bool, until: float) -> None:
        await self._call("leave", self._wire(claim), answered, until=until)
        self._network.watcher.left(claim)

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def line(self, name: str, until: float) -> LockInfo:
        return await self._call("line", name, until=until)  # type: ignore[no-any-return]

    async def names(self, prefix: str, after: str, until: float) -> list[str]:
        return await self._call("names", prefix, after, until=until)  # type: ignore[no-any-return]

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await self._call("revoke", name, token, until=until)  # type: ignore[no-any-return]

    async def evict(self, name: str, token: int, until: float) -> bool:
        return await self._call("evict", name, token, until=until)  # type: ignore[no-any-return]

    async def identity(self, until: float) -> str:
        return "sim"

    def close(self) -> None:
        """A connection of this world costs nothing."""

    async def _call(self, verb: str, *args: Any, until: float) -> Any:
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
        store_now, answer = reply
        self._store.seen = (store_now, self._runtime.now())
        if isinstance(answer, DibsError):
            raise answer
        return answer

    def _wire(self, claim: Claim) -> Claim:
        """The claim as the server reads it from the wire."""
        return Claim(
            claim.id, claim.name, claim.kind, claim.capacity, claim.weight, claim.lease, claim.waiting,
            self._by(claim), claim.client, claim.about, True, claim.ticket,
        )  # fmt: skip

    def _by(self, claim: Claim) -> float:
        """In the store's time, fixed once: a tombstone must last as long as a join that is still on its way counts."""
        by = self._store.by.get(claim.id)
        if by is None:
            store_now, here = self._store.seen
            by = self._store.by[claim.id] = store_now + claim.by - here
        return by

    @staticmethod
    def _learn(claim: Claim, standing: Standing | None) -> Standing | None:
        if standing is not None and standing.ticket:
            claim.ticket = standing.ticket
        return standing

    def __deepcopy__(self, memo: object) -> SimPort:
        return self
