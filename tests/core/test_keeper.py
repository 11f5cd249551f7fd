"""The watchdog's turns, one by one, in virtual time: what is renewed when, what is lost, what is given back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dibs.core.deadline import FOREVER
from dibs.core.grant import ASKING, HELD, LOST, OVER, WAITS, Grant, Request
from dibs.core.keeper import _BATCH, Keeper
from dibs.core.line import LOOK, YOURS, Replaced
from dibs.core.rule import Claim, Standing
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import step

LEASE = 30.0


class Hold:
    """As much of a hold as the watchdog looks at."""

    def __init__(self, ends_at: float = FOREVER, weight: int = 1) -> None:
        self.ends_at, self.weight = ends_at, weight
        self.is_wanted, self.over, self.told = True, False, 0

    def wanted(self) -> bool:
        return self.is_wanted

    def tell_lost(self) -> None:
        self.told += 1


class Desk:
    """The watchdog's clock, workers and way to the store: answers are put down before, questions are noted."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.rings: list[str] = []
        self.delivered: list[tuple[Any, ...]] = []
        self.asked: list[tuple[str, Any, float]] = []
        self.closed = 0
        self.standing: Callable[[Grant], Standing | StoreUnavailable | None] = lambda grant: held()
        self.error: StoreError | None = None
        inbox = SimpleNamespace(forget=lambda _: None, deliver=lambda *what: self.delivered.append(what))
        runtime: Any = SimpleNamespace(now=lambda: self.time, worker=self._worker, event=threading.Event)
        me: Any = SimpleNamespace(inbox=inbox)
        self.keeper = Keeper(runtime, me, lambda: self, threading.Lock())
        self.runtime = runtime

    def _worker(self, work: Callable[..., Any]) -> Any:
        name = work.__name__
        return SimpleNamespace(ring=lambda: self.rings.append(name), stop=lambda: self.rings.append(f"stop {name}"))

    async def renew(self, grants: Sequence[Grant], until: float) -> list[Any]:
        self._ask("renew", [grant.claim for grant in grants], until)
        return [self.standing(grant) for grant in grants]

    async def give_back(self, claim: Claim, answered: bool, until: float) -> None:
        self._ask("give back", claim.id, until)

    async def amend(self, grant: Grant, weight: int, until: float) -> None:
        self._ask("amend", weight, until)

    def close(self) -> None:
        self.closed += 1

    def _ask(self, verb: str, what: Any, until: float) -> None:
        self.asked.append((verb, what, until - self.time))
        if self.error is not None:
            raise self.error

    def grant(self, id: bytes = b"a", *holds: Hold, lease: float = LEASE, renew: bool = True) -> Grant:
        """One that is held since now, by these."""
        grant = Grant(Request("x", "mutex", 1, lease, renew, True))
        grant.ask_as(Claim(id, "x", "mutex", 1, 1, lease, min(lease, 10.0), self.time + 5.0, b"me", "{}"))
        grant.holds = list(holds or (Hold(),))  # type: ignore[arg-type]
        grant.ends_at = min(hold.ends_at for hold in grant.holds)
        self.keeper.adopt(grant)
        grant.answer(Standing(7, True, lease, FOREVER, False), self.time)
        grant.granted(self.time)
        return grant

    def turn(self, at: float | None = None) -> float | None:
        self.time = self.time if at is None else at
        self.asked.clear()
        return step(self.keeper.turn())

    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.asked]


def held(left: float = LEASE) -> Standing:
    return Standing(7, True, left, FOREVER, False)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_hold_is_renewed_after_a_third_of_its_lease(desk: Desk) -> None:
    grant = desk.grant()
    assert grant.until == pytest.approx(1027.0)
    assert desk.turn() == 1.0, "it looks again each second"
    assert desk.keeper.wakes_at == 1001.0
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


def test_many_are_renewed_in_several_steps_and_the_shortest_lease_counts(desk: Desk) -> None:
    for number in range(_BATCH + 1):
        desk.grant(str(number).encode(), lease=3.0 if number == 5 else LEASE)
    for grant in desk.keeper.renewing.values():
        grant.renew_at = desk.time
    desk.turn()
    assert [(len(claims), round(left, 3)) for _, claims, left in desk.asked] == [(_BATCH, 0.5), (1, 5.0)]


def test_a_renewal_that_fails_is_tried_again_soon(desk: Desk) -> None:
    grant, short = desk.grant(b"a"), desk.grant(b"b", lease=6.0)
    desk.error = StoreUnavailable("silent")
    assert desk.turn(1002.0) == pytest.approx(0.5), "a twelfth of the lease"
    assert (grant.renew_at, short.renew_at) == (pytest.approx(1010.0), pytest.approx(1002.5))
    short.renew_at = grant.renew_at = FOREVER
    desk.error, desk.standing = None, lambda one: StoreUnavailable("silent") if one is grant else held(6.0)
    grant.renew_at = short.renew_at = 1003.0
    desk.turn(1003.0)
    assert (grant.renew_at, short.renew_at) == (pytest.approx(1003.5), pytest.approx(1005.0)), "each as it was answered"


def test_past_its_deadline_a_hold_is_lost_and_given_back(desk: Desk) -> None:
    hold = Hold()
    grant = desk.grant(b"a", hold)
    grant.watchers.append(ended := threading.Event())
    desk.turn(1027.0)
    assert (grant.state, hold.told, ended.is_set()) == (LOST, 1, True)
    assert desk.asked == [("give back", b"a", pytest.approx(0.5))]
    assert not desk.keeper.renewing


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
    grant.state, grant.renew_at = WAITS, 1003.0
    desk.standing = lambda _: Standing(7, False, 5.0, 1.0, False)
    desk.turn(1003.0)
    assert desk.delivered == []
    assert grant.renew_at == 1004.0, "somebody's end ahead of it comes first"
    desk.standing = lambda _: held()
    desk.turn(1004.0)
    assert desk.delivered == [(b"a", YOURS.value)]
    grant.renew_at, desk.standing = 1006.0, lambda _: None
    desk.turn(1006.0)
    assert desk.delivered[1:] == [(b"a", LOOK.value)]
    assert (grant.state, grant.renew_at) == (WAITS, FOREVER)


def test_what_nobody_wants_is_given_back_and_not_lost(desk: Desk) -> None:
    held_one, asking = desk.grant(b"a", one := Hold()), desk.grant(b"b", other := Hold())
    asking.state = ASKING
    one.is_wanted = other.is_wanted = False
    desk.turn(1010.0)
    assert (held_one.state, held_one.dropped, asking.state, one.told) == (OVER, True, OVER, 0)
    assert sorted(id for _, id, _ in desk.asked) == [b"a", b"b"]


def test_the_first_of_several_holds_ends_by_itself(desk: Desk) -> None:
    grant = desk.grant(b"a", heavy := Hold(1005.0, weight=3), light := Hold(1020.0))
    assert grant.claim is not None
    grant.claim.weight = 3
    desk.turn(1005.0)
    assert (heavy.told, light.told, grant.state, grant.ends_at) == (1, 0, HELD, 1020.0)
    assert desk.asked == [("amend", 1, pytest.approx(0.5))]
    grant.claim.weight = 1
    desk.keeper.settle(grant)
    desk.turn(1006.0)
    assert desk.verbs() == [], "it is as light already"
    desk.turn(1020.0)
    assert (light.told, grant.state) == (1, LOST)


def test_a_deadline_is_seen_beside_a_renewal_that_hangs(desk: Desk) -> None:
    grant = desk.grant()
    assert step(desk.keeper.watch()) is None, "nobody wants to be told"
    grant.watched = True
    assert step(desk.keeper.watch()) == pytest.approx(27.0)
    desk.time = 1027.0
    assert step(desk.keeper.watch()) == 0.0
    assert grant.state is LOST


def test_a_leave_is_repeated_until_it_is_answered_or_the_claim_is_over(desk: Desk) -> None:
    grant = desk.grant()
    desk.keeper.abandon(grant)
    idle = desk.keeper.when_idle(desk.runtime)
    desk.error = StoreUnavailable("silent")
    assert desk.turn() == pytest.approx(0.2)
    assert desk.turn(1029.0) is not None
    assert desk.verbs() == ["give back"]
    assert not idle.is_set(), "it could still be given back"
    desk.turn(1030.0)
    assert desk.turn(1031.0) is None, "nothing is left of it in the store"
    assert idle.is_set()


def test_a_leave_that_is_refused_is_not_repeated_at_once(desk: Desk) -> None:
    desk.keeper.abandon(desk.grant())
    idle = desk.keeper.when_idle(desk.runtime)
    desk.error = StoreError("no rights")
    desk.turn()
    assert idle.is_set(), "nobody waits for that"
    desk.turn(1004.9)
    assert desk.verbs() == []
    desk.error = None
    desk.turn(1005.0)
    assert desk.verbs() == ["give back"]
    assert desk.turn() is None


def test_another_store_in_its_place_has_lost_everything(desk: Desk) -> None:
    grant, waits = desk.grant(b"a", hold := Hold()), desk.grant(b"b")
    waits.state = WAITS
    desk.keeper.heard(StoreError("no"))
    assert grant.state is HELD
    desk.keeper.heard(Replaced("another file"))
    assert (grant.state, hold.told, waits.state) == (LOST, 1, WAITS)
    assert desk.delivered == [(b"b", LOOK.value)]
    assert desk.turn(1001.0) is not None
    assert desk.verbs() == [], "what is gone is not given back"


def test_news_are_looked_at_in_the_next_turn(desk: Desk) -> None:
    grant, fixed = desk.grant(b"a"), desk.grant(b"b", renew=False)
    desk.rings.clear()
    for id in (b"a", b"b", b"nobody's"):
        desk.keeper.look_at(id)
    assert (grant.news, fixed.news, desk.rings) == (True, False, ["turn"])
    desk.turn(1001.0)
    assert desk.asked[0][1] == [grant.claim]
    assert not grant.news


def test_a_worker_is_rung_only_for_what_comes_before_it_wakes(desk: Desk) -> None:
    grant = desk.grant()
    desk.turn()
    desk.rings.clear()
    desk.keeper.schedule(grant)
    assert desk.rings == []
    grant.watched = True
    for field in ("renew_at", "until", "ends_at"):
        before = getattr(grant, field)
        setattr(grant, field, desk.keeper.wakes_at - 0.1)
        desk.keeper.schedule(grant)
        setattr(grant, field, before)
    assert desk.rings == ["turn", "watch"] * 3
    desk.keeper.stop()
    assert desk.rings[6:] == ["stop turn", "stop watch"]
    assert desk.closed == 0, "it was never opened"
    desk.turn(1010.0)
    desk.keeper.stop()
    assert desk.closed == 1
