"""Claims that their callers could not give back, one turn after the other in virtual time: all leave in the end."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import ANY

import pytest

from core.watchdog_harness import Harness, Hold
from dibs.core.give_backs import BATCH, MOST
from dibs.core.rule import Claim
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import step


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_a_silent_store_does_not_keep_the_lane_from_other_work(harness: Harness) -> None:
    """Attempts that take longer than the pause between them."""

    def slowly(claim: Claim) -> StoreError:
        harness.time += 1.0
        return StoreUnavailable("silent")

    harness.left = slowly
    harness.watchdog.abandon(harness.grant())
    harness.turn()
    assert harness.verbs() == ["give back"]


def test_a_weight_that_could_not_be_lowered_is_tried_again(harness: Harness) -> None:
    grant = harness.grant(b"a", Hold(weight=1))
    assert grant.claim is not None
    grant.claim.weight = 3
    harness.watchdog.lighten_later(grant)
    harness.error = StoreUnavailable("silent")
    harness.turn()
    assert (harness.verbs(), harness.leave_pause) == (["lighten"], pytest.approx(0.2))
    harness.error = None
    harness.turn()
    assert (harness.verbs(), harness.leave_pause) == (["lighten"], None)


def test_a_leave_is_repeated_until_it_is_answered_or_the_claim_is_over(harness: Harness) -> None:
    grant = harness.grant()
    harness.watchdog.abandon(grant)
    idle = harness.watchdog.give_backs.when_idle(harness.runtime)
    harness.error = StoreUnavailable("silent")
    harness.turn()
    assert (harness.verbs(), harness.leave_pause) == (["give back"], pytest.approx(0.2))
    harness.turn(1000.1)
    assert harness.verbs() == []
    harness.turn(1029.0)
    assert harness.verbs() == ["give back"]
    assert not idle.is_set(), "it could still be given back"
    harness.turn(1030.0)
    assert harness.leave_pause is None, "nothing is left of it in the store"
    assert idle.is_set()


def test_each_of_a_batch_of_leaves_is_repeated_as_it_was_answered(harness: Harness) -> None:
    for id in (b"done", b"silent", b"refused"):
        harness.watchdog.abandon(harness.grant(id))
    answers = {b"silent": StoreUnavailable("silent"), b"refused": StoreError("no rights")}
    harness.left = lambda claim: answers.get(claim.id)
    idle = harness.watchdog.give_backs.when_idle(harness.runtime)
    harness.turn()
    assert harness.asked[0][1] == [b"done", b"silent", b"refused"]
    assert not idle.is_set()
    harness.left = lambda claim: None
    harness.turn(1000.2)
    assert harness.asked[0][1] == [b"silent"]
    assert idle.is_set(), "nobody waits for what is refused"
    harness.turn(1004.9)
    assert harness.verbs() == []
    harness.turn(1005.0)
    assert harness.asked[0][1] == [b"refused"]


def test_many_leave_in_few_steps(harness: Harness) -> None:
    for number in range(2 * BATCH + 1):
        harness.watchdog.abandon(harness.grant(str(number).encode()))
    harness.turn()
    assert [len(ids) for _, ids, _ in harness.asked] == [BATCH, BATCH, 1]


def test_a_backlog_of_leaves_makes_new_acquires_wait(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    harness.error = StoreUnavailable("silent")
    for number in range(MOST):
        harness.watchdog.abandon(harness.grant(str(number).encode()))
    harness.turn()
    assert harness.watchdog.give_backs.backlog() == MOST
    waits: list[float] = []

    class Room:
        def set(self) -> None: ...

        async def wait(self, until: float) -> bool:
            waits.append(until - harness.time)
            harness.error = None
            harness.turn(harness.time + 0.5)
            return True

    step(harness.watchdog.give_backs.room(SimpleNamespace(event=Room), harness.time + 60))  # type: ignore[arg-type]
    assert waits == [1.0]
    assert harness.watchdog.give_backs.backlog() == 0
    assert caplog.messages == [
        "desk does not answer: silent",
        f"claims to remove: {MOST}; new acquires wait until there are fewer",
        "desk answers again, after 0.5 s",
        ANY,
    ]


def test_who_finds_no_room_in_time_is_told_why(harness: Harness) -> None:
    for number in range(MOST):
        harness.watchdog.abandon(harness.grant(str(number).encode()))
    with pytest.raises(StoreUnavailable, match=f"{MOST} abandoned claims"):
        step(harness.watchdog.give_backs.room(harness.runtime, harness.time))


def test_where_claims_do_not_expire_a_leave_is_repeated_for_ever(harness: Harness) -> None:
    harness.watchdog.give_backs._claims_expire = False
    harness.watchdog.abandon(harness.grant())
    harness.error = StoreError("no rights")
    for at in range(1000, 2000, 100):
        harness.turn(float(at))
        assert harness.verbs() == ["give back"]
