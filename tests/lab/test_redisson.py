"""The lab's Redisson: what its handles do, what its process leaves behind, and how often Maven runs."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import redisson_jars
from lab.redisson import NEWEST, PATIENCE, VERSIONS, Failed, Held, Lock, Redisson, Topology
from lab.servers import programs, shared
from lab.servers.redis import Redis
from lab.servers.redis_groups import MAIN
from lab.servers.supervisor import Server, until

pytestmark = pytest.mark.timeout(redisson_jars.FETCHING)
LEASE_MS = 30_000
LOCKS: dict[str, Callable[[Redisson, str], Lock]] = {
    "lock": Redisson.lock,
    "fair": Redisson.fair,
    "spin": Redisson.spin,
    "fenced": Redisson.fenced,
    "read": Redisson.read,
    "write": Redisson.write,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    programs.require("redis", "redisson")
    with Server(Redis()) as server:
        yield server


@pytest.fixture(scope="module")
def java(server: Server) -> Iterator[Redisson]:
    with connect(server) as java:
        yield java


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def connect(server: Server, version: str = NEWEST, prefix: str = "") -> Redisson:
    return Redisson(f"127.0.0.1:{server.port}", version=version, prefix=prefix)


def granted(held: Held | None) -> Held:
    assert held is not None
    return held


def held_in_redis(server: Server, lock: Lock, name: str) -> None:
    """The documented format: a hash with one field, and the watchdog's lease."""
    assert server.ask("HGETALL", name).split() == [lock.holder, "1"]
    assert 0 < int(server.ask("PTTL", name)) <= LEASE_MS


def listened_to(server: Server, channel: str) -> None:
    """Until somebody listens there: a waiter subscribes before it waits."""
    until(lambda: server.ask("PUBSUB", "NUMSUB", channel).split()[1] == "1", PATIENCE, f"a subscriber of {channel}")


def test_a_lock_has_the_documented_format(server: Server, java: Redisson, name: str) -> None:
    lock = java.lock(name)
    before = time.monotonic_ns()
    at = granted(lock.take()).at
    assert before < at < time.monotonic_ns()
    assert lock.holder.startswith(java.client_id)
    held_in_redis(server, lock, name)
    assert at < lock.give() < time.monotonic_ns()
    assert server.ask("EXISTS", name) == "0"


@pytest.mark.parametrize("kind", LOCKS)
def test_locks_and_their_verbs(java: Redisson, name: str, kind: str) -> None:
    lock = LOCKS[kind](java, name)
    other = java.write(name) if kind == "read" else LOCKS[kind](java, name)
    assert lock.take(lease=20)
    assert lock.state()[:3] == (True, True, 1)
    assert 0 < lock.state().ttl_ms <= 20_000
    assert other.take(0) is None
    assert other.take(0, lease=1) is None
    assert other.take(0.05) is None
    with pytest.raises(Failed, match="IllegalMonitorStateException"):
        other.give()
    lock.give()
    assert other.take(0)
    assert other.take(1), "a lock is reentrant"
    assert other.state().holds == 2
    assert lock.state().held_by_me is False
    assert other.force() is True
    assert lock.state() == (False, False, 0, -2)


def test_threads(java: Redisson, name: str) -> None:
    """The same thread may hold both sides; another may not."""
    write = java.write(name)
    read = java.read(name, beside=write)
    assert read.holder == write.holder != java.read(name).holder
    assert write.take(0)
    assert read.take(0)
    assert java.read(name).take(0) is None


def test_fenced(java: Redisson, name: str) -> None:
    lock = java.fenced(name)
    assert lock.token() == 0
    assert granted(lock.take()).token == 1
    assert granted(lock.take(5)).token == 2
    assert granted(lock.take(0, lease=5)).token == lock.token() == 3


def test_multi(server: Server, java: Redisson) -> None:
    lock = java.multi(["multi:a", "multi:b"])
    assert lock.take(5)
    held_in_redis(server, lock, "multi:a")
    assert java.lock("multi:b").take(0) is None
    lock.give()
    assert server.ask("EXISTS", "multi:a", "multi:b") == "0"


def test_semaphore(java: Redisson, name: str) -> None:
    semaphore = java.semaphore(name)
    assert semaphore.set_permits(3) is True
    assert semaphore.set_permits(9) is False
    assert semaphore.take(2)
    assert semaphore.take(2, timeout=0) is None
    assert semaphore.take(2, timeout=0.05) is None
    semaphore.give(2)
    semaphore.add_permits(1)
    assert semaphore.available() == semaphore.drain() == 4
    assert semaphore.available() == 0


def test_permits(java: Redisson, name: str) -> None:
    semaphore = java.permits(name)
    assert semaphore.set_permits(3) is True
    (one,) = granted(semaphore.take(lease=0.05)).ids
    several = granted(semaphore.take(2, timeout=0)).ids
    assert (len(one), semaphore.total(), semaphore.acquired(), semaphore.available()) == (32, 3, 3, 0)
    assert semaphore.take(lease=1), "it waits until the first one is over"
    with pytest.raises(Failed, match=one):
        semaphore.give(one)
    assert semaphore.take(timeout=0) is None
    assert semaphore.update_lease(several[0], 5) is True
    semaphore.give(several)
    assert semaphore.available() == 2
    semaphore.add_permits(1)
    assert semaphore.total() == 4


def test_latch(server: Server, java: Redisson, name: str) -> None:
    latch = java.latch(name)
    assert latch.set_count(2) is True
    assert latch.set_count(2) is False
    assert latch.wait(0.05) is False
    open = java.latch(name).begin_wait()
    listened_to(server, f"redisson_countdownlatch__channel__{{{name}}}")
    latch.count_down()
    assert (latch.count(), open.done()) == (1, False)
    latch.count_down()
    assert open.result(PATIENCE) is True
    assert latch.count() == 0


def test_a_handle_waits_until_another_gives(server: Server, java: Redisson, name: str) -> None:
    lock, other = java.lock(name), java.lock(name)
    assert lock.take()
    waiting = other.begin_take()
    listened_to(server, f"redisson_lock__channel:{{{name}}}")
    until(other.is_asleep, PATIENCE, "it sleeps")
    assert not waiting.done()
    released = lock.give()
    assert granted(waiting.result(PATIENCE)).at > released
    assert not other.is_asleep()


def test_interrupt(java: Redisson, name: str) -> None:
    """It is never lost: it meets the verb that runs or is about to. Between two verbs it does nothing."""
    lock, other = java.lock(name), java.lock(name)
    other.interrupt()
    assert lock.take()
    waiting = other.begin_take()
    other.interrupt()
    with pytest.raises(Failed, match="InterruptedException"):
        waiting.result(PATIENCE)
    lock.give()
    assert other.take(0)


def test_measuring(java: Redisson, name: str) -> None:
    assert 0 < java.lock(name).pairs(10) < 1
    end = time.monotonic_ns() + 50_000_000
    turns = [java.lock(name).contend(end, 0.001) for _ in range(2)]
    holds = sorted(hold for turn in turns for hold in turn.result(PATIENCE))
    assert all(one[0] + 1_000_000 <= one[1] < next[0] for one, next in itertools.pairwise(holds))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_takes_a_lock(server: Server, name: str, version: str) -> None:
    with connect(server, version, prefix="pre:") as java:
        lock = java.lock(name)
        assert lock.take()
        held_in_redis(server, lock, f"pre:{name}")
        lock.give()
        assert server.ask("EXISTS", f"pre:{name}") == "0"


def test_options(server: Server, name: str) -> None:
    with Redisson(f"127.0.0.1:{server.port}", watchdog=0.9, fair_wait=5) as java:
        lock = java.fair(name)
        assert lock.take()
        java.fair(name).begin_take()
        waits = until(lambda: server.ask("ZRANGE", f"redisson_lock_timeout:{{{name}}}", "0", "-1", "WITHSCORES"))
        assert float(waits.split()[1]) / 1000 < time.time() + 0.9 + 5
        until(lambda: lock.state().ttl_ms < 700)
        until(lambda: lock.state().ttl_ms > 700, what="renewed")


@pytest.mark.soak  # a cluster takes 15 s to start
@pytest.mark.parametrize(("topology", "service"), [("sentinel", MAIN), ("cluster", "")])
def test_topologies(name: str, topology: Topology, service: str) -> None:
    programs.require("redis", "redisson")
    with Redisson(shared.hosts(topology), topology=topology, service=service, sharded="OFF") as java:
        lock = java.lock(name)
        assert lock.take()
        assert lock.state()[:3] == (True, True, 1)
        waiting = java.lock(name).begin_take()
        lock.give()
        assert waiting.result(PATIENCE)


@pytest.mark.parametrize("end", [Redisson.kill, Redisson.close])
@pytest.mark.parametrize("stopped", [False, True])
def test_end_of_the_process(server: Server, name: str, end: Callable[[Redisson], None], stopped: bool) -> None:
    """However it ends, its lock stays until the lease is over."""
    with connect(server) as java:
        lock = java.lock(name)
        assert lock.take()
        waiting = java.lock(name).begin_take()
        if stopped:
            java.stop()
        end(java)
        held_in_redis(server, lock, name)
        with pytest.raises(Failed):
            waiting.result(PATIENCE)
        with pytest.raises(ProcessLookupError):
            os.kill(java.pid, 0)


def test_a_stopped_process_does_nothing(java: Redisson, name: str) -> None:
    lock = java.lock(name)
    java.stop()
    try:
        taking = lock.begin_take()
        time.sleep(0.1)  # much longer than a lock takes
        assert not taking.done()
    finally:
        java.cont()
    assert taking.result(PATIENCE)


@pytest.mark.soak  # Redisson tries again for some 7 s
def test_a_server_that_is_not_there() -> None:
    programs.require("redisson")
    with pytest.raises(Failed, match="RedisConnectionException"):
        Redisson("127.0.0.1:1")


class Maven:
    """It fetches one jar, and counts how often it runs."""

    def __init__(self, place: Path) -> None:
        self.jar = place / "a.jar"
        self.ran = 0
        self.refusal = ""

    def ask(self, command: list[str], **_: object) -> str:
        if self.refusal:
            raise programs.Refused(self.refusal)
        assert command[0] == "mvn"
        self.ran += 1
        place = Path(next(word for word in command if word.startswith("-Dplace=")).partition("=")[2])
        (place / "classes").mkdir(parents=True)
        (place / "class-path").write_text(str(self.jar))
        self.jar.touch()
        return ""


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maven:
    programs.require("redisson")
    maven = Maven(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(programs, "ask", maven.ask)
    return maven


def build(version: str = NEWEST) -> list[Path]:
    program = redisson_jars.class_path.__wrapped__(version)
    assert program.version == version
    return [Path(path) for path in program.class_path.split(os.pathsep)]


def test_maven_runs_once_for_each_version(maven: Maven) -> None:
    classes, jar = build()
    assert classes.is_dir()
    assert jar == maven.jar
    assert build() == [classes, jar]
    assert maven.ran == 1
    assert build("3.52.0") != [classes, jar]
    assert maven.ran == 2


def test_maven_runs_again_where_its_jars_are_gone(maven: Maven) -> None:
    built = build()
    maven.jar.unlink()
    assert build() == built
    assert maven.ran == 2
    assert all(path.exists() for path in built)


def test_without_a_repository_the_test_is_skipped(maven: Maven, monkeypatch: pytest.MonkeyPatch) -> None:
    maven.refusal = "Could not transfer artifact org.redisson:redisson:pom:4.7.0"
    monkeypatch.delenv("DIBS_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no repository"):
        build()
    monkeypatch.setenv("DIBS_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="no repository"):
        build()
    maven.refusal = "COMPILATION ERROR"
    with pytest.raises(programs.Refused):
        build()
