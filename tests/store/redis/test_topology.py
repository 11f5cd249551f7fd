"""Where the primary is, learned from real sentinels: before and after a fail-over, past those who are silent or wrong,
by a URL or a driver of redis-py, and with an error that says what is the matter."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel as DriverSentinel
from redis.sentinel import SentinelConnectionPool

import dibs
from dibs.backends.redis import discovery
from dibs.backends.redis.address import Address
from dibs.backends.redis.discovery import ask
from dibs.backends.redis.topology import Sentinel, Topology, topology
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import boottime
from dibs.url import parse
from lab.faults import Direction, Latency, at_message
from lab.proxy import Proxy
from lab.servers import certificates, ports
from lab.servers.programs import require
from lab.servers.redis import Redis, directly, shown
from lab.servers.redis import Sentinel as SentinelServer
from lab.servers.redis_groups import Group, replicated
from lab.servers.supervisor import Server, until
from store.redis import test_rights
from store.redis.finding import PATIENCE, at, endpoint, finder, learned, nobody, refusal, silent, tried

pytestmark = pytest.mark.timeout(150)  # elections, on a machine that others use too
PASSWORD = "open-sesame"


def test_one_server_is_where_it_is() -> None:
    found = finder("unix:///run/redis.sock")
    found.forget("/run/redis.sock")
    learned(found).moved(b"a", ("h", 1))
    assert found.locate(b"a") == "/run/redis.sock"
    assert found.all() == ["/run/redis.sock"]
    assert finder("redis://h1").reached(("", 7), ("h1", 6379)) == ("h1", 7)


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """They take over only when they are told to."""
    require("redis")
    with replicated(replicas=1, sentinels=3, password=PASSWORD, down_after_ms=60_000) as made:
        yield made


class Guarded:
    """A sentinel that not everybody can ask; `before` goes before what redis-cli is to ask."""

    name = "sentinel"
    user = None

    def __init__(self, kind: SentinelServer, lines: tuple[str, ...], before: tuple[str, ...]) -> None:
        kind._lines += lines
        self.port, self.ports = kind.port, kind.ports
        self.prepare, self.command, self.url = kind.prepare, kind.command, kind.url
        self.ask = partial(kind.ask, *before)

    def ready(self) -> bool:
        return self.ask("PING", within=2) == "PONG"


def watching(port: int) -> SentinelServer:
    return SentinelServer(port, quorum=1, down_after_ms=60_000, password=None, through=directly)


@pytest.fixture
def misled(group: Group) -> Iterator[Server]:
    """A sentinel that takes a replica for the primary. It does not know the password, and so never learns better."""
    with Server(watching(group.replicas[0].port)) as sentinel:
        yield sentinel


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    with silent() as listening:
        yield listening


def of(group: Group, *before: int | Server, login: str = f":{PASSWORD}@") -> Topology:
    return finder(f"redis+sentinel://{login}{at(*before, *group.sentinels)}/main")


def test_the_primary_by_its_sentinels(group: Group) -> None:
    found = of(group)
    assert (found.locate(b"a"), found.all()) == (None, [])
    learned(found)
    assert (found.locate(b"a"), found.all()) == (endpoint(group.primary), [endpoint(group.primary)])
    found.forget((ports.HOST, 1))
    assert found.locate(b"a") == endpoint(group.primary)
    found.forget(endpoint(group.primary))
    assert (found.locate(b"a"), found.all()) == (None, [])


def test_who_is_silent_or_gone_costs_a_share_of_the_time_and_only_once(group: Group, mute: socket.socket) -> None:
    found = of(group, mute.getsockname()[1], nobody())
    assert learned(found, 10).locate(b"a") == endpoint(group.primary)
    mute.accept()[0].close()
    found.forget(endpoint(group.primary))
    assert learned(found).locate(b"a") == endpoint(group.primary)
    with pytest.raises(BlockingIOError):  # whoever answered is asked first: the silent one was not asked again
        mute.accept()


def test_nobody_answers(mute: socket.socket, group: Group) -> None:
    assert "no time was left" in str(refusal(of(group), -1.0))
    silent, gone = mute.getsockname()[1], nobody()
    found = refusal(finder(f"redis+sentinel://{at(silent, gone)}/main"), 1.0)
    assert isinstance(found, StoreUnavailable)
    assert 'no majority of the sentinels names the primary of "main"' in str(found)
    assert f"127.0.0.1:{silent} does not answer" in str(found)
    assert f"no connection to 127.0.0.1:{gone}: Connection refused" in str(found)
    assert str(found).startswith("redis+sentinel://")


def test_one_who_answers_late_is_given_more_time(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "QUICK", 0.02)
    with Proxy((ports.HOST, group.sentinels[0].port)) as proxy:
        proxy.add(Latency(0.2))
        found = finder(f"redis+sentinel://:{PASSWORD}@{at(proxy.port)}/main")
        assert isinstance(refusal(found), StoreUnavailable)
        until(lambda: tried(found).locate(b"a"), what="enough patience")


def test_a_sentinel_that_is_wrong_is_not_believed(group: Group, misled: Server) -> None:
    found = refusal(finder(f"redis+sentinel://:{PASSWORD}@{at(misled)}/main"))
    assert isinstance(found, StoreUnavailable)
    assert "is named as the primary, but is not the primary yet" in str(found)
    assert learned(of(group, misled)).locate(b"a") == endpoint(group.primary)


def test_a_service_that_nobody_watches(group: Group) -> None:
    found = refusal(finder(f"redis+sentinel://:{PASSWORD}@{at(*group.sentinels)}/mian"))
    assert not isinstance(found, StoreUnavailable)
    assert 'watches no service "mian"; it watches "main". Next: give one of them in the URL' in str(found)


def test_a_primary_that_refuses_the_login(group: Group) -> None:
    for login in ("", ":s3cr3t@", "ana:s3cr3t@"):
        found = refusal(of(group, login=login))
        assert not isinstance(found, StoreUnavailable)
        assert "refuses the login" in str(found)
        assert "Next: check user and password" in str(found)
        assert "s3cr3t" not in str(found)


def test_sentinels_with_a_login_of_their_own(group: Group) -> None:
    login = ("--no-auth-warning", "-a", "s3cr3t")
    with Server(Guarded(watching(group.primary.port), ("user default on >s3cr3t +@all",), login)) as server:
        text = f"redis+sentinel://:{PASSWORD}@{at(server)}/main"
        for wrong in (finder(text), finder(text, sentinel_password="no-s3cr3t")):
            found = refusal(wrong)
            assert "refuses the login" in str(found)
            assert "s3cr3t" not in str(found)
        right = learned(finder(text, sentinel_username="default", sentinel_password="s3cr3t"))
        assert right.locate(b"a") == endpoint(group.primary)


def test_sentinels_and_servers_by_tls(tmp_path: Path) -> None:
    require("redis", "openssl")
    pems = certificates.make(tmp_path)
    lines = (
        "port 0", "tls-auth-clients no", "tls-replication yes",
        f"tls-ca-cert-file {pems.authority.certificate}",
        f"tls-cert-file {pems.server.certificate}",
        f"tls-key-file {pems.server.key}",
    )  # fmt: skip
    with Server(Redis(tls=pems)) as server:
        kind = watching(server.port)
        with Server(Guarded(kind, (*lines, f"tls-port {kind.port}"), shown(pems))) as sentinel:
            text = f"rediss+sentinel://localhost:{sentinel.port}/main"
            assert learned(finder(text, ca=pems.authority.certificate)).locate(b"a") == endpoint(server)
            assert "cannot be trusted" in str(refusal(finder(text)))


def test_two_who_learn_at_once_ask_once(group: Group) -> None:
    asked_the_time: set[int] = set()

    def now() -> float:
        asked_the_time.add(threading.get_ident())
        return boottime()

    with Proxy((ports.HOST, group.sentinels[0].port)) as proxy, ExitStack() as stack:
        address = Address.of(parse(f"redis+sentinel://:{PASSWORD}@{at(proxy.port)}/main"))
        found = Sentinel(address, now)
        held = proxy.hold(Direction.DOWN, at_message(1))
        learners = [threading.Thread(target=lambda: found.learn(boottime() + PATIENCE)) for _ in range(4)]
        stack.callback(lambda: [thread.join() for thread in learners if thread.ident])
        stack.callback(held.deliver)
        learners[0].start()
        held.await_held()
        for thread in learners[1:]:
            thread.start()
        until(lambda: {thread.ident for thread in learners} <= asked_the_time, what="all have come")
        held.deliver()
        for thread in learners:
            thread.join()
        assert found.locate(b"a") == endpoint(group.primary)
        assert len(proxy.links) == 1


def test_a_waiter_for_an_asker_that_is_gone_asks_in_the_end(group: Group) -> None:
    found = of(group)
    assert isinstance(found, Sentinel)
    abandoned = threading.Lock()
    abandoned.acquire()
    found._discovery._ongoing = abandoned  # as of a thread that did not come along into a forked child
    until(lambda: tried(found, 2.0).locate(b"a"), what="it asks by itself")


def test_the_rights_that_doctor_prints_are_enough_with_sentinels_and_replicas(group: Group) -> None:
    known = {"replicas": 1}
    url = f"redis+sentinel://:{PASSWORD}@{at(*group.sentinels)}/main"
    line = test_rights.printed(url, **known)
    users = test_rights.as_user(url.replace(f":{PASSWORD}@", ""))
    test_rights.make(line, group.primary, *group.replicas)
    test_rights.every_kind(users, **known)
    for missing in ("role", "wait"):
        test_rights.make(test_rights.without(line, f"+{missing}"), group.primary)
        with dibs.connect(users, **known, retry=1) as client, pytest.raises(dibs.StoreError):
            client.lock("a").acquire(timeout=1)


# Drivers of redis-py


@pytest.mark.parametrize("kind", [DriverSentinel, AsyncSentinel], ids=["blocking", "asyncio"])
def test_a_service_of_a_drivers_sentinel(kind: Any, group: Group) -> None:
    port = group.sentinels[0].port
    manager = kind([(ports.HOST, port)], password=PASSWORD, db=2, sentinel_kwargs={"db": 0})
    driver = manager.master_for("main", client_name="shop")
    for given in (driver, driver.connection_pool):
        address = Address.of_driver(given)
        assert address.shown == f"redis+sentinel://{ports.HOST}:{port}/main/2"
        found = learned(topology(address, boottime)).locate(b"a")
        assert found == endpoint(group.primary)
        answer = ask(address.connection(found, PATIENCE), "CLIENT", "INFO").decode()
        assert " name=shop " in answer
        assert " db=2 " in answer


def test_what_a_drivers_sentinel_was_told(group: Group) -> None:
    """How many others it must see, which address it is to use, and a pool of its own."""
    asked = [(ports.HOST, group.sentinels[0].port)]
    wary = DriverSentinel(asked, min_other_sentinels=9, password=PASSWORD)
    told = refusal(topology(Address.of_driver(wary.master_for("main")), boottime))
    assert "sees 2 other sentinels; it should see 9" in str(told)
    forced = DriverSentinel(asked, force_master_ip="localhost", password=PASSWORD)
    found = learned(topology(Address.of_driver(forced.master_for("main")), boottime))
    assert found.locate(b"a") == ("localhost", group.primary.port)
    pool = SentinelConnectionPool("main", DriverSentinel(asked), password=PASSWORD)
    assert learned(topology(Address.of_driver(pool), boottime)).locate(b"a") == endpoint(group.primary)
