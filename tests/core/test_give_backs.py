"""Claims that their callers could not give back, one turn after the other in virtual time: all leave in the end."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import ANY

import pytest

from core.watchdog_desk import Desk, Hold
from dibs.core.give_backs import BATCH, MOST
from dibs.core.rule import Claim
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import step


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_silent_store_does_not_keep_the_lane_from_other_work(desk: Desk) -> None:
    """Attempts that take longer than the pause between them."""

    def slowly(claim: Claim) -> StoreError:
        desk.time += 1.0
        return StoreUnavailable("silent")

    desk.left = slowly
    desk.watchdog.abandon(desk.grant())
    desk.turn()
    assert desk.verbs() == ["give back"]


def test_a_weight_that_could_not_be_lowered_is_tried_again(desk: Desk) -> None:
    grant = desk.grant(b"a", Hold(weight=1))
    assert grant.claim is not None
    grant.claim.weight = 3
    desk.watchdog.lighten_later(grant)
    desk.error = StoreUnavailable("silent")
    desk.turn()
    assert (desk.verbs(), desk.leave_pause) == (["lighten"], pytest.approx(0.2))
    desk.error = None
    desk.turn()
    assert (desk.verbs(), desk.leave_pause) == (["lighten"], None)


def test_a_leave_is_repeated_until_it_is_answered_or_the_claim_is_over(desk: Desk) -> None:
    grant = desk.grant()
    desk.watchdog.abandon(grant)
    idle = desk.watchdog.give_backs.when_idle(desk.runtime)
    desk.error = StoreUnavailable("silent")
    desk.turn()
    assert (desk.verbs(), desk.leave_pause) == (["give back"], pytest.approx(0.2))
    desk.turn(1000.1)
    assert desk.verbs() == []
    desk.turn(1029.0)
    assert desk.verbs() == ["give back"]
    assert not idle.is_set(), "it could still be given back"
    desk.turn(1030.0)
    assert desk.leave_pause is None, "nothing is left of it in the store"
    assert idle.is_set()


def test_each_of_a_batch_of_leaves_is_repeated_as_it_was_answered(desk: Desk) -> None:
    for id in (b"done", b"silent", b"refused"):
        desk.watchdog.abandon(desk.grant(id))
    answers = {b"silent": StoreUnavailable("silent"), b"refused": StoreError("no rights")}
    desk.left = lambda claim: answers.get(claim.id)
    idle = desk.watchdog.give_backs.when_idle(desk.runtime)
    desk.turn()
    assert desk.asked[0][1] == [b"done", b"silent", b"refused"]
    assert not idle.is_set()
    desk.left = lambda claim: None
    desk.turn(1000.2)
    assert desk.asked[0][1] == [b"silent"]
    assert idle.is_set(), "nobody waits for what is refused"
    desk.turn(1004.9)
    assert desk.verbs() == []
    desk.turn(1005.0)
    assert desk.asked[0][1] == [b"refused"]


def test_many_leave_in_few_steps(desk: Desk) -> None:
    for number in range(2 * BATCH + 1):
        desk.watchdog.abandon(desk.grant(str(number).encode()))
    desk.turn()
    assert [len(ids) for _, ids, _ in desk.asked] == [BATCH, BATCH, 1]


def test_a_backlog_of_leaves_makes_new_acquires_wait(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    desk.error = StoreUnavailable("silent")
    for number in range(MOST):
        desk.watchdog.abandon(desk.grant(str(number).encode()))
    desk.turn()
    assert desk.watchdog.give_backs.backlog() == MOST
    waits: list[float] = []

    class Room:
        def set(self) -> None: ...

        async def wait(self, until: float) -> bool:
            waits.append(until - desk.time)
            desk.error = None
            desk.turn(desk.time + 0.5)
            return True

    step(desk.watchdog.give_backs.room(SimpleNamespace(event=Room), desk.time + 60))  # type: ignore[arg-type]
    assert waits == [1.0]
    assert desk.watchdog.give_backs.backlog() == 0
    assert caplog.messages == [
        "desk does not answer: silent",
        f"claims to remove: {MOST}; new acquires wait until there are fewer",
        "desk answers again, after 0.5 s",
        ANY,
    ]


def test_who_finds_no_room_in_time_is_told_why(desk: Desk) -> None:
    for number in range(MOST):
        desk.watchdog.abandon(desk.grant(str(number).encode()))
    with pytest.raises(StoreUnavailable, match=f"{MOST} abandoned claims"):
        step(desk.watchdog.give_backs.room(desk.runtime, desk.time))


def test_where_claims_do_not_expire_a_leave_is_repeated_for_ever(desk: Desk) -> None:
    desk.watchdog.give_backs._claims_expire = False
    desk.watchdog.abandon(desk.grant())
    desk.error = StoreError("no rights")
    for at in range(1000, 2000, 100):
        desk.turn(float(at))
        assert desk.verbs() == ["give back"]
