"""What the tests of ZooKeeper's faults share beside lab.witness: requests found on the wire, nodes, an operator.

`answer_to` finds on the way down what answers the first such request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from kazoo.client import KazooClient

from lab.faults import Cut, Match, at_message
from lab.proxy import UP, Proxy
from lab.servers import ports
from lab.servers.supervisor import Server
from lab.witness import First, Witness, apis_of, fresh_name

__all__ = ["First", "Witness", "answer_to", "asks", "both_apis", "directory", "fresh_name", "operator", "through"]
CREATE, DELETE, GET, CREATE2, MULTI = 1, 2, 4, 15, 14
both_apis = apis_of("zookeeper", "zookeeper://127.0.0.1:1")


def asks(name: str, *kinds: int) -> Match:
    """Requests of these kinds that concern the nodes of claims on that name."""

    def fits(message: bytes) -> bool:
        number, kind = (int.from_bytes(message[at : at + 4], "big", signed=True) for at in (4, 8))
        return number > 0 and kind in kinds and f"/{name}/".encode() in message and b"_c_" in message

    return fits


def answer_to(proxy: Proxy, request: Match) -> First:
    """Fits the answer to the first such request; from now on."""
    asked = First(request)
    number: list[bytes] = []

    def note(message: bytes) -> bool:
        if asked(message):
            number.append(message[4:8])
        return False

    proxy.add(Cut(at_message(match=note)), UP)  # only looks: it never strikes
    return First(lambda message: message[4:8] in number)


@contextmanager
def operator(server: Server) -> Iterator[KazooClient]:
    """Somebody else's client: looks at nodes, and makes and removes them."""
    with closing(KazooClient(f"{ports.HOST}:{server.port}", timeout=6)) as client:
        client.start()
        try:
            yield client
        finally:
            client.stop()


def through(proxy: Proxy) -> str:
    return f"zookeeper://{ports.HOST}:{proxy.port}"


def directory(name: str) -> str:
    return f"/dibs/{name}"
