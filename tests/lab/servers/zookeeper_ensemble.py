"""A ZooKeeper ensemble with a proxy between each two nodes, and its faults.

    with proxied() as ensemble:
        ensemble.silence(ensemble.followers()[0])
        ensemble.mend()                            # all nodes run, all connections are open
        ensemble.settle()                          # one leads and the others follow
        ensemble.left(within=5)                    # sessions and ephemeral nodes that are still there

A node whose connections are closed gives its clients up at once. A *silenced* one still answers pings and reads, until
it has heard nothing from the leader for syncLimit ticks (six here).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from lab.servers.programs import Refused, Silent
from lab.servers.supervisor import Server, joint_url, until
from lab.servers.ways import Ways
from lab.servers.zookeeper import ensemble, leader, mode

TICK_MS = 300
SILENCE_NOTICED = 6 * TICK_MS / 1000
"""A follower serves on for so long after it was silenced."""


class Ensemble:
    def __init__(self, nodes: tuple[Server, ...], ways: Ways) -> None:
        self.nodes = nodes
        self.ways = ways
        self._harmed = False

    @property
    def url(self) -> str:
        return joint_url("zookeeper", self.nodes)

    def leader(self) -> Server:
        return leader(self.nodes)

    def followers(self) -> list[Server]:
        first = self.leader()
        return [node for node in self.nodes if node is not first]

    def kill(self, node: Server) -> None:
        self._harmed = True
        node.kill()

    def stop(self, node: Server) -> None:
        self._harmed = True
        node.stop()

    def silence(self, node: Server) -> None:
        self._harmed = True
        self.ways.silence(self._number(node), node.kind.ports)

    def cut_off(self, node: Server) -> None:
        self._harmed = True
        self.ways.cut_off(self._number(node), node.kind.ports)

    def lost(self) -> int:
        return self.ways.lost()

    def mend(self) -> None:
        """Everything that was done is undone; that they elect, and serve, takes its time."""
        self.ways.heal()
        for node in self.nodes:
            if node.running():
                node.resume()
            else:
                node.begin()
        self._harmed = False

    def settle(self) -> None:
        until(self.whole, what="one leads, the others follow")

    def whole(self) -> bool:
        """Nothing is done to it, and it has got over what was."""
        if self._harmed:
            return False
        modes = [str(_mode(node)) for node in self.nodes]
        return sorted(modes) == ["follower"] * (len(self.nodes) - 1) + ["leader"]

    def _number(self, node: Server) -> int:
        return self.nodes.index(node) + 1

    def left(self, within: float) -> list[str]:
        """Once nothing is left, or the time is over; sessions of the dead end by their time-out."""
        return left(self.leader(), within)

    def version(self) -> str:
        return version(self.leader())


@contextlib.contextmanager
def proxied(tick_ms: int = TICK_MS) -> Iterator[Ensemble]:
    with Ways() as ways, ensemble(ways, tick_ms=tick_ms) as nodes:
        for number, node in enumerate(nodes, 1):
            for other in nodes:
                for port in other.kind.ports[1:] if other is not node else ():
                    ways(port, number)  # all there can be, now: one that is made later would know of no fault
        made = Ensemble(nodes, ways)
        made.settle()
        yield made


def left(server: Server, within: float) -> list[str]:
    """Sessions and ephemeral nodes on a server, or on an ensemble's leader, once there are none or time is over."""
    seen: list[str] = []

    def nothing() -> bool:
        seen[:] = standing(server.ask("dump", within=2))
        return not seen

    with contextlib.suppress(AssertionError):
        until(nothing, within, "nothing is left")
    return seen


def standing(dump: str) -> list[str]:
    """Sessions, then ephemeral nodes; connections without a session are those that ask."""
    sessions, _, _ = dump.partition("ephemeral nodes dump:")
    found = [f"session {number}" for number in re.findall(r"^\t(0x[0-9a-f]+)$", sessions, re.MULTILINE)]
    return found + [f"node {path}" for path in owners(dump)]


def owners(dump: str) -> dict[str, int]:
    """Maps each ephemeral node to the session that owns it."""
    _, _, rest = dump.partition("ephemeral nodes dump:")
    nodes, _, _ = rest.partition("Connections dump:")
    found: dict[str, int] = {}
    session = 0
    for line in nodes.splitlines():
        if line.startswith("0x"):
            session = int(line.rstrip(":"), 16)
        elif line.startswith("\t/"):
            found[line.strip()] = session
    return found


def _mode(node: Server) -> str | None:
    with contextlib.suppress(Refused, Silent):
        return mode(node.ask("srvr", within=1))
    return None


def version(server: Server) -> str:
    with contextlib.suppress(Refused, Silent):
        if found := re.search(r"version: ([\d.]+)", server.ask("srvr")):
            return found[1]
    return "unknown"
