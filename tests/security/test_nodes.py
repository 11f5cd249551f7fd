"""Hostile nodes (cases 6, 24): whatever stands in a directory of ZooKeeper, nobody is granted by it and nobody crashes.

Whoever may write these could as well delete the nodes of others. What counts here is that nonsense never becomes a
grant, a crash of somebody else's program, or a change of anything outside our own directories.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import dibs
from dibs.backends.zookeeper.queue_rule import prefix_of
from dibs.testing.contract.seats import Seat
from lab.servers import shared
from process.children import PATIENCE, until
from security.nodes import AHEAD, Planter, directory, planter
from security.planted import nothing_comes_of_it, others_are_served
from security.test_inputs import ODD_NAMES

MEGABYTE = 1_000_000
"""What the server takes, but for some bytes."""
DATA: dict[str, bytes] = {
    "nothing": b"",
    "1 MB": b"x" * MEGABYTE,
    "1 MB of JSON": json.dumps({"owner": "x" * (MEGABYTE - 100)}).encode(),
    "no JSON": b"{",
    "a number of 5000 digits": b'{"ticket": ' + b"1" * 5000 + b"}",
    "something deep": b'{"owner": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "lone surrogates": b'{"owner": "\\ud800", "host": "\\udfff"}',
    "no text": bytes(range(128, 256)),
    "words for a terminal": b"\x1b]0;owned\x07\x1b[2J",
    "words for a terminal, in JSON": b'{"owner": "\\u001b]0;owned\\u0007", "info": {"\\u001b[2J": "\\u001b[2J"}}',
    "another's types": b'{"owner": {}, "host": [], "pid": "x", "thread": null, "info": 5, "session": [], "held": {}}',
    "numbers without end": b'{"pid": 1e999, "session": 1e999, "held": 1e999, "ticket": 1e999}',
    "numbers below nothing": b'{"pid": -1, "session": -1, "held": -1, "ticket": -1}',
    "numbers out of proportion": json.dumps(dict.fromkeys(("pid", "session", "held", "ticket"), 10**300)).encode(),
    "truth for numbers": b'{"pid": true, "session": true, "held": true, "ticket": true}',
    "no object": b"[1]",
    "nought": b"null",
    "a request to let go": b"__REVOKE__",
}
NODES: dict[str, str] = {
    "a lock's, with the least number": "lock--2147483648",
    "a lock's, without protection": f"lock-{AHEAD}",
    "a reader's": f"__READ__{AHEAD}",
    "a writer's": f"__WRIT__{AHEAD}",
    "an election's": f"latch-{AHEAD}",
    "a permit's": f"lease-{AHEAD}",
    "the guard of no stripes": f"striped-0-{AHEAD}",
    "the guard of too many stripes": f"striped-{'9' * 400}-{AHEAD}",
    "of a kind of its own": f"owned-1-{AHEAD}",
    "no contender's": "x",
    "1,000 characters long": "x" * 1000,
    "turned around": "\u202elive",
    "a cell's": "%cell",
    "of a semaphore's line": "locks",
    "of a semaphore's permits": "leases",
}
CROWD = 500
HARMLESS = {"a cell's", "of a semaphore's line", "of a semaphore's permits"}
"""No claims: our own word for something else, and what an idle semaphore leaves behind."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared.fresh(tmp_path)


@pytest.fixture
def clients(url: str) -> Iterator[tuple[dibs.Client, dibs.Client]]:
    with dibs.connect(url) as one, dibs.connect(url) as other:
        yield one, other


@pytest.fixture
def hostile(url: str) -> Iterator[Planter]:
    with planter(url) as made:
        yield made


@pytest.mark.parametrize("case", DATA)
def test_hostile_data_in_a_holders_node(
    url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Planter, case: str
) -> None:
    """The node stands there as a holder: the name is busy. On others' names nobody notices."""
    hostile.claim(data=DATA[case])
    nothing_comes_of_it(clients[0], url)
    others_are_served(*clients)
    (holder,) = clients[1].inspect("a").holders
    assert len(repr(holder)) < 2 * MEGABYTE
    assert repr(holder).isprintable()


@pytest.mark.parametrize("case", NODES)
def test_a_hostile_node_in_a_free_directory(
    url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Planter, case: str
) -> None:
    hostile.plant("a", NODES[case])
    if case in HARMLESS:
        with clients[0].lock("a", timeout=PATIENCE) as hold:
            assert clients[1].lock("a").acquire(timeout=0) is None
            hold.check()
    else:
        nothing_comes_of_it(clients[0], url)
        until(lambda: hostile.children("a") == [NODES[case]], what="nothing of ours is left beside it")
    others_are_served(*clients)


def test_a_hostile_node_beside_a_holder(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    """Ahead of it, in the queue of a name that is held: nobody gets in beside the holder, whose own hold is honest."""
    client, other = clients
    for number, node in enumerate(NODES.values()):
        name = f"a{number}"
        hold = client.lock(name).acquire(timeout=PATIENCE)
        assert hold is not None
        hostile.plant(name, node)
        for fair in (None, False):
            with suppress(dibs.DibsError):
                assert other.lock(name, fair=fair).acquire(timeout=0) is None, f"granted beside a holder: {node}"
        hold.check()
        hold.release()


def test_a_number_that_is_too_high_keeps_nobody_out(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    """It stands behind us, and stays there: so it is somebody who waits, for ever, whom a try does not pass."""
    client, other = clients
    hostile.claim(number="9999999999")
    with client.lock("a", timeout=PATIENCE) as hold:
        assert other.lock("a").acquire(timeout=0) is None
        hold.check()
    with other.lock("a", timeout=PATIENCE):
        """In the queue before it."""


def test_a_hostile_size_of_a_semaphore(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    client, other = clients
    hold = client.semaphore("a", 1).acquire(timeout=PATIENCE)
    assert hold is not None
    for size in (b"999999999999999999999", b"0", b"-1", b"mutex", b"x" * MEGABYTE, "٣".encode()):
        hostile.client.set(directory("a"), size)
        with suppress(dibs.DibsError):
            assert other.semaphore("a", 1).acquire(timeout=0) is None, f"granted beside a holder: {size[:20]!r}"
        with suppress(dibs.DibsError):
            assert other.inspect("a").holders
        hold.check()
    hold.release()


def test_a_node_with_the_id_of_a_holder(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    """Somebody copies the name of our node, with a lower number: ours stays ours, and giving it back ends only it."""
    client, other = clients
    hostile.client.delete(hostile.claim())  # so that there is a number before ours
    hold = client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    copy = hostile.only_child("a")[: -len(AHEAD)] + AHEAD
    hostile.client.create(copy)
    hold.check()
    assert other.lock("a").acquire(timeout=0) is None
    hold.release()
    until(lambda: hostile.children("a") == [copy.rpartition("/")[2]], what="ours is given back, the copy stays")
    other.break_("a", token=hostile.stat(copy).czxid)
    with other.lock("a", timeout=PATIENCE):
        """Free again."""


def test_a_node_with_the_id_of_a_claim_is_not_taken_over(url: str, hostile: Planter) -> None:
    """A claim whose answer was lost looks for its node by its id: one that lives by another session is not it."""
    seat = Seat(url)
    try:
        claim = seat.claim("dibs:a")
        planted = hostile.plant("a", f"{prefix_of(claim.id)}lock-{AHEAD}")
        claim.asked = True
        standing = seat.join(claim)
        assert standing is not None
        assert standing.holds
        own = hostile.only_child("a")
        assert own != planted
        assert standing.ticket == hostile.stat(own).czxid
        assert hostile.stat(own).owner_session_id
        seat.leave(claim)
        assert hostile.children("a") == []
    finally:
        seat.close()


def test_what_others_write_into_a_holders_node(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    """It says nothing to the holder, unless it is Curator's request to let go; and that is a request."""
    client, other = clients
    hold = client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    path = hostile.only_child("a")
    until(lambda: path in shared.zookeeper().ask("wchp"), what="the own node is watched")
    for case, data in DATA.items():
        hostile.client.set(path, data)
        assert other.lock("a").acquire(timeout=0) is None, case
        hold.check()
    until(hold.revoke_requested.is_set, what="the request is heard")
    hold.check()
    hold.release()
    assert hostile.children("a") == []


def test_a_node_that_lasts_for_ever_can_be_broken(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    token = hostile.stat(hostile.claim()).czxid
    client = clients[0]
    assert client.lock("a").acquire(timeout=0) is None
    with pytest.raises(dibs.NotHeld):
        client.break_("a", token=token + 1)
    client.break_("a", token=token)
    with client.lock("a", timeout=PATIENCE) as hold:
        assert hold.token > token


def test_a_crowd_of_planted_nodes(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    """Five hundred that wait for nothing, and never go: an error of ours or a no, in time, and others are served."""
    hostile.client.ensure_path(directory("a"))
    names = [f"{directory('a')}/_c_{number:032x}-lock-{number:010}" for number in range(CROWD)]
    for created in [hostile.client.create_async(name) for name in names]:
        created.get(40)
    client, other = clients
    assert client.lock("a").acquire(timeout=0.2) is None
    until(lambda: len(hostile.children("a")) == CROWD, what="nothing of ours is left among them")
    others_are_served(client, other)


def paths_below(hostile: Planter, path: str = "") -> list[str]:
    found = []
    for child in hostile.client.get_children(path or "/"):
        found += [f"{path}/{child}", *paths_below(hostile, f"{path}/{child}")]
    return found


def test_names_are_no_paths(url: str, hostile: Planter) -> None:
    """Each odd name is one directory, in one place; nothing comes up elsewhere, nor outside of the chroot."""
    with dibs.connect(url) as client, planter(url.rpartition("/")[0]) as root:
        outside = {*root.client.get_children("/"), *root.client.get_children("/zookeeper")}
        holds = [client.lock(name).acquire(timeout=PATIENCE) for name in ODD_NAMES]
        assert all(holds)
        assert hostile.client.get_children("/") == ["dibs"]
        below = paths_below(hostile, "/dibs")
        assert len([path for path in below if path.count("/") == 2]) == len(ODD_NAMES)
        assert len(below) == 2 * len(ODD_NAMES), "a directory and a node for each"
        new = {*root.client.get_children("/"), *root.client.get_children("/zookeeper")} - outside
        assert all(name.startswith("fresh-") for name in new), "only stores of other tests come up beside it"


def test_paths_as_written_are_checked(url: str) -> None:
    """With namespace="" what begins with a slash is a path: one that is none, or the server's own, is refused. All of
    them are in tests/store/zookeeper/test_paths.py."""
    with dibs.connect(url, namespace="") as client:
        for path in ("/", "/a//b", "/a/../b", "/zookeeper/quota", "/a\ue000"):
            for refused in (
                lambda path=path: client.lock(path).acquire(timeout=0),
                lambda path=path: client.inspect(path),
            ):
                with pytest.raises(dibs.BadName):
                    refused()
        with client.lock("/a/b", timeout=PATIENCE):
            """One that is a path."""
