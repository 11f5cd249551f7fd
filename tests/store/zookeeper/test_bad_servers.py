"""Whatever answers at a server's address: the call ends by its deadline and says what was wrong, a better server is
used instead, memory stays bounded, and nothing is left behind."""

from __future__ import annotations

import asyncio
import http.server
import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

import dibs
import dibs.aio
from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.doctor import version_of
from dibs.backends.zookeeper.wire.codec import LARGEST
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
LATE = 20.0
"""Seconds; a call has one to end, and the machine may be busy."""
FACES = ("blocking", "aio")
HUNG_UP = r"the server hung up|Connection reset by peer|Broken pipe"
SILENT = r"no answer (in time|within)"
PROTOCOL = r"does not speak ZooKeeper's protocol: "
OVER = r"the session was over|gives no session"
BEFORE: dict[str, tuple[Manner, str]] = {
    "hangs up": (hangs_up, HUNG_UP),
    "hangs up at the greeting": (peers.hangs_up_when_asked, HUNG_UP),
    "mute": (is_mute, SILENT),
    "drips": (peers.drips_on, SILENT),
    "2 GB": (peers.promises_too_much, PROTOCOL + "a frame of 2147483647 bytes"),
    "less than nothing": (peers.promises_less_than_nothing, PROTOCOL + "a frame of -7 bytes"),
    "rambles": (peers.rambles, rf"{PROTOCOL}|{OVER}"),
    "HTTP": (speaks_http, PROTOCOL + "a frame of 1213486160 bytes"),
}
SESSIONS: dict[str, tuple[Manner, str]] = {
    "no session": (peers.knows_no_session, OVER),
    "no time": (peers.gives_no_time, "no beat was answered in time|no server took the session up"),
    "another session": (peers.gives_another_session, HUNG_UP + "|another session than ours"),
    "hangs up": (greeted(hangs_up), HUNG_UP),
    "hangs up when asked": (greeted(peers.hangs_up_when_asked), HUNG_UP),
}
AFTER: dict[str, tuple[Manner, str]] = {
    "mute": (greeted(is_mute), SILENT),
    "breaks off": (greeted(peers.breaks_off), SILENT),
    "drips": (greeted(peers.drips_on), SILENT),
    "2 GB": (greeted(peers.promises_too_much), PROTOCOL + "a frame of 2147483647 bytes"),
    "less than nothing": (greeted(peers.promises_less_than_nothing), PROTOCOL + "a frame of -7 bytes"),
    "rambles": (greeted(peers.rambles), PROTOCOL + "a reply to another request"),
    "answers another": (greeted(peers.answers_another), PROTOCOL + "a reply to another request"),
    "answers shortly": (greeted(peers.answers_shortly), PROTOCOL + "a reply is shorter"),
}
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


@pytest.mark.parametrize("manners", [BEFORE, SESSIONS, AFTER], ids=["before", "sessions", "after"])
def test_a_call_ends_by_its_deadline_and_says_what_was_wrong(manners: dict[str, tuple[Manner, str]]) -> None:
    def tried(case: tuple[str, str]) -> None:
        name, face = case
        manner, said = manners[name]
        with Bad(manner) as bad:
            for _ in range(5):
                before = bad.calls
                text = failed(face, bad.url)
                assert before < bad.calls < before + 50, f"{name}: it is asked again, and not without a pause"
                if re.search(said, text):
                    return
                # A machine that stood still for a second may say no more than that there was no answer.
                assert re.search(SILENT, text), f"{name}: {text}"
        raise AssertionError(f"{name}: {text}")

    at_once(tried, [(name, face) for name in manners for face in FACES])


def test_a_server_of_the_web_is_none_of_ours() -> None:
    """One that waits for the end of a line, which never comes. A machine that stood still may not even have got so far
    as to ask it; but not time after time."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        try:
            url = f"zookeeper://127.0.0.1:{server.server_port}"
            assert any(all(re.search(SILENT, text) for text in refused(url)) for _ in range(5))
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


@pytest.mark.parametrize("manner", [peers.floods, greeted(peers.floods), peers.promises_too_much])
def test_what_a_bad_server_costs_is_bounded(manner: Manner) -> None:
    with Bad(manner) as bad:
        tracemalloc.start()
        try:
            refused(bad.url)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < len(FACES) * 4 * LARGEST + (1 << 22), "a frame, its growth and its copies, in each face"


def test_a_caller_who_has_time_asks_again_until_it_is_over_and_not_without_a_pause() -> None:
    def waited(case: tuple[Manner, str]) -> None:
        manner, face = case
        with Bad(manner) as bad:
            failed(face, bad.url, timeout=1.5)
            assert 1 < bad.calls < 100, (manner, face)

    manners = (peers.rambles, hangs_up, peers.gives_no_time, greeted(hangs_up), greeted(peers.rambles))
    at_once(waited, [(manner, face) for manner in manners for face in FACES])


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
