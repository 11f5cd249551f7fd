"""The fault proxies between servers: one for each port, or for each caller and port.

with Ways() as ways, cluster(through=ways) as nodes:
    ways.to(nodes[0].port).add(...)
with Ways() as ways, ensemble(ways) as nodes:
    ways.cut_off(1, nodes[0].kind.ports)      # node 1, from the other nodes and them from it
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Self

from lab.faults import BlackHole, Direction, Refuse
from lab.proxy import Proxy
from lab.servers import ports


class Ways:
    def __init__(self) -> None:
        self._proxies: dict[tuple[int | None, int], Proxy] = {}

    def __call__(self, port: int, by: int | None = None) -> int:
        if (by, port) not in self._proxies:
            self._proxies[by, port] = Proxy((ports.HOST, port))
        return self._proxies[by, port].port

    def to(self, port: int, by: int | None = None) -> Proxy:
        return self._proxies[by, port]

    def cut_off(self, node: int, listening: Collection[int]) -> None:
        """Nobody reaches those ports, and `node` reaches nobody, until `heal`."""
        for proxy in self._around(node, listening):
            proxy.add(Refuse())
            proxy.reset()

    def silence(self, node: int, listening: Collection[int]) -> None:
        """The same, but nobody is told: links stay, and what goes over them is lost."""
        for proxy in self._around(node, listening):
            proxy.add(BlackHole())

    def lost(self) -> int:
        return sum(proxy.total(way, "dropped")[1] for proxy in self._proxies.values() for way in Direction)

    def _around(self, node: int, listening: Collection[int]) -> Iterator[Proxy]:
        for (by, port), proxy in list(self._proxies.items()):
            if by == node or port in listening:
                yield proxy

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.heal()

    def close(self) -> None:
        while self._proxies:
            self._proxies.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
