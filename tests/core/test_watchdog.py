"""The watchdog's turns, one by one, in virtual time: what is renewed when, what is lost, what is given back."""

from __future__ import annotations

import threading
from unittest.mock import ANY

import pytest

from core.watchdog_desk import LEASE, Desk, Hold, held
from dibs.core.deadline import FOREVER
from dibs.core.give_backs import BATCH
from dibs.core.grants import ASKING, HELD, LOST, OVER, WAITS, Grant
from dibs.core.queue import LOOK, YOURS, Replaced
from dibs.core.rule import Claim, Standing
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import step


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_hold_is_renewed_after_a_third_of_its_lease(desk: Desk) -> None:
    grant = desk.grant()
    assert grant.until == pytest.approx(1027.0)
    assert desk.turn() == 1.0, "it looks again each second"
    assert desk.watchdog.wakes_at == 1001.0
    assert desk.turn(1009.4) == pytest.approx(0.6)
    assert desk.verbs() == []
    desk.turn(1010.0)
    assert desk.asked == [("renew", [grant.claim], pytest.approx(5.0))], "an attempt takes a sixth of the lease"
    assert (grant.until, grant.renew_at) == (pytest.approx(1037.0), pytest.approx(1020.0))


def test_what_a_message_granted_is_renewed_early(desk: Desk) -> None:
    """It runs on the waiting lease, and no answer has said more yet."""
    grant = desk.grant()
    grant.until, grant.renew_at = 1010.0, 1009.0
    grant.granted(1000.0)
    assert grant.renew_at == 1005.0
    grant.renew_at = 1003.0
    grant.granted(1000.0)
    assert grant.renew_at == 1003.0


def test_who_is_due_within_half_a_second_goes_with_the_others(desk: Desk) -> None:
    first = desk.grant(b"a")
    desk.time += 0.5
    second = desk.grant(b"b")
    desk.time += 0.1
    third = desk.grant(b"c")
    desk.turn(1010.0)
    assert desk.asked[0][1] == [first.claim, second.claim]
    assert third.renew_at == pytest.approx(1010.6)


def test_many_are_renewed_in_several_steps_each_as_quickly_as_its_own_leases_need(desk: Desk) -> None:
    for number in range(BATCH + 1):
        desk.grant(str(number).encode())
    for number in range(3):
        desk.grant(f"short {number}".encode(), lease=3.0)
    for grant in desk.watchdog.renewing.values():
        desk.change(grant, renew_at=desk.time)
    desk.turn()
    asked = [(len(claims), round(left, 3)) for _, claims, left in desk.asked]
    assert asked == [(3, 0.5), (BATCH, 5.0), (1, 5.0)]


def test_holders_are_renewed_apart_from_waiters(desk: Desk) -> None:
    waiter, holder = desk.grant(b"a", lease=3.0), desk.grant(b"b", lease=3.0)
    waiter.state = WAITS
    desk.turn(1001.0)
    assert [claims for _, claims, _ in desk.asked] == [[holder.claim], [waiter.claim]]


def test_an_attempt_lasts_at_least_as_long_as_an_answer_takes(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.trip = 0.25
    desk.grant(lease=1.2)
    desk.turn(1000.4)
    assert desk.asked == [("renew", [ANY], pytest.approx(0.5))]
    desk.turn(1000.8)
    assert caplog.messages == [
        "a lease of 1.2 s is too short: a reply of the store takes up to 0.25 s; use at least 1.5 s"
    ]


def test_a_grant_is_looked_at_only_when_it_is_due(desk: Desk) -> None:
    """Finding what is due must not depend on how much is held."""
    many = [desk.grant(str(number).encode(), hold := Hold()) for number in range(2000)]
    desk.turn()
    hold.is_wanted = False
    looks = []
    for grant in many:
        grant.holds[0].wanted = lambda: looks.append(1) or True  # type: ignore[method-assign, func-returns-value]
    desk.turn(1005.0)
    assert not looks
    desk.grant(b"another")
    desk.turn(1006.0)
    assert not looks


def test_what_ended_is_forgotten(desk: Desk) -> None:
    for number in range(4000):
        grant = desk.grant(str(number).encode(), lease=1e6)
        if number % 100 == 0:
            desk.turn()
        desk.watchdog.take(grant)
    desk.turn()
    for grant in [desk.grant(str(number).encode(), lease=1e6) for number in range(4000)]:
        desk.turn()
        desk.watchdog.take(grant)
    desk.turn()
    assert len(desk.watchdog._agenda) < 2000
    assert not desk.watchdog.unsorted


def test_a_renewal_that_fails_is_tried_again_soon(desk: Desk) -> None:
    grant, short = desk.grant(b"a"), desk.grant(b"b", lease=6.0)
    desk.error = StoreUnavailable("silent")
    assert desk.turn(1002.0) == pytest.approx(0.5), "a twelfth of the lease"
    assert (grant.renew_at, short.renew_at) == (pytest.approx(1010.0), pytest.approx(1002.5))
    desk.error, desk.standing = None, lambda one: StoreUnavailable("silent") if one is grant else held(6.0)
    desk.change(grant, renew_at=1003.0)
    desk.change(short, renew_at=1003.0)
    desk.turn(1003.0)
    assert (grant.renew_at, short.renew_at) == (pytest.approx(1004.0), pytest.approx(1005.0)), "each as it was answered"


def test_past_its_deadline_a_hold_is_lost_and_given_back(desk: Desk) -> None:
    hold = Hold()
    grant = desk.grant(b"a", hold)
    grant.watchers.append(ended := threading.Event())
    desk.turn(1027.0)
    assert (grant.state, hold.told, ended.is_set()) == (LOST, 1, True)
    assert desk.asked == [("give back", [b"a"], pytest.approx(0.5))]
    assert not desk.watchdog.renewing


@pytest.mark.parametrize(("standing", "back"), [(None, []), (Standing(7, False, LEASE, FOREVER, False), ["give back"])])
def test_what_the_store_says_is_gone_or_behind_another_is_lost(
    desk: Desk, standing: Standing | None, back: list[str]
) -> None:
    grant = desk.grant(b"a", hold := Hold())
    desk.standing = lambda _: standing
    desk.turn(1010.0)
    assert (grant.state, hold.told) == (LOST, 1)
    assert desk.verbs() == ["renew", *back]


def test_an_answer_that_comes_after_the_deadline_renews_nothing(desk: Desk) -> None:
    grant = desk.grant()

    def late(_: Grant) -> Standing:
        desk.time = 1028.0
        return held()

    desk.standing = late
    desk.turn(1010.0)
    assert grant.state is LOST
    assert grant.until == pytest.approx(1027.0)


def test_what_waits_is_woken_by_what_its_renewal_says(desk: Desk) -> None:
    grant = desk.grant()
    desk.change(grant, state=WAITS, renew_at=1003.0)
    desk.standing = lambda _: Standing(7, False, 5.0, 1.0, False)
    desk.turn(1003.0)
    assert desk.delivered == []
    assert grant.renew_at == 1004.0, "somebody's end ahead of it comes first"
    desk.standing = lambda _: held()
    desk.turn(1004.0)
    assert desk.delivered == [(b"a", YOURS.value)]
    desk.standing = lambda _: None
    desk.change(grant, renew_at=1006.0)
    desk.turn(1006.0)
    assert desk.delivered[1:] == [(b"a", LOOK.value)]
    assert (grant.state, grant.renew_at) == (WAITS, FOREVER)


def test_what_asks_anew_after_it_was_found_due_is_not_renewed(desk: Desk) -> None:
    """Nothing stands for it yet: the store would say that it is gone."""
    grant = desk.grant()
    desk.time = 1010.0
    step(desk.watchdog.watch())
    grant.state = ASKING
    step(desk.watchdog.renew())
    assert desk.verbs() == []


def test_a_renewal_that_fails_after_the_grant_renews_nothing_that_is_not_to_be_renewed(desk: Desk) -> None:
    """It was sent while the claim waited."""
    grant = desk.grant(renew=False)
    desk.change(grant, state=WAITS, renew_at=1003.0)
    desk.time = 1003.0
    step(desk.watchdog.watch())

    def granted(_: Grant) -> StoreUnavailable:
        grant.granted(desk.time)
        return StoreUnavailable("silent")

    desk.standing = granted
    desk.turn()
    assert (grant.state, grant.renew_at) == (HELD, FOREVER)


def test_a_grant_that_asks_anew_is_due_though_the_renewal_of_its_old_claim_is_under_way(desk: Desk) -> None:
    grant = desk.grant()
    grant.in_flight, grant.renew_at = grant.claim, 1002.0
    assert grant.due() == grant.until
    grant.ask_as(Claim(b"b", "x", "mutex", 1, 1, LEASE, 10.0, desk.time + 5.0, b"me", "{}"))
    grant.answer(held(), desk.time)
    grant.state = WAITS
    assert grant.due() == pytest.approx(1010.0)


def test_what_nobody_wants_is_given_back_and_not_lost(desk: Desk) -> None:
    held_one, asking = desk.grant(b"a", one := Hold()), desk.grant(b"b", other := Hold())
    asking.state = ASKING
    desk.turn()
    one.is_wanted = other.is_wanted = False
    desk.turn(1010.0)
    assert (held_one.state, held_one.dropped, asking.state, one.told) == (OVER, True, OVER, 0)
    assert desk.asked == [("give back", ANY, pytest.approx(0.5))]
    assert sorted(desk.asked[0][1]) == [b"a", b"b"]


def test_the_first_of_several_holds_ends_by_itself(desk: Desk) -> None:
    grant = desk.grant(b"a", heavy := Hold(1005.0, weight=3), light := Hold(1020.0))
    assert grant.claim is not None
    grant.claim.weight = 3
    desk.turn(1005.0)
    assert (heavy.told, light.told, grant.state, grant.ends_at) == (1, 0, HELD, 1020.0)
    assert desk.asked == [("lighten", 1, pytest.approx(0.5))]
    grant.claim.weight = 1
    desk.watchdog.lighten_later(grant)
    desk.turn(1006.0)
    assert desk.verbs() == [], "it is as light already"
    desk.turn(1020.0)
    assert (light.told, grant.state) == (1, LOST)


def test_a_deadline_is_seen_beside_a_renewal_that_hangs(desk: Desk) -> None:
    grant = desk.grant()
    step(desk.watchdog.watch())
    desk.time = 1027.0
    step(desk.watchdog.watch())
    assert grant.state is LOST


def test_another_store_in_its_place_has_lost_everything(desk: Desk) -> None:
    grant, waits = desk.grant(b"a", hold := Hold()), desk.grant(b"b")
    waits.state = WAITS
    desk.watchdog.heard(StoreError("no"))
    assert grant.state is HELD
    desk.watchdog.heard(Replaced("another file"))
    assert (grant.state, hold.told, waits.state) == (LOST, 1, WAITS)
    assert desk.delivered == [(b"b", LOOK.value)]
    assert desk.turn(1001.0) is not None
    assert desk.verbs() == [], "what is gone is not given back"


def test_news_are_looked_at_in_the_next_turn(desk: Desk) -> None:
    grant, fixed = desk.grant(b"a"), desk.grant(b"b", renew=False)
    desk.turn()
    desk.rings.clear()
    for id in (b"a", b"b", b"nobody's"):
        desk.watchdog.look_at(id)
    assert (grant.news, fixed.news, desk.rings) == (True, False, ["watch"])
    desk.turn(1001.0)
    assert desk.asked[0][1] == [grant.claim]
    assert not grant.news


def test_the_watch_is_rung_only_for_what_comes_before_it_wakes(desk: Desk) -> None:
    grant = desk.grant()
    assert desk.rings == ["watch", "renew"], "the second one connects"
    desk.turn()
    desk.rings.clear()
    desk.watchdog.schedule(grant)
    assert desk.rings == []
    for field in ("renew_at", "until", "ends_at"):
        before = getattr(grant, field)
        desk.change(grant, **{field: desk.watchdog.wakes_at - 0.1})
        setattr(grant, field, before)
    assert desk.rings == ["watch"] * 3
    desk.watchdog.stop()
    assert desk.rings[3:] == ["stop watch", "stop renew", "stop turn"]
    assert desk.closed == 1
