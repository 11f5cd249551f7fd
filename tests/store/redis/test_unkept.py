"""`replicas=n` where they cannot be counted on: nothing is granted, and that is said; nobody is in his own way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dibs
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server

LEASE = 1.5


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    """It has no replica."""
    require("redis")
    with Server(Redis(users={"ana": ">pw ~* &* +@all -wait"})) as server:
        yield server


def test_who_asks_for_longer_than_a_waiting_lease_is_told_why(alone: Server) -> None:
    """After a waiting lease another id asks: it must not wait for the first one, and take that for somebody else."""
    with (
        dibs.connect(alone.url(), replicas=1, lease=LEASE) as client,
        pytest.raises(dibs.StoreUnavailable, match=r"fewer than 1 replicas have it|did not answer in time"),
    ):
        client.lock("a").acquire(timeout=3 * LEASE)


def test_what_was_not_kept_is_in_nobodys_way(alone: Server) -> None:
    with dibs.connect(alone.url(), replicas=1) as careful, dibs.connect(alone.url()) as careless:
        with pytest.raises(dibs.StoreUnavailable):
            careful.lock("b").acquire(timeout=0)
        assert careless.lock("b").acquire(timeout=5), "it was given back, and did not last as long as its lease"


def test_who_may_not_wait_for_replicas_is_told_so(alone: Server) -> None:
    with (
        dibs.connect(alone.url(user="ana", password="pw"), replicas=1) as client,
        pytest.raises(dibs.StoreError, match="NOPERM") as refused,
    ):
        client.lock("c").acquire(timeout=5)
    assert not isinstance(refused.value, dibs.StoreUnavailable), "asking again helps nobody"
