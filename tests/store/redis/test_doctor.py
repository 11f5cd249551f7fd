"""Findings about Redis: each condition is made true on a real server, reported, and gone when it is over.

test_rights.py checks that a message is really sent and heard, and the findings about rights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dibs
import dibs.aio
from dibs.backends.redis import diagnosis
from dibs.backends.redis.address import Address
from dibs.backends.redis.diagnosis import Clock as Reading
from dibs.backends.redis.diagnosis import Primary
from dibs.url import parse
from lab import clock as clocks
from lab import splitters
from lab.clock import Clock
from lab.faults import at_message
from lab.proxy import DOWN, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.redis_groups import MAIN, Group, cluster, in_step, replicated
from lab.servers.supervisor import Server, until
from lab.stopwatch import Stopwatch
from store.redis.kit import at

pytestmark = [pytest.mark.early, pytest.mark.timeout(150)]
ALONE = "at most one valid holder"
ORDERED = "tokens rise strictly"
LEAST = "the minimal rights of a user"
SECRET = "open-sesame"


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    require("redis")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server in a good state: a test that changes it restores it."""
    with Server(Redis(persist="always", password=SECRET)) as made:
        yield made


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    with replicated(replicas=2, sentinels=3, down_after_ms=60_000, persist="always") as made:
        yield made


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clocks.shim(tmp_path_factory)


def examined(url: str, **options: object) -> list[dibs.Finding]:
    with dibs.connect(url, **options) as client:
        return client.doctor()


def said(found: list[dibs.Finding], level: str) -> list[str]:
    assert all(finding.fix for finding in found if finding.level == "danger"), found
    return [finding.what for finding in found if finding.level == level]


def says(texts: list[str], *words: str) -> list[str]:
    return [text for text in texts if all(word in text for word in words)]


@contextmanager
def configured(server: Server, **settings: str) -> Iterator[None]:
    names = {name.replace("_", "-"): value for name, value in settings.items()}
    before = {name: server.ask("CONFIG", "GET", name).partition("\n")[2] for name in names}
    try:
        for name, value in names.items():
            server.ask("CONFIG", "SET", name, value)
        yield
    finally:
        for name, value in before.items():
            server.ask("CONFIG", "SET", name, value)


def sentinels(group: Group, count: int = 3) -> str:
    return f"redis+sentinel://{at(*group.sentinels[:count])}/{MAIN}"


@pytest.mark.alone
def test_a_good_place(server: Server) -> None:
    description, *found = examined(server.url())
    assert description.what == f"redis://{ports.HOST}:{server.port}/0, Redis {version(server)}"
    assert said(found, "danger") == []
    promises = said(found, "promise")
    for words in (ALONE, "first come", ORDERED, "survives a crash", "a test message arrived", "within 30 s"):
        assert says(promises, words), words
    notes = said(found, "note")
    assert says(notes, "one server")
    assert says(notes, LEAST)
    assert len(notes) == 2
    assert not any(SECRET in part for finding in (description, *found) for part in finding)


def version(server: Server) -> str:
    return server.ask("INFO", "server").partition("redis_version:")[2].split()[0]


def test_nothing_of_it_stays(server: Server) -> None:
    with dibs.connect(server.url(), prefix="doctor/") as client:
        for _ in range(3):
            client.doctor()
        (channel,) = server.ask("PUBSUB", "CHANNELS", "doctor/*").splitlines()
        assert channel == f"doctor/dibs:client:{client._core.me.id.hex()}", "the client's own"
        until(lambda: server.ask("DBSIZE") == "0", 60, "the key that was tried is gone")


@pytest.mark.gate
def test_keys_that_may_be_thrown_away(server: Server) -> None:
    for policy in ("allkeys-lru", "volatile-ttl"):
        with configured(server, maxmemory_policy=policy):
            found = examined(server.url())
            assert says(said(found, "danger"), policy, "once maxmemory is set, which it is not now")
            assert says(said(found, "promise"), ALONE), "nothing is thrown away yet"
            with configured(server, maxmemory="200mb"):
                found = examined(server.url())
                assert says(said(found, "danger"), policy, "when maxmemory is reached")
                assert not says(said(found, "promise"), ALONE)
    with configured(server, maxmemory="200mb"):
        assert said(examined(server.url()), "danger") == []


@pytest.mark.gate
def test_a_memory_that_is_full_or_nearly_so(server: Server) -> None:
    used = int(server.ask("INFO", "memory").partition("used_memory:")[2].split()[0])
    with configured(server, maxmemory=str(int(used * 1.07))):
        assert says(said(examined(server.url()), "danger"), "nearly full")
    with configured(server, maxmemory="1000"):
        found = examined(server.url())
    assert says(said(found, "danger"), "no key can be written", "OOM")
    assert not says(said(found, "promise"), ALONE)
    with configured(server, min_replicas_to_write="1"):
        assert says(said(examined(server.url()), "danger"), "no key can be written", "NOREPLICAS")


@pytest.mark.gate
def test_what_a_crash_costs(server: Server) -> None:
    with configured(server, appendfsync="everysec"):
        found = examined(server.url())
        assert says(said(found, "note"), "everysec", "lose the last")
        assert not says(said(found, "promise"), "survives a crash")
        assert said(found, "danger") == []
    with configured(server, appendonly="no"):
        assert says(said(examined(server.url()), "danger"), "no append-only file, nothing is saved")
        with configured(server, save="3600 1"):
            assert says(said(examined(server.url()), "danger"), "no append-only file, at best an old snapshot")


@pytest.mark.gate
def test_a_message_that_is_not_heard(server: Server) -> None:
    def is_ours(message: bytes) -> bool:
        return b"$7\r\nmessage\r\n" in message and b"dibs:client" in message

    with Proxy((ports.HOST, server.port), splitter=splitters.resp) as proxy:
        url = server.url().replace(str(server.port), str(proxy.port))
        assert said(examined(url), "danger") == []
        hold = proxy.hold(DOWN, at_message(match=is_ours))
        found = examined(url)
        hold.await_held()
    assert says(said(found, "danger"), "waiters are not told", f":{proxy.port} and did not arrive")
    assert not says(said(found, "promise"), "a test message arrived")


@pytest.mark.gate
def test_clocks_that_differ(tmp_path: Path, shim: Path) -> None:
    clock = Clock(tmp_path, shim)
    with (
        Server(Redis(persist="always"), env=clock.env()) as primary,
        Server(Redis(f"replicaof {ports.HOST} {primary.port}")) as replica,
    ):
        until(lambda: in_step(primary, (replica,)), what="in step")
        found = examined(primary.url())
        assert said(found, "danger") == []
        assert not says(said(found, "note"), "wall clock")
        for step, words, (first, second) in (
            (60, "ahead of", (primary, replica)),
            (-120, "behind", (replica, primary)),
        ):
            clock.step(step)
            found = examined(primary.url())
            assert says(said(found, "note"), f"the wall clock of {ports.HOST}:{primary.port}", words)
            (danger,) = said(found, "danger")
            assert says([danger], f":{first.port} is 1m", f":{second.port}", "two hold", "tokens may fall")
            assert not says(said(found, "promise"), ORDERED)
        assert said(examined(primary.url(), lease=900), "danger") == [], "a tenth of a lease is the margin"


@pytest.mark.gate
def test_a_replica_that_lets_nobody_in(group: Group) -> None:
    """Users and passwords are not replicated."""
    replica = group.replicas[0]
    url = sentinels(group)
    assert said(examined(url), "danger") == []
    replica.ask("ACL", "SETUSER", "ana", "on", ">pw", "~*", "&*", "+@all")
    group.primary.ask("ACL", "SETUSER", "ana", "on", ">pw", "~*", "&*", "+@all")
    found = examined(url.replace("//", "//ana:pw@"))
    (danger,) = said(found, "danger")
    assert says([danger], f"the replica {ports.HOST}:{group.replicas[1].port} refuses the login", "no client gets in")


@pytest.mark.gate
def test_what_is_said_of_replicas(group: Group) -> None:
    found = examined(sentinels(group))
    assert says(said(found, "note"), "may lack the last grants", "before anything new is granted")
    assert not says(said(found, "note"), "cut off from its replicas")
    assert not says(said(found, "note"), "one sentinel")
    assert says(said(examined(sentinels(group, 1)), "note"), "names one sentinel")
    found = examined(group.primary.url())
    assert says(said(found, "note"), "does not follow a fail-over")
    assert says(said(found, "note"), "may lack the last grants", "two hold")
    assert says(said(found, "note"), "cut off from its replicas")
    with configured(group.primary, min_replicas_to_write="1"):
        assert not says(said(examined(group.primary.url()), "note"), "cut off from its replicas")
    found = examined(sentinels(group), replicas=2)
    assert says(said(found, "promise"), "once 2 replicas have it")
    assert not says(said(found, "note"), "may lack the last grants")
    assert said(found, "danger") == []
    assert says(
        said(examined(sentinels(group), replicas=3), "danger"), "replicas=3", "2 are online", "nothing is granted"
    )
    found = examined(group.replicas[0].url())
    assert says(said(found, "danger"), "this is a replica")
    assert says(said(found, "danger"), "no key can be written", "READONLY")
    assert not says(said(found, "promise"), ALONE)


@pytest.mark.gate
def test_a_replica_that_stands_still(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a moment, and is reported once it is out of step."""
    monkeypatch.setattr(diagnosis, "SILENT", 3)
    replica = group.replicas[0]
    url = sentinels(group)
    replica.stop()
    try:
        notes = until(lambda: says(notes := said(examined(url), "note"), "is behind") and notes, what="out of step")
        assert says(notes, f"the replica {ports.HOST}:{replica.port} cannot be reached from here")
        assert says(notes, f"the replica {ports.HOST}:{replica.port} is behind")
        with Stopwatch() as watch:
            assert says(said(examined(url), "promise"), ALONE)
            assert watch.seconds() < 10, "the client's patience, which a silent replica does not use up"
    finally:
        replica.resume()
    until(lambda: not says(said(examined(url), "note"), str(replica.port)), what="in step again")


@pytest.mark.gate
@pytest.mark.slow
def test_a_cluster() -> None:
    """Then a node differs, one stands still, and a slot is gone."""
    with cluster(persist="always", node_timeout_ms=30_000) as nodes:
        url = f"redis+cluster://{at(*nodes)}"
        found = examined(url)
        assert said(found, "danger") == []
        assert says(said(found, "promise"), "a test message arrived")
        assert not says(said(found, "note"), "names one node")
        assert says(said(examined(f"redis+cluster://{at(nodes[0])}"), "note"), "names one node")
        assert says(said(examined(nodes[0].url()), "danger"), "one node of a cluster")
        with configured(nodes[1], appendfsync="no"):
            (note,) = says(said(examined(url), "note"), "appendfsync is no")
            assert note.startswith(f"{ports.HOST}:{nodes[1].port}: ")
        nodes[1].stop()
        found = examined(url)
        nodes[1].resume()
        assert says(said(found, "danger"), f"{ports.HOST}:{nodes[1].port} does not answer")
        assert not says(said(found, "promise"), ALONE)
        until(lambda: said(examined(url), "danger") == [], what="all is well again")
        nodes[0].ask("CLUSTER", "DELSLOTS", "0")
        until(lambda: says(said(examined(url), "danger"), "16383 of 16384 slots"), what="a slot that nobody has")


def seen(**facts: str) -> list[Primary]:
    return [Primary(("h1", 6379), facts, {}, Reading(0, 0, 0), [])]


def test_versions() -> None:
    def told(**facts: str) -> list[tuple[str, str]]:
        return [(finding.level, finding.what) for finding in diagnosis.versions(seen(**facts))]

    assert told(redis_version="8.2.1") == [("about", "Redis 8.2.1")]
    assert told(redis_version="7.2.4", valkey_version="8.0.1") == [("about", "Valkey 8.0.1")]
    assert told(redis_version="4.0.9")[1][0] == "danger"
    assert told() == []


def test_a_disk_that_fails() -> None:
    for status in ("aof_last_write_status", "rdb_last_bgsave_status"):
        address = Address.of(parse("redis://h1"))
        found = diagnosis.servers(seen(aof_enabled="1", maxmemory_policy="noeviction", **{status: "err"}), address)
        assert says(said(found, "danger"), "the last save to disk failed")


def test_what_others_can_read() -> None:
    clear = ["redis://cache", "redis+cluster://127.0.0.1,cache"]
    safe = ["redis://localhost", "redis://[::1]", "rediss://cache", "rediss+sentinel://cache/main", "unix:///r.sock"]
    assert [url for url in clear + safe if list(diagnosis.encryption(Address.of(parse(url))))] == clear


def test_a_way_that_is_too_long() -> None:
    (node,) = seen()
    for took, expected in ((3.0, []), (3.1, ["danger"])):
        slow = [node._replace(clock=Reading(0, 0, took))]
        assert [finding.level for finding in diagnosis.slow_round_trip(slow, 30.0)] == expected
