"""The least rights that `doctor` prints: enough for every kind, and none of them too many; and what is said where one
is missing. With sentinels and in a cluster: test_topology.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.common import subscriber
from dibs.backends.redis import rights
from dibs.backends.redis.address import Address
from dibs.url import parse
from lab.servers.programs import Refused, require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server, until

pytestmark = pytest.mark.timeout(150)
PASSWORD = "open-sesame"
COMMANDS = frozenset(rights.commands(Address.of(parse("redis://host"))))
SEEN_BY_DOCTOR = {"time", "eval", "hmget", "set", "subscribe", "publish"}
UNANSWERED = {"ping", "unsubscribe"}
DENIED = r"NOPERM|can't run this command"
PATIENCE = 50.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    with Server(Redis(persist="always")) as made:
        yield made


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    server.ask("FLUSHALL")
    server.ask("CONFIG", "RESETSTAT")


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """PING is sent soon, and not after five seconds."""
    monkeypatch.setattr(subscriber, "SILENCE", 0.2)


def printed(url: str, **options: Any) -> str:
    """The command that `dibs doctor` prints."""
    with dibs.connect(url, **options) as client:
        (found,) = [finding.fix for finding in client.doctor() if finding.what.startswith("the minimal rights")]
    return found


def make(line: str, *servers: Server) -> None:
    """Make the user, on servers without scripts."""
    for server in servers:
        server.ask("SCRIPT", "FLUSH")
        with suppress(Refused):
            server.ask("ACL", "DELUSER", rights.USER)
        server.ask(*line.replace("PASSWORD", PASSWORD).split())


def without(line: str, right: str) -> str:
    assert right in line.split()
    return " ".join(word for word in line.split() if word != right)


def as_user(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rights.USER}:{PASSWORD}@{rest.rpartition('@')[2]}"


def every_kind(url: str, server: Server | None = None, **options: Any) -> None:
    """All that a program can do, with somebody in its way wherever there is something to wait for. `server`: whom to
    ask whether a sign of life was asked for."""
    with dibs.connect(url, retry=2, **options) as one, dibs.connect(url, retry=2, **options) as two:
        meet(two, lambda: one.lock("a").acquire(timeout=PATIENCE), two.lock("a"))
        meet(two, lambda: one.rwlock("b").write.acquire(timeout=PATIENCE), two.rwlock("b").read)
        meet(two, lambda: one.semaphore("c", 2).acquire(2, timeout=PATIENCE), two.semaphore("c", 2))
        meet(two, lambda: one.election("d").lead().acquire(timeout=PATIENCE), two.election("d").lead())
        if server is not None:
            beside(
                two, lambda: two.latch("e").wait(armed=True, timeout=PATIENCE), lambda: arm_late(one.latch("e"), server)
            )
        for _ in range(2):  # who listens, and stops listening, to a name
            follow(one, two)
        with one.rwlock("f").write as hold:
            hold.downgrade()
        latch = one.latch("g")
        latch.arm(1)
        beside(two, lambda: two.latch("g").wait(timeout=PATIENCE), latch.count_down)
        one.cell("h").update(lambda _: b"1")
        one.fence("i").admit(1)
        with one.striped("j", 3).all(), dibs.multi(one.lock("k"), two.lock("l"), timeout=PATIENCE):
            assert {info.name for info in two.locks()} >= {"k", "l"}
        with one.lock("m") as hold:
            two.lock("m").revoke()
            two.break_("m", token=hold.token)
            with pytest.raises(dibs.LockLost):
                hold.release()


def are_enough(url: str, servers: Sequence[Server], *needed: str, **options: Any) -> None:
    """With the printed rights everything works, and without one of `needed` nothing does."""
    line = printed(url, **options)
    make(line, *servers)
    every_kind(as_user(url), **options)
    for right in needed:
        make(without(line, right), *servers)
        with (
            dibs.connect(as_user(url), retry=1, **options) as client,
            pytest.raises(dibs.StoreError, match=f"{DENIED}|no permissions"),
        ):
            client.lock("a").acquire(timeout=1)


def meet(client: dibs.Client, take: Callable[[], Any], other: Any) -> None:
    """A holder hands over to a waiter of that client."""
    hold = take()

    def give() -> None:
        until(lambda: client.inspect(hold.name).waiters, PATIENCE, "somebody waits")
        hold.release()

    beside(client, lambda: other.acquire(timeout=PATIENCE).release(), give)


def beside(client: dibs.Client, waits: Callable[[], Any], act: Callable[[], Any]) -> None:
    """Act while that client waits; close it if the act fails."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waits)
        try:
            act()
        except BaseException:
            client.close()
            raise
        waiting.result(2 * PATIENCE)


def follow(one: dibs.Client, two: dibs.Client) -> None:
    seen = two.election("d").watch()
    assert next(seen) is None
    with one.election("d").lead():
        assert next(seen) is not None
    seen.close()


def arm_late(latch: dibs.Latch, server: Server) -> None:
    """Arm it once a waiter has sent PING."""
    before = asked(server, "ping", "calls")
    until(lambda: asked(server, "ping", "calls") > before, PATIENCE, "PING was asked")
    assert asked(server, "ping", "rejected_calls") == 0
    latch.arm(1)
    latch.count_down()


def asked(server: Server, command: str, what: str) -> int:
    """The server's count of `calls` or `rejected_calls`."""
    begin = f"cmdstat_{command}:"
    told = [line for line in server.ask("INFO", "commandstats").splitlines() if line.startswith(begin)]
    facts = dict(fact.split("=") for line in told for fact in line.removeprefix(begin).split(","))
    return int(facts.get(what, 0))


@pytest.mark.gate
@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("options", [{}, {"prefix": "app/"}, {"wake": "spin"}], ids=["plain", "prefix", "spin"])
def test_it_is_enough(server: Server, options: dict[str, Any]) -> None:
    line = printed(server.url(), **options)
    assert ("+publish" in line.split()) is ("wake" not in options)
    make(line, server)
    every_kind(as_user(server.url()), None if "wake" in options else server, **options)
    allowed = [command for command in COMMANDS if f"+{command}" in line.split()]
    assert not [command for command in allowed if asked(server, command, "rejected_calls")]


@pytest.mark.gate
@pytest.mark.parametrize("right", [*(f"+{command}" for command in sorted(COMMANDS - UNANSWERED)), "~dibs:*", "&dibs:*"])
def test_each_is_needed(server: Server, right: str) -> None:
    """`doctor` names the missing one, and does not fail."""
    line = printed(server.url())
    make(without(line, right), server)
    with pytest.raises(dibs.StoreError, match=DENIED):
        every_kind(as_user(server.url()))
    if right.lstrip("+") in SEEN_BY_DOCTOR:
        with dibs.connect(as_user(server.url())) as client:
            found = client.doctor()
        dangers = [finding for finding in found if finding.level == "danger"]
        assert dangers
        assert {finding.fix for finding in dangers} == {line}
        assert not any(PASSWORD in part for finding in found for part in finding)


def test_a_prefix_that_looks_like_a_pattern_is_none(server: Server) -> None:
    make(printed(server.url(), prefix="app[1]*/"), server)
    for prefix, is_allowed in (("app[1]*/", True), ("app1x/", False)):
        with dibs.connect(as_user(server.url()), prefix=prefix) as client:
            try:
                assert client.lock("a").acquire(timeout=30)
                assert is_allowed
            except dibs.StoreError:
                assert not is_allowed


def test_other_namespaces_stay_closed(server: Server) -> None:
    make(printed(server.url()), server)
    with dibs.connect(as_user(server.url()), namespace="billing") as client:
        with pytest.raises(dibs.StoreError, match="NOPERM"):
            client.lock("a").acquire(timeout=30)
        server.ask("ACL", "SETUSER", rights.USER, "~billing:*", "&billing:*")
        with client.lock("a", timeout=30):
            pass


@pytest.mark.gate
def test_a_user_who_may_not_look(server: Server) -> None:
    """Managed servers refuse CONFIG: `doctor` says so, and it is no error."""

    def notes() -> list[str]:
        with dibs.connect(as_user(server.url())) as client:
            found = client.doctor()
        assert [finding for finding in found if finding.level == "danger"] == []
        return [finding.what for finding in found if finding.level == "note"]

    make(printed(server.url()), server)
    assert [text for text in notes() if "INFO is refused" in text]
    server.ask("ACL", "SETUSER", rights.USER, "+info")
    assert [text for text in notes() if "CONFIG is refused" in text]
    server.ask("ACL", "SETUSER", rights.USER, "+config|get")
    assert not [text for text in notes() if "refused" in text]
