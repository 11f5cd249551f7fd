"""Helpers for ZooKeeper's faults: matches for requests and replies on the wire, and the client of an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from lab.faults import Cut, Match, at_message
from lab.proxy import UP, Proxy
from lab.servers import ports
from lab.servers.supervisor import Server
from lab.witness import First

CREATE, DELETE, GET, CREATE2, MULTI = 1, 2, 4, 15, 14
T = TypeVar("T")


def asks(name: str, *kinds: int) -> Match:
    """Requests of these kinds for the nodes of claims on that name."""

    def fits(message: bytes) -> bool:
        number, kind = (int.from_bytes(message[at : at + 4], "big", signed=True) for at in (4, 8))
        return number > 0 and kind in kinds and f"/{name}/".encode() in message and b"_c_" in message

    return fits


def answer_to(proxy: Proxy, request: Match) -> First:
    """The reply to the first such request from now on."""
    asked = First(request)
    number: list[bytes] = []

    def note(message: bytes) -> bool:
        if asked(message):
            number.append(message[4:8])
        return False

    proxy.add(Cut(at_message(match=note)), UP)  # never cuts
    return First(lambda message: message[4:8] in number)


@contextmanager
def operator(server: Server) -> Iterator[KazooClient]:
    """The client of an operator, who reads, makes and removes nodes."""
    with closing(KazooClient(f"{ports.HOST}:{server.port}", timeout=60)) as client:
        client.start()
        try:
            yield client
        finally:
            client.stop()


def operate(server: Server, action: Callable[[KazooClient], T]) -> T | None:
    """The result of one action of an operator; None: there is no such node."""
    with operator(server) as kazoo, suppress(NoNodeError):
        return action(kazoo)
    return None


def through(proxy: Proxy) -> str:
    return f"zookeeper://{ports.HOST}:{proxy.port}"


def directory(name: str) -> str:
    return f"/dibs/{name}"
