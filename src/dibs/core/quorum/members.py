"""The members of a quorum, asked in parallel.

A request takes as long as the slowest member of a majority; the other members get about as long again. A member that
did not answer in time is backed off: new ballots leave it out, except one a second that probes it. A member that has
just started and may have lost a vote is left out until that vote has expired (`Health.sits_out`). If too few members
are left, backed-off members are asked all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from dibs.core.deadline import LEAST_PATIENCE
from dibs.core.log import fields, log
from dibs.core.queue import Member
from dibs.core.quorum import votes as vote_rules
from dibs.core.runtime import Job, Runtime
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding, duration

T = TypeVar("T")
SHORTEST_STEP = 0.05
"""How long a member has to answer at least, in seconds, even if the lease is short or the deadline has passed."""
_A_MOMENT = 1.0
"""How long a member that did not answer is left out, in seconds."""
_SURE = 3
"""Consecutive replies in time that end the back-off: a slow member is in time now and then."""


class Health:
    """Whether a member answers and may vote. All lanes of a client share it."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.back_at = 0.0
        """When it is asked again, after it did not answer."""
        self.votes_at = 0.0
        """When its vote counts again, after a restart."""
        self.trouble: str | None = None
        """Why it is left out; None: it is not."""
        self._in_time = 0
        """Replies in time since it was left out."""

    def heard(self) -> None:
        """Note a reply in time."""
        if self.trouble is not None:
            self.back_at = 0.0
            self._in_time += 1
            if self._in_time >= _SURE:
                log("store").info("member %s answers again", self.shown, extra=fields("member_back", store=self.shown))
                self.trouble = None

    def failed(self, why: str, now: float) -> None:
        if self.trouble is None:
            extra = fields("member_left_out", store=self.shown)
            log("store").warning("member %s is left out: %s", self.shown, why, extra=extra)
        self.trouble = why
        self.back_at = now + _A_MOMENT
        self._in_time = 0

    def may_be_asked(self, now: float) -> bool:
        """False while it is backed off. After that, one caller a second probes it."""
        if self.trouble is not None:
            if now < self.back_at:
                return False
            self.back_at = now + _A_MOMENT
        return True

    def sits_out(self, settled: float, guard: float, sent_at: float, now: float) -> bool:
        """Whether its vote does not count: the member may have lost an earlier vote in a restart, and that vote may not
        have expired. `settled` was read after the vote was asked for at `sent_at`: the time since is subtracted."""
        if settled - (now - sent_at) >= guard:
            return False
        self.votes_at = now + guard - settled
        return True

    def excuse(self, now: float) -> str | None:
        """Why its vote does not count now."""
        if now < self.votes_at:
            return f"just started, may have lost votes, and cannot vote for {duration(self.votes_at - now)} more"
        return self.trouble


class Seat:
    """One member, as one runtime talks to it."""

    def __init__(self, number: int, member: Member, health: Health) -> None:
        self.number = number
        self.health = health
        self.shown = member.shown
        self.queue = member.queue
        self.identity: str | None = None
        self.failed = health.failed


class Members:
    """All members of one quorum, as one runtime talks to them."""

    def __init__(self, members: Sequence[Member], runtime: Runtime, known: dict[str, Health]) -> None:
        """`known`: the health of the members by name, which all grantors of a client share."""
        self.seats = [
            Seat(number, member, known.setdefault(member.shown, Health(member.shown)))
            for number, member in enumerate(members)
        ]
        self.needed = majority(len(members))
        self.spare = len(members) - self.needed
        """How many members may fail."""
        self._now = runtime.now
        self._task_group = runtime.task_group(len(members))

    def electors(self) -> list[Seat]:
        """The members whose votes are asked for now."""
        now = self._now()
        able = [seat for seat in self.seats if seat.health.votes_at <= now]
        prompt = [seat for seat in able if seat.health.may_be_asked(now)]
        return prompt if len(prompt) >= self.needed else able

    def prompt(self, numbers: Collection[int]) -> list[Seat]:
        """The given members without those that are backed off; all of them if the rest is no majority."""
        now, seats = self._now(), [self.seats[number] for number in numbers]
        prompt = [seat for seat in seats if seat.health.may_be_asked(now)]
        return prompt if len(prompt) >= min(self.needed, len(seats)) else seats

    async def ask(
        self,
        verb: Callable[[Seat], Awaitable[T]],
        seats: Sequence[Seat],
        until: float,
        enough: Callable[[Mapping[int, T]], bool],
    ) -> dict[int, T]:
        """The replies that came in time, by number; later replies are ignored."""
        answers: dict[int, T] = {}
        failed: dict[int, None] = {}
        jobs: list[Job | None] = [None] * len(self.seats)
        for seat in seats:
            jobs[seat.number] = partial(self._ask, seat, verb, answers, failed)
        await self._task_group.gather(jobs, until, lambda: enough(dict(answers)))
        replies = dict(answers)
        for seat in seats:
            if seat.number in replies:
                seat.health.heard()
            elif seat.number not in failed:
                seat.failed("no answer in time", self._now())
        return replies

    def fair_end(self, until: float) -> float:
        """`until`, or later if the members could not answer by then. The last try of a caller may begin just before its
        deadline: healthy members must not be backed off, and not counted as silent, for that."""
        slowest = max(seat.queue.round_trip() for seat in self.seats)
        return max(until, self._now() + min(max(SHORTEST_STEP, 2 * slowest), LEAST_PATIENCE))

    async def ask_all(
        self,
        verb: Callable[[Seat, float], Awaitable[T]],
        until: float,
        is_clear: Callable[[Collection[T], int], bool] = lambda *_: True,
    ) -> dict[int, T]:
        """Ask every member; StoreUnavailable unless a majority answers. `is_clear` gets the replies, and the number of
        healthy members without one; it returns whether the missing replies cannot change the result."""
        end = self.fair_end(until)

        def enough(answers: Mapping[int, T]) -> bool:
            missing = sum(seat.number not in answers and seat.health.trouble is None for seat in self.seats)
            return len(answers) >= self.needed and is_clear(answers.values(), missing)

        replies = await self.ask(lambda seat: verb(seat, end), self.seats, end, enough)
        self.check(len(replies))
        return replies

    def check(self, answered: int) -> None:
        if answered < self.needed:
            raise self.too_few(answered)

    def too_few(self, answered: int) -> StoreUnavailable:
        now = self._now()
        excuses = "; ".join(f"{seat.shown}: {excuse}" for seat in self.seats if (excuse := seat.health.excuse(now)))
        return StoreUnavailable(
            f"{answered} of {len(self.seats)} members answered, {self.needed} are needed ({excuses})",
            step="run dibs doctor, which checks each member",
        )

    def refuse_twins(self) -> None:
        """Raise StoreError if two members are one store: it would have two votes."""
        known: dict[str, Seat] = {}
        for seat in self.seats:
            other = seat if seat.identity is None else known.setdefault(seat.identity, seat)
            if other is not seat:
                raise StoreError(
                    f"two members are the same store: {other.shown} and {seat.shown}",
                    step="give every independent store once",
                )

    async def doctor(self, guard: float, until: float) -> list[Finding]:
        replies = await self.ask(lambda seat: seat.queue.doctor(until), self.seats, until, lambda _: False)
        began = self._now()
        clocks = await self.ask(lambda seat: seat.queue.clock(until), self.seats, until, lambda _: False)
        apart = max(clocks.values()) - min(clocks.values()) - (self._now() - began) if clocks else 0.0
        count, now = len(self.seats), self._now()
        made_of = {finding.what for found in replies.values() for finding in found if finding.level == "about"}
        answered = [(self.seats[number].shown, found) for number, found in sorted(replies.items())]
        excuses = [
            f"{seat.shown}: {excuse}"
            for seat in self.seats
            if (seat.number not in replies or now < seat.health.votes_at) and (excuse := seat.health.excuse(now))
        ]
        return [
            Finding("about", f"a quorum of {count}, {self.needed} decide"),
            *(Finding("about", what) for what in sorted(made_of)),
            *vote_rules.promises(count, self.spare, guard),
            *vote_rules.dangers(count, self.needed, len(replies), excuses, apart),
            *vote_rules.findings(answered),
        ]

    def close(self) -> None:
        self._task_group.close()
        for seat in self.seats:
            seat.queue.close()

    async def _ask(
        self, seat: Seat, verb: Callable[[Seat], Awaitable[T]], answers: dict[int, T], failed: dict[int, None]
    ) -> None:
        try:
            answers[seat.number] = await verb(seat)
        except StoreError as error:
            seat.failed(error.what, self._now())
            failed[seat.number] = None  # after `seat.failed`, which sets the reason


def majority(members: int) -> int:
    """Any two majorities have a member in common.

    >>> majority(5), majority(4), majority(3)
    (3, 3, 2)
    """
    return members // 2 + 1
