"""Helpers for tests of Redis, beside store.faults.kit: claims that last, addresses, names by slot."""

from __future__ import annotations

from typing import Any

from redis.crc import key_slot

from dibs.core.rule import Claim
from dibs.testing.contract.seats import Seat
from lab.proxy import Proxy
from lab.servers import ports
from lab.servers.supervisor import Server


class PatientSeat(Seat):
    """Its claims outlive a standstill of this process."""

    def claim(self, name: str = "a", *, lease: float = 60.0, waiting: float | None = None, **options: Any) -> Claim:
        return super().claim(name, lease=lease, waiting=min(60.0, lease) if waiting is None else waiting, **options)


def key_of(name: str) -> str:
    return f"dibs:{name}|line"


def through(proxy: Proxy) -> str:
    return f"redis://{ports.HOST}:{proxy.port}"


def slot_of(name: str) -> int:
    """The cluster slot of a name's queue."""
    return int(key_slot(key_of(name).encode()))


def in_slots(wanted: set[int], stem: str, shape: str = "{}") -> str:
    """A name whose queue is in one of these."""
    names = (shape.format(f"{stem}-{number}") for number in range(100_000))
    return next(name for name in names if slot_of(name) in wanted)


def slots(node: Server) -> set[int]:
    """The slots that a node says it owns; a replica owns none."""
    mine = next(line for line in node.ask("CLUSTER", "NODES").splitlines() if "myself" in line)
    owned: set[int] = set()
    for word in mine.split()[8:]:
        first, _, last = word.partition("-")
        if first.isdigit():
            owned.update(range(int(first), int(last or first) + 1))
    return owned


def errors(node: Server, code: str) -> int:
    """How many replies of the server were this error."""
    told = node.ask("INFO", "errorstats").splitlines()
    return sum(int(line.rpartition("=")[2]) for line in told if line.startswith(f"errorstat_{code}:"))


def at(*endpoints: int | Server) -> str:
    return ",".join(
        f"{ports.HOST}:{endpoint if isinstance(endpoint, int) else endpoint.port}" for endpoint in endpoints
    )
