"""Ways to ask where a key is, for the tests of `where`; and places where nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dibs.backends.redis.address import Address, Place
from dibs.backends.redis.topology import Topology, topology
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import boottime
from dibs.url import parse
from lab.servers import ports
from lab.servers.supervisor import Server

PATIENCE = 30.0


def finder(text: str, **options: Any) -> Topology:
    return topology(Address.of(parse(text), **options), boottime)


def at(*places: int | Server) -> str:
    return ",".join(f"{ports.HOST}:{place if isinstance(place, int) else place.port}" for place in places)


def learned(found: Topology, patience: float = PATIENCE) -> Topology:
    found.learn(boottime() + patience)
    return found


def tried(found: Topology, patience: float = PATIENCE) -> Topology:
    """As a caller does until its deadline."""
    with suppress(StoreUnavailable):
        found.learn(boottime() + patience)
    return found


def refusal(found: Topology, patience: float = PATIENCE) -> StoreError:
    with pytest.raises(StoreError) as caught:
        found.learn(boottime() + patience)
    assert caught.value.__context__ is None
    return caught.value


def place(server: Server) -> Place:
    return (ports.HOST, server.port)


@contextmanager
def silent() -> Iterator[socket.socket]:
    """It listens, and says nothing; `accept` does not wait."""
    with socket.create_server((ports.HOST, 0)) as listening:
        listening.setblocking(False)
        yield listening


def nobody() -> int:
    with socket.create_server((ports.HOST, 0)) as gone:
        return int(gone.getsockname()[1])
