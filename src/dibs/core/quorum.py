"""Seam 1 over N independent stores: whoever has the votes of a majority holds.

A *ballot* is one claim that asks all members at once, by a try; its *votes* are the claim as each member knows it.
Nobody waits in line: lines of several stores would split the votes for ever. Who gets no majority gives everything
back, pauses a random time and asks with a new ballot.

Why at most one is valid. At one member one claim stands at a time. A holder is valid only as long as a majority says
that its vote stands, counted from before round one (or before the renewal) was sent and less the margin; any two
majorities share a member. A member that may have forgotten a vote gives none until that one is over (panel.py).

Why tokens rise. Round one brings a ticket from each member that grants. The token is the highest of them; round two
(`Voter.stamp`) checks at each of those members, in one step, that our vote still stands there, and only then makes
all its later tickets higher than the token. It counts when a majority did so. Say A was valid before B was: some
member stamped A's token and is among those that B was granted by and counts on. A's vote stood there when it was
stamped, B's stands there when B becomes valid, and no vote comes back; so B's ticket there was given after the stamp,
and B's token is not lower than that. B11: A, stalled between its rounds until its votes were over, finds them gone
where B took its place, which is at one member of every majority: A's token does not count, whatever it wrote elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

from dibs.core import tally
from dibs.core.deadline import FIRST_PAUSE, FOREVER, LEAST_PATIENCE, LEAVE_PATIENCE
from dibs.core.grants import Grant, Hold, Request
from dibs.core.line import NOWHERE, Leave, Me, Member, Store, Unsent
from dibs.core.loss import BROKEN, GIVEN_BACK
from dibs.core.panel import Health, Panel, Seat
from dibs.core.registry import HoldRegistry
from dibs.core.rule import Claim, Prepared, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable, Unsupported
from dibs.info import Finding, LockInfo

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.15
"""Between two ballots; the longer it takes, the wider they spread."""
_SHORTEST_STEP = 0.05
"""What a member has to answer, however short the lease is."""
_LOOK = 0.5
"""How often somebody who watches looks: members do not tell."""


class Quorum(Store, Protocol):
    """A store of several, of which a majority decides: QUORUM is among its capabilities, and `open` is not called."""

    guard: float | None
    """How long a member that may have lost something has no vote; None: as long as the client's lease."""

    def open_members(self, runtime: Runtime, me: Me) -> list[Member]: ...


class Vote:
    """What is known of a ballot at one member."""

    __slots__ = ("answered", "asked", "claim", "over")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.asked = False
        """Set before anybody is told to ask: the join may be sent from now on."""
        self.answered = False
        """The join was: none is on its way any more."""
        self.over = False
        """Nothing stands there, and nothing will."""


class Ballot(Claim):
    """One wish to hold, and the same wish as each member knows it. Its ticket is the token that a majority stamped."""

    __slots__ = ("votes",)

    def __init__(self, members: int, *fields: Any) -> None:
        super().__init__(*fields)
        self.votes = [Vote(Claim(*fields)) for _ in range(members)]

    def owing(self) -> list[int]:
        """The members at which it may stand, or come to stand."""
        return [number for number, vote in enumerate(self.votes) if vote.asked and not vote.over]


class QuorumGrantor:
    """See core/grant.py; for callers and, over blocking lines, for the watchdog."""

    def __init__(
        self, store: Quorum, runtime: Runtime, me: Me, registry: HoldRegistry, retry: float, known: dict[str, Health]
    ) -> None:
        self._panel = Panel(store.open_members(runtime, me), runtime, known)
        self._guard = me.lease if store.guard is None else store.guard
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._registry = registry
        self._watchdog = registry.watchdog
        self._retry = retry

    def take(self, hold: Hold, request: Request, about: str, prepared: Prepared | None) -> bool:
        """There is no free path: a majority must answer."""
        return False

    def give(self, hold: Hold) -> None:
        """As `take`."""

    async def given(self, hold: Hold, answer: object) -> None:
        raise RuntimeError("a quorum has no free path")

    async def acquire(self, grant: Grant, weight: int, about: str, deadline: float) -> bool:
        sent_at = self._now()
        tries = deadline <= sent_at
        give_up, spread = self._patience(deadline, sent_at), FIRST_PAUSE
        try:
            while True:
                ballot = self._fresh_ballot(grant, weight, about, sent_at)
                try:
                    # The last one may begin late: who is well is not to be blamed for that.
                    until = max(min(give_up, sent_at + _step(ballot)), sent_at + _SHORTEST_STEP)
                    won = await self._poll(grant, ballot, sent_at, until)
                except StoreUnavailable:
                    await self._withdraw(grant, ballot)
                    if tries or self._now() + spread >= give_up:
                        raise
                else:
                    if self._registry.closed:
                        self._registry.check_open()
                    if won:
                        grant.granted(self._now())
                        self._watchdog.schedule(grant)
                        return True
                    await self._withdraw(grant, ballot)
                    if (now := self._now()) >= deadline:
                        return False
                    give_up = self._patience(deadline, now)
                pause = _SHORTEST_PAUSE + self._runtime.jitter(spread)
                await self._runtime.sleep(max(min(pause, deadline - self._now()), 0.0))
                self._registry.check_open()
                sent_at, spread = self._now(), min(spread * 2, _LONGEST_PAUSE)
        except BaseException:
            self._watchdog.abandon(grant)
            raise

    async def release(self, grant: Grant, until: float) -> None:
        """The hold is invalid and no longer renewed first; only then do its votes leave."""
        ballot = self._ballot(grant)
        try:
            ours = self._watchdog.take(grant)
            if not ours and not grant.dropped:
                raise grant.taken_away(GIVEN_BACK)
            stood = await self._leave(ballot, until)
            if ours and not self._may_have_stood(stood, ballot):
                raise grant.taken_away(BROKEN)
            if len(ballot.owing()) > self._panel.spare:
                self._panel.check(len(stood))
        finally:
            if ballot.owing():
                self._watchdog.give_back(ballot, answered=False)

    async def amend(self, grant: Grant, weight: int, until: float) -> None:
        raise Unsupported("a quorum cannot lower the weight of a hold", step="release the hold")

    lighten = amend

    async def renew(self, grants: list[Grant], until: float) -> list[Standing | StoreUnavailable | None]:
        ballots = [self._ballot(grant) for grant in grants]
        owing = {number for ballot in ballots for number in ballot.owing()}
        said = await self._panel.ask(
            lambda seat: self._renew(seat, ballots, until),
            [seat for seat in self._panel.seats if seat.number in owing], until,
            lambda answers: all(len(_standings(ballot, answers)) >= self._panel.needed for ballot in ballots),
        )  # fmt: skip
        return [self._counted(ballot, said) for ballot in ballots]

    async def give_back(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        """One request to each member for all of them. A member that is backed off is left for later: what it is owed
        keeps nobody waiting, unless others cannot have a majority without it."""
        ballots = [claim for claim, _ in leaving if isinstance(claim, Ballot)]
        owing = {number for ballot in ballots for number in ballot.owing()}
        said = await self._panel.ask(
            lambda seat: self._leave_all(seat, ballots, until), self._panel.prompt(owing), until, lambda _: False,
        )  # fmt: skip
        return [self._owed(ballot, len(said)) for ballot in ballots]

    def _owed(self, ballot: Ballot, answered: int) -> StoreError | None:
        owing = len(ballot.owing())
        if owing > self._panel.spare:
            return self._panel.too_few(answered)
        return StoreError(f"{owing} members have not received a release yet") if owing else None

    @staticmethod
    async def _leave_all(seat: Seat, ballots: Sequence[Ballot], until: float) -> None:
        votes = [vote for ballot in ballots if (vote := ballot.votes[seat.number]).asked and not vote.over]
        for vote in votes:
            vote.claim.asked = True  # as in `_leave_one`
        answers = await seat.line.leave_all([(vote.claim, vote.answered) for vote in votes], until)
        for vote, error in zip(votes, answers, strict=True):
            vote.over = vote.over or error is None

    async def connect(self, until: float) -> None:
        await self._panel.ask(
            lambda seat: seat.line.connect(until), self._panel.seats, until,
            lambda answers: len(answers) >= self._panel.needed,
        )  # fmt: skip

    def round_trip(self) -> float:
        """Of the slowest of the quickest majority."""
        return sorted(seat.line.round_trip() for seat in self._panel.seats)[self._panel.needed - 1]

    async def line(self, name: str, until: float) -> LockInfo:
        needed = self._panel.needed
        said = await self._panel.ask_all(
            lambda seat: seat.line.line(name, until),
            until,
            lambda lines, missing: tally.is_clear(lines, missing, needed),
        )
        return tally.merged(name, list(said.values()), needed)

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        needed = self._panel.needed
        said = await self._panel.ask_all(
            lambda seat: seat.line.lines(prefix, after, until),
            until,
            lambda pages, missing: tally.is_clear(chain.from_iterable(pages), missing, needed),
        )
        return tally.page(list(said.values()), needed)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        said = await self._panel.ask_all(lambda seat: seat.line.revoke(name, token, until), until)
        return any(said.values())

    async def evict(self, name: str, token: int, until: float) -> bool:
        said = await self._panel.ask_all(lambda seat: seat.line.evict(name, token, until), until)
        return any(said.values())

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._me.inbox.wait(key, min(until, self._now() + _LOOK))

    async def identity(self, until: float) -> str:
        """What its members are called, and the id of the first that answers: whoever reaches the same members is told
        the same."""
        seats = sorted(self._panel.seats, key=lambda seat: seat.shown)
        until = min(until, self._now() + LEAST_PATIENCE)
        said = await self._panel.ask(
            lambda seat: seat.line.identity(until), seats, until,
            lambda answers: seats[0].number in answers and len(answers) >= self._panel.needed,
        )  # fmt: skip
        self._panel.check(len(said))
        first = next(said[seat.number] for seat in seats if seat.number in said)
        return f"quorum of {', '.join(seat.shown for seat in seats)}: {first}"

    async def doctor(self, until: float) -> list[Finding]:
        return await self._panel.doctor(self._guard, until)

    def close(self) -> None:
        self._panel.close()

    async def _poll(self, grant: Grant, ballot: Ballot, sent_at: float, until: float) -> bool:
        """Both rounds. True: a majority stands, and has the token. StoreUnavailable: a majority was not to be had."""
        panel, needed = self._panel, self._panel.needed
        electors = panel.electors()
        for seat in electors:
            ballot.votes[seat.number].asked = True
        guard = max(self._guard, ballot.lease) if self._guard else 0.0

        def decided(said: Mapping[int, Standing]) -> bool:
            yes = sum(standing.holds for standing in said.values())
            return yes >= needed or len(electors) - (len(said) - yes) < needed

        said = await panel.ask(lambda seat: self._join(seat, ballot, guard, until), electors, until, decided)
        panel.refuse_twins()
        panel.check(len(said))
        granted = {number: standing for number, standing in said.items() if standing.holds}
        if len(granted) < needed:
            return False
        token = max(standing.ticket for standing in granted.values())
        end = self._now() + _step(ballot)
        stamped = await panel.ask(
            lambda seat: seat.line.stamp(ballot.votes[seat.number].claim, token, end),
            [seat for seat in electors if seat.number in granted], end,
            lambda answers: sum(answers.values()) >= needed,
        )  # fmt: skip
        counted = [granted[number] for number, yes in stamped.items() if yes]
        if len(counted) < needed:
            return False
        ballot.ticket = token
        answer_from(grant, tally.together(counted, needed, token), sent_at)
        return grant.until - self._now() >= grant.request.waiting / 2

    async def _join(self, seat: Seat, ballot: Ballot, guard: float, until: float) -> Standing:
        vote, sent_at = ballot.votes[seat.number], self._now()
        try:
            if seat.identity is None:
                seat.identity = await seat.line.identity(until)
            standing = await seat.line.join(vote.claim, NOWHERE, until)
        except StoreError as error:
            if isinstance(error, Unsent) or not vote.claim.asked:
                vote.over = True
            raise
        vote.answered = True
        if standing is None:
            vote.over = True
            raise StoreUnavailable("the answer came too late to count")
        if not standing.holds:
            vote.over = True
        elif guard:
            settled = await seat.line.settled(vote.claim, guard, until)
            if seat.health.sits_out(settled, guard, sent_at, self._now()):
                raise StoreUnavailable("just started")
        return standing

    async def _withdraw(self, grant: Grant, ballot: Ballot) -> None:
        """No majority: others may need the votes that there are."""
        if not self._watchdog.take(grant):
            return
        try:
            await self._leave(ballot, self._now() + min(LEAVE_PATIENCE, _step(ballot)))
        finally:
            if ballot.owing():
                self._watchdog.give_back(ballot, answered=False)

    async def _leave(self, ballot: Ballot, until: float) -> dict[int, bool]:
        """At every member where it may stand. Waited for: those that are known to have it, or so many that others can
        have a majority without the rest."""
        owing = ballot.owing()
        known = [number for number in owing if ballot.votes[number].answered]

        def enough(said: Mapping[int, bool]) -> bool:
            return all(number in said for number in known) or len(owing) - len(said) <= self._panel.spare

        return await self._panel.ask(
            lambda seat: self._leave_one(seat, ballot, until), self._panel.prompt(owing), until, enough
        )

    @staticmethod
    async def _leave_one(seat: Seat, ballot: Ballot, until: float) -> bool:
        vote = ballot.votes[seat.number]
        vote.claim.asked = True  # it may lie before this in the same thread, and is not to stand when it comes
        stood = await seat.line.leave(vote.claim, vote.answered, until)
        vote.over = True
        return stood

    def _may_have_stood(self, stood: Mapping[int, bool], ballot: Ballot) -> bool:
        return sum(stood.values()) + len(ballot.owing()) >= self._panel.needed

    @staticmethod
    async def _renew(seat: Seat, ballots: Sequence[Ballot], until: float) -> dict[bytes, Standing | None]:
        """What it says of each of these; nothing of those that it could not look at."""
        asked = [vote for ballot in ballots if (vote := ballot.votes[seat.number]).asked and not vote.over]
        said: dict[bytes, Standing | None] = {}
        for vote, standing in zip(asked, await seat.line.renew([vote.claim for vote in asked], until), strict=True):
            if isinstance(standing, StoreUnavailable):
                continue
            if standing is None and vote.answered:
                vote.over = True
            said[vote.claim.id] = standing
        return said

    def _counted(
        self, ballot: Ballot, said: Mapping[int, Mapping[bytes, Standing | None]]
    ) -> Standing | StoreUnavailable | None:
        """What a renewal comes to: a majority stands, a majority is gone, or neither is certain."""
        needed, stand = self._panel.needed, _standings(ballot, said)
        if len(stand) >= needed:
            return tally.together(stand, needed, ballot.ticket or 0)
        silent = [number for number in ballot.owing() if ballot.id not in said.get(number, ())]
        if len(stand) + len(silent) >= needed:
            return self._panel.too_few(len(self._panel.seats) - len(silent))
        if ballot.owing():
            self._watchdog.give_back(ballot, answered=False)
        return None

    def _patience(self, deadline: float, now: float) -> float:
        """Until when silent members are asked again: even a try grants them a moment to answer."""
        return now + self._retry if deadline == FOREVER else max(now + LEAST_PATIENCE, deadline)

    def _fresh_ballot(self, grant: Grant, weight: int, about: str, now: float) -> Ballot:
        """From before its joins are sent it is the watchdog's business."""
        request = grant.request
        ballot = Ballot(
            len(self._panel.seats), self._runtime.fresh_id(), request.name, request.kind, request.capacity, weight,
            request.lease, request.waiting, now + request.waiting, self._me.id, about,
        )  # fmt: skip
        grant.ask_as(ballot)
        self._watchdog.adopt(grant)
        if self._registry.closed:  # after adopting: close() either sees the claim there, or is seen here
            self._registry.check_open()
        return ballot

    @staticmethod
    def _ballot(grant: Grant) -> Ballot:
        assert isinstance(grant.claim, Ballot)  # every path here comes after _fresh_ballot
        return grant.claim


def quorum_grantor() -> Callable[[Quorum, Runtime, Me, HoldRegistry, float], QuorumGrantor]:
    """Makes the grantors of one client, which share what is known of each member's health."""
    known: dict[bytes, dict[str, Health]] = {}

    def make(store: Quorum, runtime: Runtime, me: Me, registry: HoldRegistry, retry: float) -> QuorumGrantor:
        return QuorumGrantor(store, runtime, me, registry, retry, known.setdefault(me.id, {}))

    return make


def answer_from(grant: Grant, standing: Standing, sent_at: float) -> None:
    """Both rounds count from before the first: the leases run since then."""
    grant.answer(standing, sent_at)


def _step(claim: Claim) -> float:
    """How long members have for one round: a sixth of what a vote lasts."""
    return max(claim.lease / 6, _SHORTEST_STEP)


def _standings(ballot: Ballot, said: Mapping[int, Mapping[bytes, Standing | None]]) -> list[Standing]:
    return [standing for answers in said.values() if (standing := answers.get(ballot.id)) and standing.holds]
