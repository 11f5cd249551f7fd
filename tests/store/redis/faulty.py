"""What the tests of Redis's own faults share beside store.faults.kit: scripts found on the wire, names by their slot,
load.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from redis.crc import key_slot

import dibs
from dibs.backends.redis.scripts import Script
from lab.crowd import Crowd
from lab.faults import Direction, Match
from lab.proxy import Proxy
from lab.servers import ports
from lab.servers.supervisor import Server
from lab.surface import Target
from lab.witness import First, Witness, apis_of
from lab.worker import Spec
from process.children import until
from store.faults import kit, stores

both_apis = apis_of("redis", "redis://127.0.0.1:1")


def asks(name: str, *scripts: Script) -> Match:
    """Requests that run one of these scripts on the queue of that name."""
    key = key_of(name).encode()

    def fits(message: bytes) -> bool:
        return key in message and any(script.sha.encode() in message for script in scripts)

    return fits


def seen(proxy: Proxy, direction: Direction, match: Match) -> First:
    """`struck` once such a message has come to the proxy; it goes on its way."""
    return stores.seen(proxy, match, direction)


def key_of(name: str) -> str:
    return f"dibs:{name}|line"


def through(proxy: Proxy, options: str = "") -> str:
    return f"redis://{ports.HOST}:{proxy.port}{options}"


async def renewed(witness: Witness, hold: Any, lease: float) -> None:
    """Until the watchdog has renewed it once more."""
    await kit.renewed(witness, hold, lease)


def specs(url: str, directory: Path, lease: float, *, names: Iterable[str] = ("a", "b"), procs: int = 3) -> list[Spec]:
    """Processes with one thread and one task each, all on the same few names."""
    targets = [Target(name, "mutex", 1) for name in names]
    return [
        Spec(f"p{number}", url, str(directory), f"{directory.name}", targets, lease, threads=1, tasks=1, look=0.0)
        for number in range(procs)
    ]


def loaded(crowd: Crowd, more: int = 30) -> None:
    """Until so many more were granted."""
    before = crowd.grants()
    crowd.until(lambda: crowd.grants() > before + more, f"{more} more grants")


def left(url: str, within: float = kit.PATIENCE) -> list[str]:
    """The queues in which somebody stands, though everybody has closed."""
    found: list[str] = []

    def empty() -> bool:
        with closing(dibs.connect(url)) as client:
            found[:] = [info.name for info in client.locks()]
        return not found

    with suppress(AssertionError):
        until(empty, within, "nothing is left")
    return found


def slot_of(name: str) -> int:
    """Of a cluster, where its queue is."""
    return int(key_slot(key_of(name).encode()))


def in_slots(wanted: set[int], stem: str, shape: str = "{}") -> str:
    """A name whose queue is in one of these."""
    names = (shape.format(f"{stem}-{number}") for number in range(100_000))
    return next(name for name in names if slot_of(name) in wanted)


def slots(node: Server) -> set[int]:
    """Those that it has, as it says itself; a replica has none."""
    mine = next(line for line in node.ask("CLUSTER", "NODES").splitlines() if "myself" in line)
    owned: set[int] = set()
    for word in mine.split()[8:]:
        first, _, last = word.partition("-")
        if first.isdigit():
            owned.update(range(int(first), int(last or first) + 1))
    return owned
