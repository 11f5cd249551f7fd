"""Ways to ask where a key is, for the tests of `where`; and places where nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dibs.backends.redis.address import Address, Endpoint
from dibs.backends.redis.topology import Topology, topology
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import boottime
from dibs.url import parse
from lab.servers import ports
from lab.servers.supervisor import Server

PATIENCE = 30.0


def finder(text: str, **options: Any) -> Topology:
    return topology(Address.of(parse(text), **options), boottime)


def at(*endpoints: int | Server) -> str:
    return ",".join(
        f"{ports.HOST}:{endpoint if isinstance(endpoint, int) else endpoint.port}" for endpoint in endpoints
    )


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


def endpoint(server: Server) -> Endpoint:
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
