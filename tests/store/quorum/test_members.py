"""Quorums that `connect` takes and refuses, what they can and cannot do, and what `doctor` reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.core.queue import FAIR, LEASES, QUORUM, RECORDS
from store.faults.kit import TIMEOUT
from store.quorum.members import DOWN, MUTE, memory, quorum_of

THREE = ["memory://one", "memory://two", "memory://three"]


def test_a_quorum_is_a_list_of_urls_or_one_url() -> None:
    with dibs.connect(THREE) as client:
        assert client._core.store.capabilities == {LEASES, QUORUM, RECORDS}
        assert repr(client).startswith("<dibs.Client quorum of memory://one, memory://two, memory://three: ")
        assert FAIR not in client._core.store.capabilities
        assert client.lock("a")._core.request.fair is False
    with dibs.connect("quorum+memory://four,five,six") as client:
        assert [member.shown for member in client._core.store.members] == [
            "memory://four", "memory://five", "memory://six",
        ]  # fmt: skip
        assert client._core.shown == "quorum+memory://four,five,six"


def test_both_apis_and_both_spellings_meet(tmp_path: Path) -> None:
    url = memory(tmp_path)
    hosts = url.removeprefix("quorum+memory://").split(",")

    async def locked() -> bool:
        async with dibs.aio.connect([f"memory://{host}" for host in reversed(hosts)]) as other:
            return await other.lock("a").locked()

    with dibs.connect(url) as client, client.lock("a", timeout=TIMEOUT):
        assert asyncio.run(locked())


def test_any_number_of_members_works() -> None:
    for count in (1, 2, 4, 7):
        client, _ = quorum_of(count, dibs.connect)
        with client, client.rlock("a", timeout=TIMEOUT) as hold, client.rlock("a") as inner:
            assert client.inspect("a").holders[0].token == hold.token == inner.token


REFUSED: list[tuple[Any, type[Exception], str]] = [
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
]


def test_connect_refuses() -> None:
    for given, error, words in REFUSED:
        with pytest.raises(error, match=words):
            dibs.connect(given)


def test_guard_is_a_keyword_or_stands_in_the_url() -> None:
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
    assert (caught.value.step, caught.value.name) == ("give every independent store once", "a")


UNSUPPORTED: list[Callable[[dibs.Client], object]] = [
    lambda client: client.rwlock("a"),
    lambda client: client.semaphore("a", 3),
    lambda client: client.striped("a", 3),
    lambda client: client.election("a"),
    lambda client: client.latch("a"),
    lambda client: client.cell("a"),
    lambda client: client.fence("a"),
    lambda client: client.lock("a", fair=True),
]


def test_unsupported_kinds_are_refused_when_they_are_made() -> None:
    with dibs.connect(THREE) as client:
        for make in UNSUPPORTED:
            with pytest.raises(dibs.Unsupported) as caught:
                make(client)
            assert (caught.value.store, bool(caught.value.step)) == (client._core.shown, True)


def test_doctor_reports_the_guard_and_members_that_do_not_answer() -> None:
    def found(level: str) -> list[str]:
        return [finding.what for finding in client.doctor() if finding.level == level]

    client, members = quorum_of(5, dibs.connect, lease=20)
    with client:
        assert "a quorum of 5, 3 decide" in client.doctor()[0].what
        assert any("cannot vote for 20 s" in text for text in found("note"))
        assert found("danger") == []
        members[1].state = DOWN
        assert found("danger") == [f"4 of 5 members answer, which is enough; {members[1].shown}: nobody is there"]


@pytest.mark.alone
def test_it_closes_at_once_though_a_member_has_not_received_a_release() -> None:
    """So few members block no other caller: closing need not wait for it."""
    client, members = quorum_of(3, dibs.connect, lease=30)
    members[0].state = MUTE
    with client.lock("a", timeout=TIMEOUT):
        pass
    began = client._core.now()
    client.close()
    assert client._core.now() - began < 4.0
