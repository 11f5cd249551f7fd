"""Which quorums there are: what `connect` takes and refuses, what they can and cannot do, what `doctor` says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.core.queue import FAIR, LEASES, QUORUM, RECORDS
from store.quorum.members import DOWN, MUTE, members_of, memory, quorum_of

THREE = ["memory://one", "memory://two", "memory://three"]


def test_a_list_of_urls_is_a_quorum() -> None:
    with dibs.connect(THREE) as client:
        assert client._core.store.capabilities == {LEASES, QUORUM, RECORDS}
        assert repr(client).startswith("<dibs.Client quorum of memory://one, memory://two, memory://three: ")
        with client.lock("a", timeout=5) as hold:
            hold.check()


def test_one_url_names_them_all() -> None:
    with dibs.connect("quorum+memory://four,five,six") as client:
        assert [member.shown for member in client._core.store.members] == [
            "memory://four", "memory://five", "memory://six",
        ]  # fmt: skip
        assert client._core.shown == "quorum+memory://four,five,six"


def test_both_ways_and_both_faces_meet(tmp_path: Path) -> None:
    url = memory(tmp_path)
    hosts = url.removeprefix("quorum+memory://").split(",")

    async def taken() -> bool:
        async with dibs.aio.connect([f"memory://{host}" for host in reversed(hosts)]) as other:
            return await other.lock("a").acquire(timeout=0) is None

    with dibs.connect(url) as client, client.lock("a"):
        assert asyncio.run(taken())


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_any_number_works(count: int) -> None:
    client, _ = quorum_of(count, dibs.connect)
    with client, client.lock("a", timeout=5) as hold:
        assert client.inspect("a").holders[0].token == hold.token


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([], ValueError, "three or five independent stores"),
        (["memory://a", "memory://b", "memory://a"], ValueError, "memory://a is given twice"),
        (["memory://a", "zookeeper://h1", "memory://b"], dibs.Unsupported, "zookeeper://h1 cannot be a member"),
        (["memory://a", "sqlite:///x.db", "memory://b"], dibs.Unsupported, "cannot be a member"),
        (["memory://a", THREE], dibs.Unsupported, "quorum of memory://one"),
        (["memory://a", 3], TypeError, "or a driver"),
        ("quorum+memory://", ValueError, "names no member"),
        ("quorum+nothing://a,b,c", ValueError, "no store for nothing://"),
        ("quorum+memory://a,b,c?guard=soon", ValueError, "guard"),
        ("quorum+memory://a,b,c?guard=-1", ValueError, "guard must be at least 0"),
        ("quorum+memory://a,b,c?guard=1&guard=2", ValueError, "twice"),
    ],
)
def test_connect_refuses(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match="(?s).*".join([words.replace("+", r"\+")])):
        dibs.connect(given)


def test_guard_is_an_option_of_both_ways() -> None:
    for client in (dibs.connect(THREE, guard=7), dibs.connect("quorum+memory://one,two,three?guard=7")):
        with client:
            assert client._core.store.guard == 7.0
    with pytest.raises(ValueError, match="twice"):
        dibs.connect("quorum+memory://a,b,c?guard=7", guard=7)


def test_a_password_is_never_shown() -> None:
    url = "quorum+redis://ana:secret@h1,h2:7000,h3/2"
    with dibs.connect(url) as client:
        shown = [repr(client), *(member.shown for member in client._core.store.members)]
    assert not any("secret" in text or "ana" in text for text in shown)
    assert shown[1:] == ["redis://h1/2", "redis://h2:7000/2", "redis://h3/2"]


def test_one_store_under_two_names_is_refused_at_first_use() -> None:
    client, members = quorum_of(3, dibs.connect)
    members[2]._store._world = members[0]._store._world
    with client, pytest.raises(dibs.StoreError, match="two members are the same store") as caught:
        client.lock("a").acquire()
    assert caught.value.step == "give every independent store once"
    assert caught.value.name == "a"


KINDS: dict[str, Callable[[dibs.Client], object]] = {
    "rwlock": lambda client: client.rwlock("a"),
    "semaphore": lambda client: client.semaphore("a", 3),
    "striped": lambda client: client.striped("a", 3),
    "election": lambda client: client.election("a"),
    "latch": lambda client: client.latch("a"),
    "cell": lambda client: client.cell("a"),
    "fence": lambda client: client.fence("a"),
    "fair": lambda client: client.lock("a", fair=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_quorum_cannot_do_is_said_when_it_is_made(kind: str) -> None:
    with dibs.connect(THREE) as client:
        with pytest.raises(dibs.Unsupported) as caught:
            KINDS[kind](client)
        assert caught.value.store == client._core.shown
        assert caught.value.step


def test_a_lock_is_unfair_without_being_asked() -> None:
    with dibs.connect(THREE) as client:
        assert FAIR not in client._core.store.capabilities
        assert client.lock("a")._core.request.fair is False


def test_an_rlock_is_entered_again() -> None:
    client, _ = quorum_of(3, dibs.connect)
    with client, client.rlock("a") as outer, client.rlock("a") as inner:
        assert outer.token == inner.token


def said(client: dibs.Client, level: str) -> list[str]:
    return [finding.what for finding in client.doctor() if finding.level == level]


def test_doctor_says_what_is_promised_and_counts_the_members() -> None:
    client, _ = quorum_of(5, dibs.connect, lease=20)
    with client:
        assert "a quorum of 5, 3 decide" in client.doctor()[0].what
        assert "keeps working with any 2 of 5 members down" in said(client, "promise")
        assert any("cannot vote for 20 s" in text for text in said(client, "note"))
        assert said(client, "danger") == []


def test_doctor_names_those_who_do_not_answer() -> None:
    client, members = quorum_of(5, dibs.connect, retry=1)
    members[1].state = DOWN
    with client:
        (danger,) = said(client, "danger")
        assert danger == f"4 of 5 members answer, which is enough; {members[1].shown}: nobody is there"
        for member in members:
            member.state = DOWN
        (danger,) = said(client, "danger")
        assert danger.startswith("0 of 5 members answer, 3 are needed; ")


@pytest.mark.parametrize(
    ("count", "level", "words"),
    [
        (1, "danger", "none of 1 members may be down"),
        (2, "danger", "none of 2 members may be down"),
        (4, "note", "4 members tolerate no more failures than 3"),
    ],
)
def test_doctor_speaks_of_a_bad_number(count: int, level: str, words: str) -> None:
    client, _ = quorum_of(count, dibs.connect)
    with client:
        assert words in said(client, level)


def test_doctor_speaks_of_clocks_that_differ() -> None:
    client, members = quorum_of(3, dibs.connect)
    members[0].clock_ahead = 90.0
    with client:
        assert any("differ by 90 s" in text for text in said(client, "danger"))


def test_a_member_that_is_left_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    client, members = quorum_of(3, dibs.connect)
    members[0].state = DOWN
    with client:
        for _ in range(3):
            with client.lock("a", timeout=5):
                pass
    assert [record.message for record in caplog.records if members[0].shown in record.message] == [
        f"member {members[0].shown} is left out: nobody is there"
    ]


def test_it_closes_at_once_though_a_member_has_not_heard_of_a_leave() -> None:
    """Nobody is kept out by so few: nothing is gained by waiting for it."""
    client, members = quorum_of(3, dibs.connect, lease=30)
    members[0].state = MUTE
    now = client._core.now
    with client.lock("a", timeout=5):
        pass
    began = now()
    client.close()
    assert now() - began < 4.0


def test_members_can_be_replaced_only_before_the_first_use() -> None:
    """What the tests beside this one rely on."""
    with dibs.connect(THREE) as client:
        members = members_of(client)
        with client.lock("a", timeout=5):
            assert all("join" in member.asked for member in members)
