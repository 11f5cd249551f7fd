"""One of ZooKeeper's servers is none, or is not there: a better one is used instead. What they answer is in
tests/store/faults/test_bad_servers.py.
"""

from __future__ import annotations

import asyncio
import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

import dibs
import dibs.aio
from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.doctor import version_of
from dibs.url import parse
from lab import leaks
from lab.listener import Manner, hangs_up, is_mute, speaks_http
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from store.zookeeper import bad_peers as peers
from store.zookeeper.bad_peers import Bad, greeted

T, U = TypeVar("T"), TypeVar("U")
LEASE = 6.0
"""A server is given a part of it to answer, which even a busy machine must not need."""
LATE = 60.0
"""Seconds; a call has one to end, and the machine may be busy."""
FACES = ("blocking", "aio")
WORSE = [
    hangs_up, is_mute, peers.drips_on, speaks_http, peers.knows_no_session, peers.gives_no_time,
    greeted(peers.hangs_up_when_asked), greeted(is_mute), greeted(peers.rambles),
]  # fmt: skip


def at_once(work: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """Each in a thread of its own; nothing is left of any."""
    with leaks.watch(within=LATE), ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(work, items))


def with_lock(face: str, url: str, act: Callable[[Any], Any]) -> Any:
    """What `act` gives for a lock of a client that lives as long as this."""

    async def play() -> Any:
        async with dibs.aio.connect(url, lease=LEASE) as client:
            return await act(client.lock("invoice:42"))

    if face == "aio":
        return asyncio.run(play())
    with dibs.connect(url, lease=LEASE) as client:
        return act(client.lock("invoice:42"))


def failed(face: str, url: str, timeout: float = 0) -> str:
    """What an acquire says, which must fail in time."""

    def acquire(lock: Any) -> Any:
        return lock.acquire(timeout=timeout)

    begun = time.monotonic()
    with pytest.raises(dibs.StoreUnavailable) as caught:
        with_lock(face, url, acquire)
    assert time.monotonic() - begun < LATE
    assert (caught.value.name, caught.value.store) == ("invoice:42", url)
    return str(caught.value)


def refused(url: str, timeout: float = 0) -> list[str]:
    return at_once(lambda face: failed(face, url, timeout), FACES)


def taken(face: str, url: str) -> None:
    """Once, and given back."""

    async def by_a_task(lock: Any) -> None:
        async with lock:
            pass

    def by_a_thread(lock: Any) -> None:
        with lock:
            pass

    with_lock(face, url, by_a_task if face == "aio" else by_a_thread)


def test_a_server_of_the_web_is_none_of_ours() -> None:
    """One that waits for the end of a line, which never comes. A machine that stood still may not even have got so far
    as to ask it; but not time after time."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        try:
            url = f"zookeeper://127.0.0.1:{server.server_port}"
            assert any(all(re.search(peers.SILENT, text) for text in refused(url)) for _ in range(5))
        finally:
            server.shutdown()
            serving.join(LATE)


def test_an_address_where_nobody_listens() -> None:
    url = f"zookeeper://127.0.0.1:{ports.reserve()}"
    for text in refused(url):
        assert f"({url.removeprefix('zookeeper://')}: Connection refused)" in text


def test_a_host_that_nobody_knows() -> None:
    for text in refused("zookeeper://nowhere.invalid:2181"):
        assert "no server took the session up" in text


@pytest.mark.parametrize("manner", [peers.floods, peers.drips_on, is_mute, hangs_up])
def test_whoever_asks_for_the_version_is_not_kept(manner: Manner) -> None:
    """Of a server that says no whole line."""
    said: list[str] = []
    with Bad(manner) as bad:
        asking = threading.Thread(target=lambda: said.append(version_of(Address.of(parse(bad.url)))), daemon=True)
        asking.start()
        asking.join(LATE / 2)
        kept = asking.is_alive()
    asking.join(LATE)
    assert not kept
    assert said == [""]


# A better one is used instead.


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper()) as server:
        yield server


def test_a_good_server_beside_a_bad_one_is_used_instead(server: Server) -> None:
    """The order is random: clients come until the bad one was asked first."""

    def taken_beside(case: tuple[Manner, str]) -> None:
        manner, face = case
        with Bad(manner) as bad:
            for _ in range(30):
                taken(face, f"zookeeper://{bad.host},{ports.HOST}:{server.port}")
                if bad.calls:
                    return
        raise AssertionError("the bad server was never asked")

    at_once(taken_beside, [(manner, face) for manner in WORSE for face in FACES])


def test_of_many_servers_one_that_lives_is_enough(server: Server) -> None:
    dead = ",".join(f"127.0.0.1:{ports.reserve()}" for _ in range(6))
    at_once(lambda face: taken(face, f"zookeeper://{dead},nowhere.invalid,{ports.HOST}:{server.port}"), FACES)
