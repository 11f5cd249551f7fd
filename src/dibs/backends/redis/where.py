"""Which server has a key: one by itself, a primary that sentinels watch, a cluster.

`locate` does no I/O: an answer that is out of date shows when the server refuses or is silent, and then `forget` or
`moved` says so. Safe to share between threads: what is known is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from dibs.backends.redis.address import Address
from dibs.backends.redis.cluster import Cluster
from dibs.backends.redis.failover import Failover
from dibs.backends.redis.sentinel import Sentinel
from dibs.backends.redis.settings import Place
from dibs.core.runtime import Runtime


class Where(Protocol):
    @property
    def failover(self) -> Failover | None:
        """Where sentinels choose the primary: which grants count."""
        ...

    def locate(self, key: bytes) -> Place | None:
        """None: learn first; and if it is None even then, no server has this key now."""
        ...

    def learn(self, until: float) -> None:
        """Ask the servers. Blocks; StoreUnavailable names what failed, and asking again may help; another StoreError
        is for good."""
        ...

    def forget(self, place: Place) -> None:
        """It did not answer, or said that it is no primary: where it was the answer, there is none now."""
        ...

    def moved(self, key: bytes, place: Place) -> None:
        """A MOVED answer: the key's slot is at this place, which is what `reached` gives."""
        ...

    def reached(self, told: tuple[str, int], asked: Place) -> Place:
        """Where MOVED and ASK lead us: without a host it is the one that was asked, and a driver may know another way
        to it."""
        ...

    def all(self) -> list[Place]:
        """Every primary that is known."""
        ...

    def attend(self, runtime: Runtime) -> None:
        """Keep up with fail-overs, in a thread, while the store is used."""
        ...

    def close(self) -> None: ...


def where(address: Address, now: Callable[[], float]) -> Where:
    if address.topology == "sentinel":
        return Sentinel(address, now)
    if address.topology == "cluster":
        return Cluster(address, now)
    return Single(address.places[0])


class Single:
    """There is nothing to learn, and nowhere else to go."""

    failover: ClassVar[Failover | None] = None

    def __init__(self, place: Place) -> None:
        self._place = place

    def locate(self, key: bytes) -> Place | None:
        return self._place

    def learn(self, until: float) -> None:
        pass

    def forget(self, place: Place) -> None:
        pass

    def moved(self, key: bytes, place: Place) -> None:
        pass

    def reached(self, told: tuple[str, int], asked: Place) -> Place:
        return (told[0] or asked[0], told[1])

    def all(self) -> list[Place]:
        return [self._place]

    def attend(self, runtime: Runtime) -> None:
        pass

    def close(self) -> None:
        pass
