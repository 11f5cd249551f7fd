"""The members of a quorum: who is asked, who is left out and for how long, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dibs.core.queue import Member
from dibs.core.quorum.members import Health, Members, Seat
from dibs.core.quorum.votes import dangers, promises
from dibs.core.runtime import Job
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding
from dibs.runtime.threads import step


class Clock:
    """Jobs are done one after the other, until that is enough; time passes by hand."""

    def __init__(self) -> None:
        self.time = 100.0
        self.closed = 0
        self.until = 0.0
        """The end of the last requests."""

    def now(self) -> float:
        return self.time

    def task_group(self, count: int) -> Any:
        return self

    async def gather(self, jobs: Sequence[Job | None], until: float, enough: Callable[[], bool]) -> None:
        self.until = until
        for job in jobs:
            if job is not None and not enough():
                await job()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


def members(clock: Clock, count: int, round_trip: float = 0.0) -> Members:
    queues = [SimpleNamespace(close=clock.close, round_trip=lambda: round_trip) for _ in range(count)]
    members = [Member(f"m{number}", queue) for number, queue in enumerate(queues)]  # type: ignore[arg-type]
    return Members(members, clock, {})  # type: ignore[arg-type]


def test_a_member_that_may_have_lost_a_vote_has_none_until_that_is_over() -> None:
    seat = Health("m")
    assert not seat.sits_out(settled=30.5, guard=30.0, sent_at=99.5, now=100.0)
    assert seat.votes_at == 0.0
    assert seat.sits_out(settled=30.4, guard=30.0, sent_at=99.5, now=100.0), "it started after the vote was asked for"
    assert seat.sits_out(settled=10.0, guard=30.0, sent_at=100.0, now=100.0)
    assert seat.votes_at == 120.0
    assert "cannot vote for 20 s more" in (seat.excuse(100.0) or "")
    assert seat.excuse(120.0) is None


def test_a_member_that_failed_is_left_out_for_a_second(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dibs")
    quorum = members(clock, 3)
    first = quorum.seats[0].health
    first.failed("silent", 100.0)
    first.failed("silent still", 100.0)
    assert (first.back_at, first.excuse(100.0)) == (101.0, "silent still")
    assert quorum.electors() == quorum.seats[1:]
    clock.time = 101.0
    assert quorum.electors() == quorum.seats
    assert quorum.electors() == quorum.seats[1:], "one ballot is enough to find out whether it is back"
    assert quorum.prompt([0, 1]) == quorum.seats[:2], "unless there is no majority without it"
    assert [record.getMessage() for record in caplog.records] == ["member m0 is left out: silent"]
    caplog.clear()
    for _ in range(2):
        first.heard()
        assert quorum.electors() == quorum.seats, "it is tried again at once"
    first.failed("far", 101.0)
    for _ in range(2):
        first.heard()
    assert (caplog.messages, first.trouble) == ([], "far"), "a member that is far now and then answers in time"
    first.heard()
    assert caplog.messages == ["member m0 answers again"]
    assert (first.back_at, first.trouble) == (0.0, None)
    first.heard()
    assert len(caplog.records) == 1


def test_if_too_few_are_left_the_silent_are_asked_and_the_voteless_are_not(clock: Clock) -> None:
    quorum = members(clock, 5)
    assert (quorum.needed, quorum.spare) == (3, 2)
    for seat in quorum.seats[:2]:
        seat.failed("silent", 100.0)
    assert quorum.electors() == quorum.seats[2:]
    quorum.seats[2].health.votes_at = 100.5
    assert quorum.electors() == [*quorum.seats[:2], *quorum.seats[3:]]


def test_answers_come_by_number_and_who_gave_none_is_left_out(clock: Clock) -> None:
    quorum = members(clock, 5)

    async def number(seat: Seat) -> int:
        if seat.number == 1:
            raise StoreError("no rights")
        return seat.number * 10

    asked = [seat for seat in quorum.seats if seat.number != 2]
    assert step(quorum.ask(number, asked, 101.0, lambda answers: len(answers) == 2)) == {0: 0, 3: 30}
    assert [seat.health.trouble for seat in quorum.seats] == [None, "no rights", None, None, "no answer in time"]


def test_all_are_asked_until_a_majority_is_clear(clock: Clock) -> None:
    quorum = members(clock, 5)
    quorum.seats[4].failed("silent", 100.0)
    told: list[tuple[int, int]] = []

    def is_clear(answers: Any, missing: int) -> bool:
        told.append((len(answers), missing))
        return len(answers) == 4

    async def number(seat: Seat, end: float) -> int:
        return seat.number

    assert len(step(quorum.ask_all(number, 101.0, is_clear))) == 4
    assert told == [(3, 1), (4, 0)], "who is known to be silent is not missed"
    assert len(step(quorum.ask_all(number, 101.0))) == quorum.needed

    async def few(seat: Seat, end: float) -> int:
        if seat.number:
            raise StoreUnavailable("silent")
        return 0

    with pytest.raises(StoreUnavailable, match=r"1 of 5 members answered, 3 are needed \(m1: silent; .*m4: silent\)"):
        step(quorum.ask_all(few, 101.0))
    quorum.check(3)
    with pytest.raises(StoreUnavailable, match="2 of 5 members answered"):
        quorum.check(2)


@pytest.mark.parametrize(
    ("round_trip", "until", "end"), [(0.0, 100.001, 100.05), (0.2, 100.1, 100.4), (0.2, 105, 105), (9, 100, 103)]
)
def test_a_try_that_begins_just_before_the_deadline_gives_members_time(
    clock: Clock, round_trip: float, until: float, end: float
) -> None:
    """A healthy member that had a millisecond was backed off, and counted as silent in the error."""
    ends = []

    async def ask(seat: Seat, end: float) -> None:
        ends.append(end)

    step(members(clock, 3, round_trip).ask_all(ask, until))
    assert [*ends, clock.until] == pytest.approx([end, end, end])


def test_a_store_that_is_named_twice_is_refused(clock: Clock) -> None:
    quorum = members(clock, 3)
    quorum.refuse_twins()
    for seat, identity in zip(quorum.seats, "aba", strict=True):
        seat.identity = identity
    with pytest.raises(StoreError, match="the same store: m0 and m2"):
        quorum.refuse_twins()
    quorum.close()
    assert clock.closed == 4, "the hands and each member"


def test_what_the_doctor_says_of_a_quorum(clock: Clock) -> None:
    quorum = members(clock, 3)

    async def doctor(until: float) -> list[Finding]:
        return [Finding("about", "Redis 7"), Finding("danger", "full", "make room"), Finding("promise", "fine")]

    async def tell(time: float) -> float:
        clock.time += 0.5
        return time

    for seat, time in zip(quorum.seats, (5.0, 5.0, 7.6), strict=True):
        seat.queue = SimpleNamespace(doctor=doctor, clock=lambda until, time=time: tell(time))  # type: ignore[assignment]
    said = step(quorum.doctor(30.0, 101.0))
    assert [finding.what for finding in said if finding.level in ("about", "danger")] == [
        "a quorum of 3, 2 decide",
        "Redis 7",
        "the clocks of the members differ by 1 s",
        "every member: full",
    ]


def test_what_is_promised_and_what_is_dangerous() -> None:
    texts = [finding.what for finding in promises(5, 2, 30.0)]
    assert any("keeps working with any 2 of 5 members down" in text for text in texts)
    assert any("cannot vote for 30 s" in text for text in texts)
    assert any("votes at once (guard=0)" in finding.what for finding in promises(5, 2, 0.0))
    assert dangers(3, 2, 3, [], 0.99) == []
    assert [finding.what for finding in dangers(2, 2, 2, [], 1.0)] == [
        "none of 2 members may be down", "the clocks of the members differ by 1 s",
    ]  # fmt: skip
    assert [finding.level for finding in dangers(4, 3, 4, [], 0.0)] == ["note"]
    for answered, said in (
        (2, "2 of 3 members answer, which is enough; m0: silent"),
        (1, "1 of 3 members answer, 2 are"),
    ):
        (finding,) = dangers(3, 2, answered, ["m0: silent"], 0.0)
        assert finding.what.startswith(said)
