"""A server of several is down or does not speak ZooKeeper: the client uses another one. tests/store/faults tests what
bad servers reply.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
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

pytestmark = [pytest.mark.gate, pytest.mark.timeout(150)]
WORSE = [
    hangs_up, is_mute, peers.drips_on, speaks_http, peers.knows_no_session, peers.gives_no_time,
    greeted(peers.hangs_up_when_asked), greeted(is_mute), greeted(peers.rambles),
]  # fmt: skip


def at_once(work: Callable[[str, Manner], None], manners: list[Manner]) -> None:
    """Run each API and manner in its own thread, and check for leaks."""
    cases = [(api, manner) for api in APIS for manner in manners]
    with leaks.watch(within=PATIENCE), ThreadPoolExecutor(len(cases)) as pool:
        for done in [pool.submit(work, *case) for case in cases]:
            done.result()


@pytest.mark.parametrize("manner", [peers.floods, peers.drips_on, is_mute, hangs_up])
def test_the_version_of_a_server_that_sends_no_whole_line_is_empty(manner: Manner) -> None:
    with ThreadPoolExecutor(1) as pool, Bad(manner) as bad:
        assert pool.submit(version_of, Address(parse(bad.url))).result(PATIENCE / 2) == ""


def test_a_good_server_beside_a_bad_one_is_used_instead(tmp_path: Path) -> None:
    """The order is random: connect until the bad server was asked first."""
    good = shared.fresh(tmp_path).removeprefix("zookeeper://")

    def taken_beside(api: str, manner: Manner) -> None:
        with Bad(manner) as bad:
            for _ in range(30):
                assert getattr(taken(api, f"zookeeper://{bad.host},{good}", PATIENCE), "token", 0)
                if bad.calls:
                    return
        raise AssertionError("the bad server was never asked")

    at_once(taken_beside, WORSE)


@pytest.mark.parametrize("api", APIS)
def test_one_live_server_of_many_is_enough(api: str, tmp_path: Path) -> None:
    good = shared.fresh(tmp_path).removeprefix("zookeeper://")
    reserved = [ports.reserve() for _ in range(6)]
    dead = ",".join(f"127.0.0.1:{port}" for port in reserved)
    assert getattr(taken(api, f"zookeeper://{dead},nowhere.invalid,{good}", PATIENCE), "token", 0)
    for port in reserved:
        ports.release(port)


@pytest.mark.parametrize("silent", ["drops what comes", "never answers"])
def test_a_try_on_a_cold_client_finds_the_one_server_that_answers(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind two silent servers; a try waits for three seconds at most."""
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
    """Accepts no connection."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(1)
    return made


def _fill(listener: socket.socket, stack: ExitStack) -> None:
    """Until the kernel drops connections."""
    while True:
        queue = stack.enter_context(socket.socket())
        queue.settimeout(0.3)
        try:
            queue.connect(listener.getsockname())
        except TimeoutError:
            return
