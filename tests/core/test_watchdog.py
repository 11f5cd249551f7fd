"""The watchdog's turns, one by one, in virtual time: what is renewed when, what is lost, what is given back."""

from __future__ import annotations

import threading
from unittest.mock import ANY

import pytest

from core.watchdog_harness import LEASE, Harness, Hold, held
from dibs.core.deadline import FOREVER
from dibs.core.give_backs import BATCH
from dibs.core.grants import ASKING, HELD, LOST, OVER, WAITS, Grant
from dibs.core.queue import LOOK, YOURS, Replaced
from dibs.core.rule import Claim, Standing
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import step


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_a_hold_is_renewed_after_a_third_of_its_lease(harness: Harness) -> None:
    grant = harness.grant()
    assert grant.until == pytest.approx(1027.0)
    assert harness.turn() == 1.0, "it looks again each second"
    assert harness.watchdog.wakes_at == 1001.0
    assert harness.turn(1009.4) == pytest.approx(0.6)
    assert harness.verbs() == []
    harness.turn(1010.0)
    assert harness.asked == [("renew", [grant.claim], pytest.approx(5.0))], "an attempt takes a sixth of the lease"
    assert (grant.until, grant.renew_at) == (pytest.approx(1037.0), pytest.approx(1020.0))
    harness.standing = lambda _: held(20.0)
    harness.turn(1020.0)
    assert grant.until == pytest.approx(1038.0), "as long as the store says, and not the lease"


def test_what_a_message_granted_is_renewed_early(harness: Harness) -> None:
    """It runs on the waiting lease, and no answer has said more yet."""
    grant = harness.grant()
    grant.until, grant.renew_at = 1010.0, 1009.0
    grant.granted(1000.0)
    assert (grant.renew_at, grant.until) == (1005.0, 1010.0)
    grant.renew_at = 1003.0
    grant.granted(1000.0)
    assert (grant.renew_at, grant.until) == (1003.0, 1010.0)


def test_who_is_due_within_half_a_second_goes_with_the_others(harness: Harness) -> None:
    first = harness.grant(b"a")
    harness.time += 0.5
    second = harness.grant(b"b")
    harness.time += 0.1
    third = harness.grant(b"c")
    harness.turn(1010.0)
    assert harness.asked[0][1] == [first.claim, second.claim]
    assert third.renew_at == pytest.approx(1010.6)


def test_many_are_renewed_in_several_steps_each_as_quickly_as_its_own_leases_need(harness: Harness) -> None:
    for number in range(BATCH + 1):
        harness.grant(str(number).encode())
    for number in range(3):
        harness.grant(f"short {number}".encode(), lasts=3.0)
    for grant in harness.watchdog.renewing.values():
        harness.change(grant, renew_at=harness.time)
    harness.turn()
    asked = [(len(claims), round(left, 3)) for _, claims, left in harness.asked]
    assert asked == [(3, 0.5), (BATCH, 5.0), (1, 5.0)]


def test_holders_are_renewed_apart_from_waiters(harness: Harness) -> None:
    waiter, holder = harness.grant(b"a", lasts=3.0), harness.grant(b"b", lasts=3.0)
    waiter.state = WAITS
    harness.turn(1001.0)
    assert [claims for _, claims, _ in harness.asked] == [[holder.claim], [waiter.claim]]


def test_an_attempt_lasts_as_long_as_an_answer_takes(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.trip = 0.25
    harness.grant(lasts=1.2)
    harness.turn(1000.4)
    assert harness.asked == [("renew", [ANY], pytest.approx(0.5))]
    harness.turn(1000.8)
    assert caplog.messages == [
        "a lease of 1.2 s is too short: a reply of the store takes up to 0.25 s; use at least 1.5 s"
    ]


def test_a_grant_is_looked_at_only_when_it_is_due(harness: Harness) -> None:
    """Finding what is due must not depend on how much is held."""
    many = [harness.grant(str(number).encode(), hold := Hold()) for number in range(2000)]
    harness.turn()
    hold.is_wanted = False
    looks = []
    for grant in many:
        grant.holds[0].wanted = lambda: looks.append(1) or True  # type: ignore[method-assign, func-returns-value]
    harness.turn(1005.0)
    assert not looks
    harness.grant(b"another")
    harness.turn(1006.0)
    assert not looks


def test_what_ended_is_forgotten(harness: Harness) -> None:
    for number in range(4000):
        grant = harness.grant(str(number).encode(), lasts=1e6)
        if number % 100 == 0:
            harness.turn()
        harness.watchdog.take(grant)
    harness.turn()
    for grant in [harness.grant(str(number).encode(), lasts=1e6) for number in range(4000)]:
        harness.turn()
        harness.watchdog.take(grant)
    harness.turn()
    assert len(harness.watchdog._agenda) < 2000
    assert not harness.watchdog.unsorted


def test_a_renewal_that_fails_is_tried_again_soon(harness: Harness) -> None:
    grant, short = harness.grant(b"a"), harness.grant(b"b", lasts=6.0)
    harness.error = StoreUnavailable("silent")
    assert harness.turn(1002.0) == pytest.approx(0.5), "a twelfth of the lease"
    assert (grant.renew_at, short.renew_at) == (pytest.approx(1010.0), pytest.approx(1002.5))
    harness.error, harness.standing = None, lambda one: StoreUnavailable("silent") if one is grant else held(6.0)
    harness.change(grant, renew_at=1003.0)
    harness.change(short, renew_at=1003.0)
    harness.turn(1003.0)
    assert (grant.renew_at, short.renew_at) == (pytest.approx(1004.0), pytest.approx(1005.0)), "each as it was answered"


def test_past_its_deadline_a_hold_is_lost_and_given_back(harness: Harness) -> None:
    hold = Hold()
    grant = harness.grant(b"a", hold)
    grant.watchers.append(ended := threading.Event())
    harness.rings.clear()
    harness.turn(1027.0)
    assert "renew" not in harness.rings, "a renewal that was due, too, would only delay its successor"
    assert (grant.state, hold.told, ended.is_set()) == (LOST, 1, True)
    assert harness.asked == [("give back", [b"a"], pytest.approx(0.5))]
    assert not harness.watchdog.renewing


@pytest.mark.parametrize(("standing", "back"), [(None, []), (Standing(7, False, LEASE, FOREVER, False), ["give back"])])
def test_what_the_store_says_is_gone_or_behind_another_is_lost(
    harness: Harness, standing: Standing | None, back: list[str]
) -> None:
    grant = harness.grant(b"a", hold := Hold())
    harness.standing = lambda _: standing
    harness.turn(1010.0)
    assert (grant.state, hold.told) == (LOST, 1)
    assert grant.loss is not None
    assert grant.loss.reason == "broken"
    assert harness.verbs() == ["renew", *back]


def test_an_answer_that_comes_after_the_deadline_renews_nothing(harness: Harness) -> None:
    grant = harness.grant()

    def late(_: Grant) -> Standing:
        harness.time = 1028.0
        return held()

    harness.standing = late
    harness.turn(1010.0)
    assert grant.state is LOST
    assert grant.until == pytest.approx(1027.0)


def test_what_waits_is_woken_by_what_its_renewal_says(harness: Harness) -> None:
    grant = harness.grant()
    harness.change(grant, state=WAITS, renew_at=1003.0)
    harness.standing = lambda _: Standing(7, False, 5.0, 1.0, False)
    harness.turn(1003.0)
    assert harness.delivered == []
    assert grant.renew_at == 1004.0, "somebody's end ahead of it comes first"
    harness.standing = lambda _: held()
    harness.turn(1004.0)
    assert harness.delivered == [(b"a", YOURS.value)]
    harness.standing = lambda _: None
    harness.change(grant, renew_at=1006.0)
    harness.turn(1006.0)
    assert harness.delivered[1:] == [(b"a", LOOK.value)]
    assert (grant.state, grant.renew_at) == (WAITS, FOREVER)


def test_what_asks_anew_after_it_was_found_due_is_not_renewed(harness: Harness) -> None:
    """Nothing stands for it yet: the store would say that it is gone."""
    grant = harness.grant()
    harness.time = 1010.0
    step(harness.watchdog.watch())
    grant.state = ASKING
    step(harness.watchdog.renew())
    assert harness.verbs() == []


@pytest.mark.parametrize("said", [StoreUnavailable("silent"), Standing(7, False, 5.0, FOREVER, False)])
def test_a_reply_to_a_renewal_that_was_sent_while_the_claim_waited_does_not_end_its_hold(
    harness: Harness, said: StoreUnavailable | Standing
) -> None:
    """Nor is it renewed if it is not to be renewed."""
    grant = harness.grant(renew=False)
    harness.change(grant, state=WAITS, renew_at=1003.0)
    harness.time = 1003.0
    step(harness.watchdog.watch())

    def granted(_: Grant) -> StoreUnavailable | Standing:
        grant.granted(harness.time)
        return said

    harness.standing = granted
    harness.turn()
    assert (grant.state, grant.renew_at) == (HELD, FOREVER)


def test_a_grant_that_asks_anew_is_due_though_the_renewal_of_its_old_claim_is_under_way(harness: Harness) -> None:
    grant = harness.grant()
    grant.in_flight, grant.renew_at = grant.claim, 1002.0
    assert grant.due() == grant.until
    grant.ask_as(Claim(b"b", "x", "mutex", 1, 1, LEASE, 10.0, harness.time + 5.0, b"me", "{}"))
    grant.answer(held(), harness.time)
    grant.state = WAITS
    assert grant.due() == pytest.approx(1010.0)


def test_what_nobody_wants_is_given_back_and_not_lost(harness: Harness) -> None:
    held_one, asking = harness.grant(b"a", one := Hold()), harness.grant(b"b", other := Hold())
    asking.state = ASKING
    harness.turn()
    one.is_wanted = other.is_wanted = False
    harness.turn(1010.0)
    assert (held_one.state, held_one.dropped, asking.state, one.told) == (OVER, True, OVER, 0)
    assert harness.asked == [("give back", ANY, pytest.approx(0.5))]
    assert sorted(harness.asked[0][1]) == [b"a", b"b"]


def test_the_first_of_several_holds_ends_by_itself(harness: Harness) -> None:
    grant = harness.grant(b"a", heavy := Hold(1005.0, weight=3), light := Hold(1020.0))
    assert grant.claim is not None
    grant.claim.weight = 3
    harness.turn(1005.0)
    assert (heavy.told, light.told, grant.state, grant.ends_at) == (1, 0, HELD, 1020.0)
    assert harness.asked == [("lighten", 1, pytest.approx(0.5))]
    grant.claim.weight = 1
    harness.watchdog.lighten_later(grant)
    harness.turn(1006.0)
    assert harness.verbs() == [], "it is as light already"
    harness.turn(1020.0)
    assert (light.told, grant.state) == (1, LOST)


def test_a_grant_whose_holds_have_all_ended_is_not_renewed(harness: Harness) -> None:
    """The process stood still between the two lanes: the renewal was due first."""
    grant = harness.grant(b"a", Hold(1012.0), last := Hold(1014.0))
    harness.time = 1010.0
    harness.look()
    harness.time = 1013.0
    step(harness.watchdog.renew())
    assert harness.verbs() == ["renew"], "one of them goes on"
    harness.change(grant, renew_at=1013.0)
    harness.look()
    harness.time = 1014.0
    step(harness.watchdog.renew())
    assert harness.verbs() == ["renew"]
    harness.turn()
    assert (last.told, grant.state, harness.verbs()) == (1, LOST, ["give back"])


def test_a_reply_that_comes_after_the_last_hold_ended_renews_nothing(harness: Harness) -> None:
    grant = harness.grant(b"a", Hold(1012.0))

    def late(_: Grant) -> Standing:
        harness.time = 1013.0
        return held()

    harness.standing = late
    harness.turn(1010.0)
    assert grant.loss is not None
    assert grant.loss.reason == "max_hold"


def test_another_store_in_its_place_has_lost_everything(harness: Harness) -> None:
    grant, waits = harness.grant(b"a", hold := Hold()), harness.grant(b"b")
    waits.state = WAITS
    harness.watchdog.heard(StoreError("no"))
    assert grant.state is HELD
    harness.watchdog.heard(Replaced("another file"))
    assert (grant.state, hold.told, waits.state) == (LOST, 1, WAITS)
    assert harness.delivered == [(b"b", LOOK.value)]
    assert harness.turn(1001.0) is not None
    assert harness.verbs() == [], "what is gone is not given back"


def test_news_are_looked_at_in_the_next_turn(harness: Harness) -> None:
    grant, fixed = harness.grant(b"a"), harness.grant(b"b", renew=False)
    harness.turn()
    harness.rings.clear()
    for id in (b"a", b"b", b"nobody's"):
        harness.watchdog.look_at(id)
    assert (grant.news, fixed.news, harness.rings) == (True, False, ["watch"])
    harness.turn(1001.0)
    assert harness.asked[0][1] == [grant.claim]
    assert not grant.news


def test_the_watch_is_rung_only_for_what_comes_before_it_wakes(harness: Harness) -> None:
    grant = harness.grant()
    assert harness.rings == ["watch", "renew"], "the second one connects"
    harness.turn()
    harness.rings.clear()
    harness.watchdog.schedule(grant)
    assert harness.rings == []
    for field in ("renew_at", "until", "ends_at"):
        before = getattr(grant, field)
        harness.change(grant, **{field: harness.watchdog.wakes_at - 0.1})
        setattr(grant, field, before)
    assert harness.rings == ["watch"] * 3
    harness.watchdog.stop()
    assert harness.rings[3:] == ["stop watch", "stop renew", "stop turn"]
    assert harness.closed == 1
