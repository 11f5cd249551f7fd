"""Schedules of a quorum: processes that fight for one lock over several simulated servers, and what must be true.

Each member is a server with a clock and a network of its own. Messages get lost and come late or twice; processes and
members stand still past every lease; processes die; members start anew without their data; an operator breaks a claim
between its two rounds. After every step: at most one hold is valid, by its process's own clock, and tokens rise in the
order in which holds were handed out. Once the world is healed everybody is served.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dibs.backends.common import atomic_queue
from dibs.core import grants
from dibs.core.client import Client
from dibs.core.grants import HELD, Hold
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options
from dibs.core.queue import ClientIdentity
from dibs.core.quorum import grantor, members
from dibs.core.quorum.store import QuorumStore
from dibs.core.rule import Claim
from dibs.core.runtime import Job
from dibs.errors import DibsError
from sim.clockwork import Interrupted, Node, Parked, Sim
from sim.executors import SimExecutor, SimStore
from sim.faults import FINE, Fate
from sim.invariants import Violation
from sim.network import Network
from sim.schedule import Outcome, judged
from sim.world import SimRuntime

LEASE = 1.0
SEATS, QUOTA = 3, 4
FAULTY = 12.0
"""Seconds in which things go wrong."""
BOUND = 90.0
CHANCE = 0.06
"""The probability of a fault for each message."""
BREAK = 0.04
"""The probability that a ballot is broken between its rounds."""
LAST_CALL = 0.02


class TaskGroup:
    """Tasks of the simulator, which no one can cancel: like threads, they go on when nobody waits for them."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime

    async def gather(self, jobs: Sequence[Job | None], until: float, enough: Callable[[], bool]) -> None:
        runtime, ended = self._runtime, [0]
        began, end = runtime.now(), until
        bell = [Parked()]

        async def run(job: Job) -> None:
            await job()
            ended[0] += 1
            runtime.sim.soon(runtime.node, bell[0].wake)

        wanted = [job for job in jobs if job is not None]
        for job in wanted:
            runtime.sim.start(runtime.node, "hand", run(job))
        while ended[0] < len(wanted) and runtime.now() < end:
            if end == until and enough():
                end = min(until, runtime.now() + max(runtime.now() - began, LAST_CALL))
            bell[0] = Parked()
            runtime.alarm(bell[0], end)
            await bell[0]

    def close(self) -> None:
        """They end by themselves."""


class Runtime(SimRuntime):
    def separate(self) -> Runtime:
        return self

    def task_group(self, count: int) -> TaskGroup:
        return TaskGroup(self)


class Blind:
    """A member's network wants somebody who watches it; here the holders are watched."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Member:
    """One server, and when it last lost everything."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.network = Network(world.sim, world, Blind())  # type: ignore[arg-type]  # it decides what goes wrong
        self.node = self.network.server.node
        self.node.name = f"m{number}"
        self.began = self.node.now() - 1000.0

    def lose(self) -> None:
        self.network.server.world.reset()
        self.began = self.node.now()
        self.world.sim.note(self.node.name, "FAULT starts anew without its data")


class MemberExecutor(SimExecutor):
    """`Queue` and `Voter` over the network of a member."""

    def __init__(self, member: Member, store: SimStore, runtime: SimRuntime, me: ClientIdentity) -> None:
        super().__init__(store, runtime, me)
        self._member = member

    async def stamp(self, claim: Claim, token: int, until: float) -> bool:
        self._member.world.between_rounds(claim)
        return bool(await self._ask("stamp", self._wire(claim), token, until=until))

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        await self._ask("inspect", claim.name, until=until)
        return (self._member.node.now() - self._member.began) / self._member.node.rate

    async def identity(self, until: float) -> str:
        return self._member.node.name


class MemberStore(SimStore):
    def __init__(self, member: Member) -> None:
        super().__init__(member.network)
        self.member = member
        self.shown = f"sim://{member.node.name}"

    def open(self, runtime: SimRuntime, me: ClientIdentity) -> MemberExecutor:
        super().open(runtime, me)
        return MemberExecutor(self.member, self, runtime, me)


class World:
    """One schedule; also who decides what happens to each message."""

    def __init__(self, seed: int, trace: bool = False, seats: int = SEATS) -> None:
        self.sim = Sim(seed, trace)
        self._calm = not seats
        self.dice: random.Random = self.sim.dice("quorum")
        self.members = [Member(self, number) for number in range(self.dice.choice((3, 5)))]
        self.spare = (len(self.members) - 1) // 2
        self.hands: dict[Hold, Node] = {}
        self.handed = 0
        self.highest = 0
        self.happened: list[str] = []
        self._processes = 0
        self._stamped: set[bytes] = set()
        self._down: set[Member] = set()
        self.waiting = seats
        for _ in range(seats):
            self._sit(QUOTA)
        if not self._calm:
            self._plan()

    # Faults.

    def faulty(self) -> bool:
        return self.sim.now < FAULTY and not self._calm

    def fate(self, node: Node, what: str, which: str) -> Fate:
        if not self.faulty() or self.dice.random() > CHANCE:
            return FINE
        kind = self.dice.choice(("lost", "late", "late", "twice"))
        if kind == "twice" and which == "join":
            kind = "late"
        self.happened.append(kind)
        self.sim.note(node.name, f"FAULT {kind} {what} {which}")
        if kind == "lost":
            return Fate(lost=True, broken=self.dice.random())
        length = 0.02 * 150 ** self.dice.random()
        return Fate(delay=length, broken=self.dice.random()) if kind == "late" else Fate(again=length)

    def between_rounds(self, claim: Claim) -> None:
        """Before anything of round two is sent, an operator may break what stands since round one."""
        if claim.id in self._stamped:
            return
        self._stamped.add(claim.id)
        if self.faulty() and self.dice.random() < BREAK:
            self.happened.append("break")
            for member in self.members:
                table = member.network.server.world
                entry = table.places.get(claim.id)
                if entry is not None:
                    atomic_queue.evict(table, claim.name, entry.ticket, member.node.now())
                    self.sim.note(member.node.name, f"FAULT breaks ticket {entry.ticket}")

    def _plan(self) -> None:
        """Members stand still or lose their data one after the other, at most so many at a time as may be missing."""
        for _ in range(8):
            self.sim.at(self.dice.uniform(0.0, FAULTY), None, self._strike)

    def _strike(self) -> None:
        running = [node for node in self.sim.nodes if not node.dead and not node.paused and node.name.startswith("p")]
        kind = self.dice.choice(("stop", "stop", "stall", "lose", "lose"))
        if kind == "stop" and running:
            self._stop(self.dice.choice(running), self.dice.uniform(0.1, 2.5))
        elif kind != "stop" and len(self._down) < self.spare:
            member = self.dice.choice([one for one in self.members if one not in self._down])
            self._down.add(member)
            if kind == "lose":
                member.lose()
                # Whoever counts on its forgotten vote does so no longer than this: until then no other may forget.
                self.sim.at(self.sim.now + 2 * LEASE, None, lambda: self._down.discard(member))
            else:
                length = self.dice.uniform(0.1, 2.5)
                member.network.alarm_all()
                self._stop(member.node, length)
                self.sim.at(self.sim.now + length, None, lambda: self._down.discard(member))
        else:
            return
        self.happened.append(kind)

    def _stop(self, node: Node, length: float) -> None:
        if not node.paused:
            self.sim.note(node.name, f"FAULT stands still for {length:.3f} s")
            node.pause()
            self.sim.at(self.sim.now + length, None, node.resume)

    # Processes.

    def _sit(self, quota: int) -> None:
        client, node = self.process()
        self.sim.start(node, "user", self._work(client, node, quota))

    def process(self) -> tuple[Client, Node]:
        self._processes += 1
        node = Node(self.sim, f"p{self._processes}", self.dice.uniform(10, 1000), self.dice.uniform(0.97, 1.03))
        runtime = Runtime(self.sim, node)
        client = Client(
            QuorumStore([MemberStore(member) for member in self.members]), runtime, lease=LEASE, owner=None, info={},
            namespace="", retry=10.0, identity=("user", node.name, 1), note="", make_grantor=grantor.quorum_grantor(),
        )  # type: ignore[arg-type]  # fmt: skip
        return client, node

    async def _work(self, client: Client, node: Node, quota: int) -> None:
        while quota:
            lock = Lock(client, "x", Options(lease=LEASE, renew=self.dice.random() < 0.7))
            hold = lock.begin(self.dice.choice((None, None, 0.0, 0.5, 3.0)))
            with suppress(DibsError):
                if await lock.acquire(hold):
                    quota -= 1
                    self._took(node, hold)
                    await client.runtime.sleep(self.dice.choice((0.001, 0.01, 0.5, 1.5) if self.faulty() else (0.001,)))
                    self.hands.pop(hold, None)
                    await lock.release(hold)
                    self.sim.note(node.name, f"gave token {hold.token} back")
            if quota and self.faulty() and self.dice.random() < 0.1:
                self.hands = {hold: where for hold, where in self.hands.items() if where is not node}
                self.sim.note(node.name, "FAULT dies")
                self.happened.append("die")
                node.die()
                self._sit(quota)
                raise Interrupted
            await client.runtime.sleep(self.dice.random() * 0.02)
        self.waiting -= 1

    def _took(self, node: Node, hold: Hold) -> None:
        self.sim.note(node.name, f"took token {hold.token}, {hold.remaining():.3f} s")
        if hold.token <= self.highest:
            raise Violation(f"token {hold.token} after {self.highest}")
        self.highest = hold.token
        self.handed += 1
        self.hands[hold] = node

    def check(self) -> None:
        valid = [
            (node, hold) for hold, node in self.hands.items()
            if hold.grant is not None and hold.grant.state is HELD and node.now() < hold.grant.until
        ]  # fmt: skip
        if len(valid) > 1:
            who = ", ".join(f"{node.name} token {hold.token}" for node, hold in valid)
            raise Violation(f"more than one valid holder: {who}")


def run(seed: int, trace: bool = False) -> Outcome:
    world = World(seed, trace)
    sim = world.sim
    with judged(sim):
        if not sim.run(lambda: not world.waiting, FAULTY + BOUND, world.check):
            raise Violation(f"{world.waiting} were not served within {BOUND:g} s after healing")
        return Outcome(seed, world.handed, tuple(world.happened), sim.steps, 0, sim.trace)


def _half(members: int) -> int:
    return members // 2


def _from_now(grant: grants.Grant, standing: grants.Standing, sent_at: float) -> None:
    assert grant.claim is not None
    grant.answer(standing, max(sent_at, *(hold.context.now() for hold in grant.holds)))


def _stamps_anyway(table: Any, claim: Claim, token: int, now: float) -> tuple[bool, list[atomic_queue.Wake]]:
    table.last_ticket = max(table.last_ticket, token)
    return True, []


async def _keeps(self: grantor.QuorumGrantor, grant: grants.Grant, ballot: grantor.Ballot) -> None:
    self._watchdog.take(grant)


QUORUM_BROKEN: dict[str, list[tuple[Any, str, Any]]] = {
    "majority": [(members, "majority", _half)],
    "validity from before round one": [(grantor, "answer_from", _from_now)],
    "round two looks before it stamps": [(atomic_queue, "stamp", _stamps_anyway)],
    "given back after a failure": [(grantor.QuorumGrantor, "_withdraw", _keeps)],
    "restart guard": [(members.Health, "sits_out", lambda *_: False)],
}
"""The safeguards of a quorum, each with its broken twin; see broken.py. The margin is one of them, too."""
