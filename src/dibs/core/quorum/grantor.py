"""`Grantor` over N independent stores: a claim with the votes of a majority holds.

A *ballot* is one claim that asks all members at once, without waiting; its *votes* are the claim at each member.
There is no queue: queues at several stores would split the votes for ever. A ballot without a majority is given back;
the caller pauses for a random time and asks with a new ballot.

Why at most one holder is valid. Each member grants one claim at a time. A holder is valid only while a majority says
that its vote stands. That time counts from before round one (or the renewal) was sent, less the margin. Any two
majorities share a member. A member that may have lost a vote gives none until that vote has expired (members.py).

Why tokens rise. Round one returns a ticket from each member that grants. The token is the highest of them. Round two
(`Voter.stamp`) checks at each of those members, in one atomic step, that our vote still stands; only then it makes all
later tickets of that member higher than the token. The token counts once a majority has stamped it.
Let A be valid before B. Some member stamped A's token and also granted and stamped B. A's vote stood there at its
stamp, B's vote stands there when B becomes valid, and no vote comes back. So B's ticket there was given after A's
stamp, and B's token is higher. B11: A stalls between its rounds until its votes have expired. At one member of every
majority B took its place, so A's stamp fails there, and A's token does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from dibs.core.deadline import FIRST_PAUSE, FOREVER, LEAST_PATIENCE, LEAVE_PATIENCE
from dibs.core.grants import Grant, Hold, Request
from dibs.core.loss import BROKEN, GIVEN_BACK
from dibs.core.queue import NOWHERE, ClientIdentity, Leave, Unsent
from dibs.core.quorum import votes as vote_rules
from dibs.core.quorum.members import SHORTEST_STEP, Health, Members, Seat
from dibs.core.quorum.store import QuorumStore
from dibs.core.registry import HoldRegistry
from dibs.core.rule import Claim, Prepared, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable, Unsupported
from dibs.info import Finding, LockInfo

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.15
"""Between two ballots, in seconds; the limit grows with each ballot."""
_LOOK = 0.5
"""How often to poll for a change of leader: members send no notices."""


class Vote:
    """The state of a ballot at one member."""

    __slots__ = ("answered", "asked", "claim", "over")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.asked = False
        """Set before any worker runs: from then on the join may be sent."""
        self.answered = False
        """The join was answered: no copy of it is in flight."""
        self.over = False
        """The member has no such claim, and none can arrive."""


class Ballot(Claim):
    """One claim, and its vote at each member. Its ticket is the token that a majority stamped."""

    __slots__ = ("votes",)

    def __init__(self, members: int, *fields: Any) -> None:
        super().__init__(*fields)
        self.votes = [Vote(Claim(*fields)) for _ in range(members)]

    def owing(self) -> list[int]:
        """The members that may have the claim, or may still receive it."""
        return [number for number, vote in enumerate(self.votes) if vote.asked and not vote.over]


class QuorumGrantor:
    """`Grantor` (core/grantor.py) by majority."""

    def __init__(
        self,
        store: QuorumStore,
        runtime: Runtime,
        me: ClientIdentity,
        registry: HoldRegistry,
        retry: float,
        known: dict[str, Health],
    ) -> None:
        self._members = Members(store.open_members(runtime, me), runtime, known)
        self._guard = me.lease if store.guard is None else store.guard
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._registry = registry
        self._watchdog = registry.watchdog
        self._retry = retry

    def take(self, hold: Hold, request: Request, description: str, prepared: Prepared | None) -> bool:
        """Always False: a quorum has no free path, because a majority must answer."""
        return False

    def give(self, hold: Hold) -> None:
        """Always None: a quorum has no free path."""

    async def given(self, hold: Hold, answer: object) -> None:
        raise RuntimeError("a quorum has no free path")

    async def acquire(self, grant: Grant, weight: int, description: str, deadline: float) -> bool:
        sent_at = self._now()
        tries = deadline <= sent_at
        give_up, spread = self._patience(deadline, sent_at), FIRST_PAUSE
        try:
            while True:
                ballot = self._fresh_ballot(grant, weight, description, sent_at)
                try:
                    # The last ballot may begin late: a healthy member must not be backed off for that.
                    until = max(min(give_up, sent_at + _step(ballot)), sent_at + SHORTEST_STEP)
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
                    for hold in list(grant.holds):
                        self._registry.reporter.waiting(hold, grant.request)
                    give_up = self._patience(deadline, now)
                pause = _SHORTEST_PAUSE + self._runtime.jitter(spread)
                await self._runtime.sleep(max(min(pause, deadline - self._now()), 0.0))
                self._registry.check_open()
                sent_at, spread = self._now(), min(spread * 2, _LONGEST_PAUSE)
        except BaseException:
            self._watchdog.abandon(grant)
            raise

    async def release(self, grant: Grant, until: float) -> None:
        """End renewal first; only then remove the votes."""
        ballot = self._ballot(grant)
        try:
            ours = self._watchdog.take(grant)
            if not ours and not grant.dropped:
                raise grant.taken_away(GIVEN_BACK)
            removed = await self._leave(ballot, until)
            if ours and not self._may_have_held(removed, ballot):
                raise grant.taken_away(BROKEN)
            if len(ballot.owing()) > self._members.spare:
                self._members.check(len(removed))
        finally:
            if ballot.owing():
                self._watchdog.give_back(ballot, answered=False)

    async def lighten(self, grant: Grant, weight: int, until: float) -> None:
        raise Unsupported("a quorum cannot lower the weight of a hold", step="release the hold")

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | StoreUnavailable | None]:
        ballots = [claim for claim in claims if isinstance(claim, Ballot)]
        owing = {number for ballot in ballots for number in ballot.owing()}
        replies = await self._members.ask(
            lambda seat: self._renew(seat, ballots, until),
            [seat for seat in self._members.seats if seat.number in owing], until,
            lambda answers: all(len(_standings(ballot, answers)) >= self._members.needed for ballot in ballots),
        )  # fmt: skip
        return [self._counted(ballot, replies) for ballot in ballots]

    async def give_back(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        """Send one request to each member, for all claims. A member that is backed off is left for later: its votes
        block no caller, unless others cannot have a majority without it."""
        ballots = [claim for claim, _ in leaving if isinstance(claim, Ballot)]
        owing = {number for ballot in ballots for number in ballot.owing()}
        replies = await self._members.ask(
            lambda seat: self._leave_all(seat, ballots, until), self._members.prompt(owing), until, lambda _: False,
        )  # fmt: skip
        return [self._owed(ballot, len(replies)) for ballot in ballots]

    def _owed(self, ballot: Ballot, answered: int) -> StoreError | None:
        owing = len(ballot.owing())
        if owing > self._members.spare:
            return self._members.too_few(answered)
        return StoreError(f"{owing} members have not received a release yet") if owing else None

    @staticmethod
    async def _leave_all(seat: Seat, ballots: Sequence[Ballot], until: float) -> None:
        votes = [vote for ballot in ballots if (vote := ballot.votes[seat.number]).asked and not vote.over]
        for vote in votes:
            vote.claim.asked = True  # the worker may run this before the join, which then must have no effect
        answers = await seat.queue.leave_all([(vote.claim, vote.answered) for vote in votes], until)
        for vote, error in zip(votes, answers, strict=True):
            vote.over = vote.over or error is None

    async def connect(self, until: float) -> None:
        await self._members.ask(
            lambda seat: seat.queue.connect(until), self._members.seats, until,
            lambda answers: len(answers) >= self._members.needed,
        )  # fmt: skip

    def round_trip(self) -> float:
        """The round trip of the slowest member of the fastest majority."""
        return sorted(seat.queue.round_trip() for seat in self._members.seats)[self._members.needed - 1]

    async def inspect(self, name: str, until: float) -> LockInfo:
        needed = self._members.needed
        replies = await self._members.ask_all(
            lambda seat, end: seat.queue.inspect(name, end),
            until,
            lambda queues, missing: vote_rules.is_clear(queues, missing, needed),
        )
        return vote_rules.merged(name, list(replies.values()), needed)

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        needed = self._members.needed
        replies = await self._members.ask_all(
            lambda seat, end: seat.queue.page(prefix, after, end),
            until,
            lambda pages, missing: vote_rules.is_clear(chain.from_iterable(pages), missing, needed),
        )
        return vote_rules.page(list(replies.values()), needed)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        replies = await self._members.ask_all(lambda seat, end: seat.queue.revoke(name, token, end), until)
        return any(replies.values())

    async def evict(self, name: str, token: int, until: float) -> bool:
        replies = await self._members.ask_all(lambda seat, end: seat.queue.evict(name, token, end), until)
        return any(replies.values())

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._me.inbox.wait(key, min(until, self._now() + _LOOK))

    async def identity(self, until: float) -> str:
        """The names of the members, and the id of the first that answers: the same for all clients that reach the same
        members."""
        seats = sorted(self._members.seats, key=lambda seat: seat.shown)
        until = self._members.fair_end(min(until, self._now() + LEAST_PATIENCE))
        replies = await self._members.ask(
            lambda seat: seat.queue.identity(until), seats, until,
            lambda answers: seats[0].number in answers and len(answers) >= self._members.needed,
        )  # fmt: skip
        self._members.check(len(replies))
        first = next(replies[seat.number] for seat in seats if seat.number in replies)
        return f"quorum of {', '.join(seat.shown for seat in seats)}: {first}"

    async def ping(self, until: float) -> object:
        """Unlike `identity`, it does not wait for the first member: a majority is enough."""
        return await self._members.ask_all(lambda seat, end: seat.queue.identity(end), until)

    async def doctor(self, until: float) -> list[Finding]:
        return await self._members.doctor(self._guard, until)

    def close(self) -> None:
        self._members.close()

    async def _poll(self, grant: Grant, ballot: Ballot, sent_at: float, until: float) -> bool:
        """Run both rounds. True: a majority granted and stamped the token. StoreUnavailable: no majority answered."""
        members, needed = self._members, self._members.needed
        electors = members.electors()
        for seat in electors:
            ballot.votes[seat.number].asked = True
        guard = max(self._guard, ballot.lease) if self._guard else 0.0

        def decided(replies: Mapping[int, Standing]) -> bool:
            yes = sum(standing.holds for standing in replies.values())
            return yes >= needed or len(electors) - (len(replies) - yes) < needed

        replies = await members.ask(lambda seat: self._join(seat, ballot, guard, until), electors, until, decided)
        members.refuse_twins()
        members.check(len(replies))
        granted = {number: standing for number, standing in replies.items() if standing.holds}
        if len(granted) < needed:
            return False
        token = max(standing.ticket for standing in granted.values())
        end = self._now() + _step(ballot)
        stamped = await members.ask(
            lambda seat: seat.queue.stamp(ballot.votes[seat.number].claim, token, end),
            [seat for seat in electors if seat.number in granted], end,
            lambda answers: sum(answers.values()) >= needed,
        )  # fmt: skip
        counted = [granted[number] for number, yes in stamped.items() if yes]
        if len(counted) < needed:
            return False
        ballot.ticket = token
        answer_from(grant, vote_rules.together(counted, needed, token), sent_at)
        return grant.until - self._now() >= grant.request.waiting / 2

    async def _join(self, seat: Seat, ballot: Ballot, guard: float, until: float) -> Standing:
        vote, sent_at = ballot.votes[seat.number], self._now()
        try:
            if seat.identity is None:
                seat.identity = await seat.queue.identity(until)
            standing = await seat.queue.join(vote.claim, NOWHERE, until)
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
            settled = await seat.queue.settled(vote.claim, guard, until)
            if seat.health.sits_out(settled, guard, sent_at, self._now()):
                raise StoreUnavailable("just started")
        return standing

    async def _withdraw(self, grant: Grant, ballot: Ballot) -> None:
        """Give back a ballot without a majority: other callers may need its votes."""
        if not self._watchdog.take(grant):
            return
        try:
            await self._leave(ballot, self._now() + min(LEAVE_PATIENCE, _step(ballot)))
        finally:
            if ballot.owing():
                self._watchdog.give_back(ballot, answered=False)

    async def _leave(self, ballot: Ballot, until: float) -> dict[int, bool]:
        """Leave at every member that may have the claim. Waits for the members that are known to have it, or until
        enough replied that others can have a majority without the rest."""
        owing = ballot.owing()
        known = [number for number in owing if ballot.votes[number].answered]

        def enough(replies: Mapping[int, bool]) -> bool:
            return all(number in replies for number in known) or len(owing) - len(replies) <= self._members.spare

        return await self._members.ask(
            lambda seat: self._leave_one(seat, ballot, until), self._members.prompt(owing), until, enough
        )

    @staticmethod
    async def _leave_one(seat: Seat, ballot: Ballot, until: float) -> bool:
        vote = ballot.votes[seat.number]
        vote.claim.asked = True  # the worker may run this before the join, which then must have no effect
        removed = await seat.queue.leave(vote.claim, vote.answered, until)
        vote.over = True
        return removed

    def _may_have_held(self, removed: Mapping[int, bool], ballot: Ballot) -> bool:
        return sum(removed.values()) + len(ballot.owing()) >= self._members.needed

    @staticmethod
    async def _renew(seat: Seat, ballots: Sequence[Ballot], until: float) -> dict[bytes, Standing | None]:
        """The reply of one member for each ballot; ballots without a reply are left out."""
        asked = [vote for ballot in ballots if (vote := ballot.votes[seat.number]).asked and not vote.over]
        replies: dict[bytes, Standing | None] = {}
        for vote, standing in zip(asked, await seat.queue.renew([vote.claim for vote in asked], until), strict=True):
            if isinstance(standing, StoreUnavailable):
                continue
            if standing is None and vote.answered:
                vote.over = True
            replies[vote.claim.id] = standing
        return replies

    def _counted(
        self, ballot: Ballot, replies: Mapping[int, Mapping[bytes, Standing | None]]
    ) -> Standing | StoreUnavailable | None:
        """Count a renewal: a majority stands, a majority is gone (None), or neither is certain (the error)."""
        needed, stand = self._members.needed, _standings(ballot, replies)
        if len(stand) >= needed:
            return vote_rules.together(stand, needed, ballot.ticket or 0)
        silent = [number for number in ballot.owing() if ballot.id not in replies.get(number, ())]
        if len(stand) + len(silent) >= needed:
            return self._members.too_few(len(self._members.seats) - len(silent))
        if ballot.owing():
            self._watchdog.give_back(ballot, answered=False)
        return None

    def _patience(self, deadline: float, now: float) -> float:
        """Until when to retry members that do not answer; even a try (timeout 0) allows them some seconds."""
        return now + self._retry if deadline == FOREVER else max(now + LEAST_PATIENCE, deadline)

    def _fresh_ballot(self, grant: Grant, weight: int, description: str, now: float) -> Ballot:
        """Make a ballot; the watchdog adopts it before its joins are sent."""
        request = grant.request
        ballot = Ballot(
            len(self._members.seats), self._runtime.fresh_id(), request.name, request.kind, request.capacity, weight,
            request.lease, request.waiting, now + request.waiting, self._me.id, description,
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


def quorum_grantor() -> Callable[[QuorumStore, Runtime, ClientIdentity, HoldRegistry, float], QuorumGrantor]:
    """The `make_grantor` of one client: its grantors share the health of each member."""
    known: dict[bytes, dict[str, Health]] = {}

    def make(
        store: QuorumStore, runtime: Runtime, me: ClientIdentity, registry: HoldRegistry, retry: float
    ) -> QuorumGrantor:
        return QuorumGrantor(store, runtime, me, registry, retry, known.setdefault(me.id, {}))

    return make


def answer_from(grant: Grant, standing: Standing, sent_at: float) -> None:
    """Count both rounds from before the first: the leases run since then."""
    grant.answer(standing, sent_at)


def _step(claim: Claim) -> float:
    """How long members have for one round: a sixth of the lease."""
    return max(claim.lease / 6, SHORTEST_STEP)


def _standings(ballot: Ballot, replies: Mapping[int, Mapping[bytes, Standing | None]]) -> list[Standing]:
    return [standing for answers in replies.values() if (standing := answers.get(ballot.id)) and standing.holds]
