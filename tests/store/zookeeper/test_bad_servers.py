"""One of ZooKeeper's servers is none, or is not there: a better one is used instead. What bad servers answer is in
tests/store/faults/test_bad_servers.py.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import dibs
from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.doctor import version_of
from dibs.url import parse
from lab import leaks
from lab.listener import Manner, hangs_up, is_mute, speaks_http
from lab.servers import ports, shared
from store.faults.test_bad_servers import APIS, PATIENCE, taken
from store.zookeeper import bad_peers as peers
from store.zookeeper.bad_peers import Bad, greeted

pytestmark = pytest.mark.timeout(150)
WORSE = [
    hangs_up, is_mute, peers.drips_on, speaks_http, peers.knows_no_session, peers.gives_no_time,
    greeted(peers.hangs_up_when_asked), greeted(is_mute), greeted(peers.rambles),
]  # fmt: skip


def at_once(work: Callable[[str, Manner], None], manners: list[Manner]) -> None:
    """For each API and manner in a thread of its own; nothing is left of any."""
    cases = [(api, manner) for api in APIS for manner in manners]
    with leaks.watch(within=PATIENCE), ThreadPoolExecutor(len(cases)) as pool:
        for done in [pool.submit(work, *case) for case in cases]:
            done.result()


@pytest.fixture
def dead() -> Iterator[list[str]]:
    """Addresses where nobody listens."""
    reserved = [ports.reserve() for _ in range(6)]
    yield [f"127.0.0.1:{port}" for port in reserved]
    for port in reserved:
        ports.release(port)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("host", ["nobody listens", "nobody knows it"])
def test_an_address_without_a_server(api: str, host: str, dead: list[str]) -> None:
    where = dead[0] if host == "nobody listens" else "nowhere.invalid:2181"
    text = str(taken(api, f"zookeeper://{where}"))
    assert (f"({where}: Connection refused)" if "127" in where else "no server accepted a session") in text


@pytest.mark.parametrize("manner", [peers.floods, peers.drips_on, is_mute, hangs_up])
def test_whoever_asks_for_the_version_is_not_kept(manner: Manner) -> None:
    """Of a server that says no whole queue."""
    said: list[str] = []
    with Bad(manner) as bad:
        asking = threading.Thread(target=lambda: said.append(version_of(Address(parse(bad.url)))), daemon=True)
        asking.start()
        asking.join(PATIENCE / 2)
        kept = asking.is_alive()
    asking.join(PATIENCE)
    assert (kept, said) == (False, [""])


def test_a_good_server_beside_a_bad_one_is_used_instead(tmp_path: Path) -> None:
    """The order is random: clients come until the bad one was asked first."""
    good = shared.fresh(tmp_path).removeprefix("zookeeper://")

    def taken_beside(api: str, manner: Manner) -> None:
        with Bad(manner) as bad:
            for _ in range(30):
                assert getattr(taken(api, f"zookeeper://{bad.host},{good}", PATIENCE), "token", 0)
                if bad.calls:
                    return
        raise AssertionError("the bad server was never asked")

    at_once(taken_beside, WORSE)


def test_of_many_servers_one_that_lives_is_enough(tmp_path: Path, dead: list[str]) -> None:
    good = shared.fresh(tmp_path).removeprefix("zookeeper://")
    for api in APIS:
        assert getattr(taken(api, f"zookeeper://{','.join(dead)},nowhere.invalid,{good}", PATIENCE), "token", 0)


@pytest.mark.parametrize("silent", ["drops what comes", "never answers"])
def test_a_try_on_a_cold_client_finds_the_one_server_that_answers(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind two that are silent; a try waits for three seconds at most."""
    monkeypatch.setattr(random.SystemRandom, "shuffle", lambda *_: None)
    good = shared.fresh(tmp_path).removeprefix("zookeeper://")
    with ExitStack() as stack:
        servers = [stack.enter_context(_listener()) for _ in range(2)]
        if silent == "drops what comes":
            for server in servers:
                _fill(server, stack)
        where = ",".join(f"127.0.0.1:{server.getsockname()[1]}" for server in servers)
        client = stack.enter_context(dibs.connect(f"zookeeper://{where},{good}"))
        assert client.lock("a").acquire(timeout=0)


def _listener() -> socket.socket:
    """Which nobody accepts from."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(1)
    return made


def _fill(listener: socket.socket, stack: ExitStack) -> None:
    """Until what comes is dropped."""
    while True:
        queue = stack.enter_context(socket.socket())
        queue.settimeout(0.3)
        try:
            queue.connect(listener.getsockname())
        except TimeoutError:
            return
