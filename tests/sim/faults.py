"""The faults of a schedule: a plan, each bound to the n-th message that is sent.

Bound to messages and not to instants, a fault always happens, and happens where it hurts: a process dies with its join
just sent, stops with the reply just arrived, forks between two requests. A fault hits the message itself (lost, late,
twice) or the node at its end (paused, killed, forked, interrupted, its machine's clock stepped), the server (stalled,
its clock stepped), or makes an operator break somebody's lock. Once the plan is through the world is healed: it is
*quiet* as soon as everything late has arrived and everybody runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sim.clockwork import PACE, Node, Sim

if TYPE_CHECKING:
    from sim.network import Network

FEWEST, MOST = 3, 7
LATENCY = 0.001
"""Seconds that a message travels at most."""
WINDOW = 85
"""Faults hit one of the first so many messages: a schedule always sends more."""
LONGEST = 4.0
"""Seconds that a pause or a late message lasts at most: longer than any lease."""
KINDS = (
    *("lost", "late", "twice") * 4, *("pause",) * 5, *("crash",) * 2, *("interrupt",) * 2, "fork", "stall", "break",
)  # fmt: skip
STEPPED = (*KINDS, "step", "step", "step")


class Fate(NamedTuple):
    """The fate of one message."""

    lost: bool = False
    delay: float = 0.0
    again: float = 0.0
    """After so many seconds a second copy arrives; 0: none does."""
    broken: float = 0.0
    """After so many seconds the caller learns that its connection broke; 0: it did not."""


FINE = Fate()


class Victim(Protocol):
    """Actions of faults on the processes of a schedule. False: it was impossible, and nothing happened."""

    def crash(self, node: Node) -> bool: ...

    def fork(self, node: Node) -> bool: ...

    def interrupt(self, node: Node) -> bool: ...

    def break_a_lock(self) -> bool: ...

    def clock_stepped(self) -> None:
        """From here on the proviso of the promise does not hold: clocks were stepped."""


class Faults:
    """The plan of one schedule, and what of it has happened."""

    def __init__(self, sim: Sim, kinds: Sequence[str] = KINDS) -> None:
        self._sim = sim
        self._dice = dice = sim.dice("faults")
        indices = dice.sample(range(2, WINDOW), dice.randint(FEWEST, MOST))
        self._plan = {index: dice.choice(kinds) for index in indices}
        self._messages = 0
        self._trouble_until = 0.0
        self._about_to = 0
        self._victim: Victim
        self._network: Network
        self.happened: list[str] = []

    def meet(self, victim: Victim, network: Network) -> None:
        self._victim = victim
        self._network = network

    def quiet(self) -> bool:
        return self.through() and self._sim.now > self._trouble_until

    def through(self) -> bool:
        return not self._plan and not self._about_to

    def fate(self, node: Node, what: str, which: str) -> Fate:
        """The fate of the next message: a `request` or `reply` of a node's verb, or a `signal` to it."""
        self._messages += 1
        if self._messages not in self._plan:
            return FINE
        kind = self._plan.pop(self._messages)
        message = {
            "lost": lambda: Fate(lost=True, broken=self._break_off()),
            "late": lambda: Fate(delay=self._lasting(self._length(0.02, LONGEST)), broken=self._break_off()),
            "twice": lambda: Fate(again=self._lasting(self._length(0.0001, LONGEST))),
        }
        if kind == "twice" and (what, which) == ("request", "join"):
            kind = "late"  # nothing below us sends a join again: that is what its id is for
        if kind in message:
            self._happens(kind, node, f"{what} {which}")
            return message[kind]()
        # Not in the middle of the step that sends this message: as soon as that is over.
        self._about_to += 1
        self._sim.soon(None, lambda: self._hit(kind, node, f"{what} {which}"))
        return FINE

    def _hit(self, kind: str, node: Node, where: str) -> None:
        hits: dict[str, Callable[[], bool]] = {
            "pause": lambda: self._pause(node, self._length(0.01, LONGEST)),
            "stall": self._stall,
            "crash": lambda: self._victim.crash(node),
            "fork": lambda: self._victim.fork(node),
            "interrupt": lambda: self._victim.interrupt(node),
            "break": self._victim.break_a_lock,
            "step": lambda: self._step(node),
        }
        self._about_to -= 1
        if hits[kind]():
            self._happens(kind, node, where)
        else:  # what is paused cannot be paused, what is dead cannot die: the next free message is hit instead
            self._plan[next(index for index in count(self._messages + 1) if index not in self._plan)] = "late"

    def _happens(self, kind: str, node: Node, where: str) -> None:
        self.happened.append(kind)
        self._sim.note(node.name, f"FAULT {kind} at the {where}")

    def _length(self, least: float, most: float) -> float:
        """Short ones as likely as long ones."""
        return float(least * (most / least) ** self._dice.random())

    def _break_off(self) -> float:
        """Mostly a broken connection is noticed soon; sometimes only silence tells, if the caller waits for so long."""
        return self._lasting(0.5 * self._dice.random() if self._dice.random() < 0.7 else self._dice.uniform(0.5, 4.0))

    def _lasting(self, seconds: float) -> float:
        self._trouble_until = max(self._trouble_until, self._sim.now + seconds + LATENCY)
        self._sim.at(self._trouble_until + PACE, None, lambda: None)  # time goes on until then, if nobody else moves
        return seconds

    def _pause(self, node: Node, seconds: float) -> bool:
        if node.paused or node.dead:
            return False
        node.pause()
        self._sim.at(self._sim.now + self._lasting(seconds), None, node.resume)
        return True

    def _stall(self) -> bool:
        self._network.alarm_all()
        return self._pause(self._network.server.node, self._length(0.01, LONGEST))

    def _step(self, node: Node) -> bool:
        """Step the server's clock either way, or stop a client's machine and its clock."""
        seconds = self._length(0.1, LONGEST)
        if self._dice.random() < 0.5:
            self._network.server.node.offset += self._lasting(seconds) * self._dice.choice((-1, 1))
        elif self._pause(node, seconds):
            node.offset -= seconds * node.rate
        else:
            return False
        self._victim.clock_stepped()
        return True
