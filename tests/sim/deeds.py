"""The records of the watcher of cells: deeds of users, whom they follow, and who really leads.

A deed ends `DONE`, `NOT_DONE` (it raised, and said nothing else) or `UNKNOWN` (it said that it is not known, or was
interrupted; one whose process died has no end).
"""

from __future__ import annotations

from dibs.backends.common.atomic_queue import foremost
from dibs.backends.memory import World
from dibs.core.cells import CellKey
from dibs.core.deadline import FOREVER
from sim.clockwork import Node

DONE, NOT_DONE, UNKNOWN = "done", "not done", "unknown"


class Deed:
    """One operation of a user."""

    def __init__(self, number: int, node: Node, verb: str, cell_key: CellKey, amount: int, deadline: float) -> None:
        self.number = number
        self.node = node
        self.verb = verb
        self.cell_key = cell_key
        self.amount = amount
        """The number of an arm or a count; the token of an admit."""
        self.deadline = deadline
        """By its node's clock."""
        self.stood = node.stood
        self.armed = False
        self.outcome: str | None = None
        self.made: int | None = None
        """The version that it has made in the store."""
        self.first: tuple[int, int] | None = None
        """Generation and count of a latch, as the deed first saw them: what it is about."""
        self.awaited = 0
        self.calm_at = FOREVER
        """When it first asked the store after the last fault: from then on nothing it relies on goes wrong."""
        self.unseen = True
        """For a wait: the generation had not opened when it last looked."""

    def word(self) -> bytes:
        return b" %d" % self.number

    def overdue(self) -> float:
        """Seconds past its deadline, not counting those for which its process stood still."""
        if self.node.paused or self.node.dead:
            return 0.0
        return self.node.now() - self.deadline - (self.node.stood - self.stood) * self.node.rate


class Following:
    """One watch of an election, from its beginning."""

    def __init__(self, node: Node, cell_key: CellKey) -> None:
        self.node = node
        self.cell_key = cell_key
        self.last: int | None = None
        self.calm_at = FOREVER


class Truth:
    """The leader of an election, by the store."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stands = 0
        self.token = 0
        self.since = 0.0
        self.told = True
        """False: the leader's lease ran out, and nobody has removed it yet."""
        self.led = {0}

    def look(self, world: World, store_now: float, now: float) -> None:
        token = foremost(world, self._name, store_now)[0]
        stands = next((entry.ticket for entry in world.queue(self._name)), 0)
        if token != self.token or stands != self._stands:
            self.token, self._stands, self.since = token, stands, now
            self.told = token == stands
            self.led.add(token)
