"""Hostile nodes in directories of ZooKeeper, and names that look like paths. Hostile claims: test_claims.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import dibs
from dibs.backends.zookeeper.queue_rule import prefix_of
from dibs.testing.contract.seats import Seat
from lab.servers import shared
from process.children import PATIENCE, until
from security.hostile import AHEAD, Planter, directory, others_are_served, planter
from security.test_claims import ZOOKEEPER
from security.test_inputs import ODD_NAMES

pytestmark = pytest.mark.gate
CROWD = 500


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


def test_our_own_nodes_beside_claims_are_no_claims(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    """A cell's, and what an idle semaphore leaves behind."""
    for node in ("%cell", "locks", "leases"):
        hostile.plant("a", node)
        with clients[0].lock("a", timeout=PATIENCE) as hold:
            assert clients[1].lock("a").acquire(timeout=0) is None
            hold.check()
    others_are_served(*clients)


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
    for size in (b"999999999999999999999", b"0", b"-1", b"mutex", b"x" * 1_000_000, "٣".encode()):
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
    copy = hostile.only_child()[: -len(AHEAD)] + AHEAD
    hostile.client.create(copy)
    hold.check()
    assert other.lock("a").acquire(timeout=0) is None
    hold.release()
    until(lambda: hostile.children() == [copy.rpartition("/")[2]], what="ours is given back, the copy stays")
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
        own = hostile.only_child()
        assert own != planted
        assert standing.ticket == hostile.stat(own).czxid
        assert hostile.stat(own).owner_session_id
        seat.leave(claim)
        assert hostile.children() == []
    finally:
        seat.close()


def test_what_others_write_into_a_holders_node(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    """It says nothing to the holder, unless it is Curator's request to let go; and that is a request."""
    client, other = clients
    hold = client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    path = hostile.only_child()
    until(lambda: path in shared.zookeeper().ask("wchp"), what="the own node is watched")
    for case in ("no JSON", "no text", "1 MB", "words for a terminal", "a request to let go"):
        hostile.client.set(path, ZOOKEEPER[case]["data"])
        assert other.lock("a").acquire(timeout=0) is None, case
        hold.check()
    until(hold.revoke_requested.is_set, what="the request is heard")
    hold.check()
    hold.release()
    assert hostile.children() == []


def test_a_crowd_of_planted_nodes(clients: tuple[dibs.Client, dibs.Client], hostile: Planter) -> None:
    """Five hundred that wait for nothing, and never go: an error of ours or a no, in time, and others are served."""
    hostile.client.ensure_path(directory("a"))
    names = [f"{directory('a')}/_c_{number:032x}-lock-{number:010}" for number in range(CROWD)]
    for created in [hostile.client.create_async(name) for name in names]:
        created.get(40)
    client, other = clients
    assert client.lock("a").acquire(timeout=0.2) is None
    until(lambda: len(hostile.children()) == CROWD, what="nothing of ours is left among them")
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
