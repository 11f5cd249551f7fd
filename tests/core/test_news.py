"""News of a claim reach its holder long before the next renewal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import dibs
from dibs.core import watchdog
from dibs.core.rule import Claim
from dibs.runtime.threads import step
from dibs.testing.kit import KitClient
from process.children import until

LONG = 600.0
"""A lease whose third no test waits for: a holder that learns of a loss learned it from the news."""
PATIENCE = 60.0
_numbers = count(1)


@pytest.fixture
def url() -> str:
    return f"memory://news-{next(_numbers)}"


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with dibs.connect(url, lease=LONG) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[Any]:
    with dibs.connect(url, lease=LONG) as other:
        yield other


def claim_of(hold: Any) -> Claim:
    claim = hold._core.grant.claim
    assert isinstance(claim, Claim)
    return claim


def tell(client: Any, claim: Claim) -> None:
    """As a store does, on a thread of its own."""
    teller = threading.Thread(target=client._core.me.news, args=(claim.id,))
    teller.start()
    teller.join(PATIENCE)
    assert not teller.is_alive(), "it never waits"


def test_a_holder_hears_at_once_that_it_was_broken(client: Any, other: Any) -> None:
    assert client._core.me.lease == LONG, "the store is told how long a session lasts"
    hold = client.lock("a").acquire()
    other.break_("a", token=hold.token)
    assert not hold.lost.is_set(), "the memory store tells nobody"
    tell(client, claim_of(hold))
    assert hold.lost.wait(PATIENCE)


def test_a_holder_hears_at_once_that_it_is_to_let_go(client: Any, other: Any) -> None:
    hold = client.lock("a").acquire()
    other.lock("a").revoke()
    tell(client, claim_of(hold))
    assert hold.revoke_requested.wait(PATIENCE)
    hold.check()


def test_news_of_nothing_changes_nothing(client: Any, other: Any) -> None:
    hold, theirs = client.lock("a").acquire(), other.lock("b").acquire()
    tell(client, claim_of(theirs))
    tell(client, claim_of(hold))
    hold.release()
    tell(client, claim_of(hold))
    theirs.check()


def test_news_do_not_renew_what_is_not_to_be_renewed(dibs_client: KitClient) -> None:
    hold = dibs_client.lock("a", renew=False).acquire()
    for _ in range(4):
        tell(dibs_client, claim_of(hold))
        dibs_client.clock.advance(8)
    assert hold is not None
    assert hold.lost.is_set()
    assert not dibs_client.lock("a").locked()


def test_news_that_come_while_an_older_answer_is_on_its_way_are_not_lost(client: Any, other: Any) -> None:
    """A renewal is answered, then the claim is taken away, then the answer arrives."""
    hold = client.lock("a").acquire()
    grantor = client._core.watchdog._open_for_renewals()
    usual = grantor.renew

    async def renew(grants: Any, end: float) -> Any:
        grantor.renew = usual
        standings = await usual(grants, end)
        other.break_("a", token=hold.token)
        client._core.me.news(claim_of(hold).id)
        return standings

    grantor.renew = renew
    tell(client, claim_of(hold))
    assert hold.lost.wait(PATIENCE)


@pytest.mark.parametrize("path", ["free", "general"])
def test_news_that_come_before_the_join_is_answered_are_not_lost(
    client: Any, other: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is granted and taken away while the answer that says so is on its way."""
    monkeypatch.setattr(watchdog, "TICK", LONG)  # it does not look again by itself
    assert client.lock("b", lease=LONG / 2).acquire()  # the watchdog wakes for it before "a" is due, but not soon
    until(lambda: client._core.watchdog.is_connected)
    queue = client._core.opened._queue
    usual_take, usual_join = queue.take_now, queue.join

    def take_now(claim: Claim, place: Any, end: float) -> Any:
        return taken_away(claim, usual_take(claim, place, end)) if path == "free" else None

    async def join(claim: Claim, place: Any, end: float) -> Any:
        return taken_away(claim, await usual_join(claim, place, end))

    def taken_away(claim: Claim, standing: Any) -> Any:
        other.break_("a", token=standing.ticket)
        client._core.me.news(claim.id)
        step(client._core.watchdog.watch())  # it can do nothing yet
        return standing

    queue.take_now, queue.join = take_now, join
    hold = client.lock("a").acquire()
    assert hold.lost.wait(PATIENCE)
