"""A queue twice: on a server, and by the verbs of atomic_queue.py in memory. Both get the same requests, and every
answer must be the same: who holds, who is told so, what is gone, refused or void.

The order of tickets is compared, not their values. The server's clock runs under the shim and steps by tens of seconds;
leases end at fives, so a machine that stalls for less than that changes nothing. Each store has its own `Side` (see its
side.py): how the test reads its records, and which answers may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any, Protocol

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dibs.backends.common import atomic_queue
from dibs.backends.common.atomic_queue import Wake
from dibs.backends.memory import World
from dibs.core.queue import NOWHERE, QUEUE, UNFAIR, Place
from dibs.core.rule import RW_CAPACITY, Claim, Entry, Standing
from dibs.errors import Mismatch
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.clock import Clock

SLACK = 3.0
"""The rest of a lease is read at two instants."""
KINDS = [("mutex", 1), ("semaphore", 3), ("semaphore", 4), ("rw", RW_CAPACITY), ("election", 1), ("striped", 8)]
WEIGHTS = {"mutex": [1], "semaphore": [1, 2, 3], "rw": [1, RW_CAPACITY], "election": [1], "striped": [0]}
LEASES, WAITING = [65.0, 125.0, 605.0], [25.0, 55.0]
STEPS = [10, 20, 30, 60, 120, 600]
"""Never a moment at which a lease ends."""
Pair = tuple[Seat, Claim, Claim]
"""The client, its claim on the server, and the twin of that in memory."""
numbers = st.integers(0, 9)
_NEVER_GIVEN = 2**52
"""A ticket beyond those of any store: microseconds since 1970 reach it in the year 2112."""
_names = count(1)

on_a_server = settings(
    max_examples=settings().max_examples // 3,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # thirty deeds are read sooner than shrunk on a server
)


class Side(Protocol):
    """A queue on a server, looked into past dibs."""

    def joined(self, ours: Claim, place: Place, found: Standing | None, now: float) -> None: ...

    def left(self, ours: Claim, stood: bool) -> None: ...

    def before_renewing(self, seat: Seat) -> None: ...

    def tell_time(self, seat: Seat) -> None:
        """So that a client knows how late it is on the server."""

    def same_next(self, found: Standing, expected: Standing, after: Standing) -> bool:
        """`after`: what would be expected if it were asked again."""

    def check(self, stand: list[Entry], now: float) -> None:
        """Whether it is whole, and those stand there who stand in memory."""

    def woken(self, wakes: list[Wake] | None, pairs: list[Pair], world: World, now: float) -> None:
        """Whether those were told, and nobody else; None: it is not known who was to be."""


class Both:
    """One queue. `seats`: the clients that take part; `side`: given its name, and the world in memory."""

    def __init__(self, seats: list[Seat], clock: Clock, side: Callable[[str, World], Side]) -> None:
        self._seats, self._clock = seats, clock
        self._name = f"dibs:{next(_names)}"
        self._world = World("both")
        self._pairs: list[Pair] = []
        self._places: list[Place] = []
        self._side = side(self._name, self._world)

    def play(self, deeds: list[tuple[Any, ...]]) -> None:
        for verb, *words in deeds:
            if verb == "join":
                seat, place, claim = words
                self.join(seat, place, **claim)
            else:
                getattr(self, verb)(*words)
            self.check()

    def now(self) -> float:
        """On memory's side."""
        return self._seats[0].now() + self._clock.offset

    def join(self, seat: int, place: Place, **claim: Any) -> None:
        ours = self._seats[seat].claim(self._name, by=claim["waiting"], **claim)
        twin = Claim(
            ours.id, ours.name, ours.kind, ours.capacity, ours.weight, ours.lease, ours.waiting,
            ours.by + self._clock.offset, ours.client, ours.description,
        )  # fmt: skip
        self._pairs.append((self._seats[seat], ours, twin))
        self._places.append(place)
        self.rejoin(len(self._pairs) - 1)

    def rejoin(self, number: int) -> None:
        """At its first place: no unfair waiter enters the queue by the same id."""
        if not self._pairs:
            return
        seat, ours, twin = self._pairs[number % len(self._pairs)]
        place = self._places[number % len(self._pairs)]
        theirs, wakes = self._of_memory(lambda: atomic_queue.join(self._world, twin, place, self.now()))
        with suppress(Mismatch):
            found: Any = "mismatch"
            found = seat.join(ours, place)
        if theirs == "mismatch" or found == "mismatch":
            assert theirs == found
        else:
            self._same(found, theirs, theirs)
        self._woken(wakes)  # who comes is not yet among those outside
        if found != "mismatch":
            self._side.joined(ours, place, found, self.now())

    def renew(self, seat: int, numbers: Iterable[int]) -> None:
        chosen = {number % len(self._pairs) for number in numbers} if self._pairs else set()
        mine = [self._pairs[number] for number in sorted(chosen) if self._pairs[number][0] is self._seats[seat]]
        if not mine:
            return
        twins = [twin for _, _, twin in mine]
        theirs, wakes = atomic_queue.renew(self._world, twins, self.now())
        after, _ = atomic_queue.renew(self._world, twins, self.now())
        self._side.before_renewing(self._seats[seat])
        ours = self._seats[seat].renew(*(ours for _, ours, _ in mine))
        for standings in zip(ours, theirs, after, strict=True):
            self._same(*standings)
        self._woken(wakes)

    def amend(self, number: int, weight: int) -> None:
        if self._pairs:
            seat, ours, twin = self._pairs[number % len(self._pairs)]
            _, wakes = atomic_queue.amend(self._world, twin, weight, self.now())
            seat.amend(ours, weight)
            self._woken(wakes)

    def leave(self, number: int, answered: bool) -> None:
        if self._pairs:
            seat, ours, twin = self._pairs[number % len(self._pairs)]
            twin.asked = True  # the server looks for any id
            stood, wakes = atomic_queue.leave(self._world, twin, answered, self.now())
            assert seat.leave(ours, answered=answered) == stood
            self._woken(wakes)  # who leaves is among those outside until it has left
            self._side.left(ours, stood)

    def evict(self, number: int) -> None:
        """A server keeps a late copy of its join out, as behind a leave; a store of one process has none."""
        if self._by_ticket(number, atomic_queue.evict, Seat.evict):
            _, ours, _ = self._pairs[number % len(self._pairs)]
            self._world.bury(ours.id, self.now() + ours.waiting, self.now())
            self.rejoin(number)

    def revoke(self, number: int) -> None:
        self._by_ticket(number, atomic_queue.revoke, Seat.revoke)

    def _by_ticket(self, number: int, theirs: Any, ours: Any) -> bool:
        """One that never was, too."""
        ticket = twin = _NEVER_GIVEN
        if self._pairs and number >= 0:
            _, claim, other = self._pairs[number % len(self._pairs)]
            ticket, twin = claim.ticket or ticket, other.ticket or twin
        found, wakes = theirs(self._world, self._name, twin, self.now())
        assert ours(self._seats[0], ticket, self._name) == found
        self._woken(wakes)
        return bool(found)

    def step(self, seconds: int) -> None:
        """So much time passes. Our own clock does not jump with the server's: what is counted by it is moved instead,
        and who asks next is told the server's time first."""
        self._clock.step(seconds)
        for _, ours, _ in self._pairs:
            ours.by -= seconds
        for seat in self._seats:
            self._side.tell_time(seat)

    def check(self) -> None:
        """Compare what `inspect` shows, and the records of the store."""
        info = atomic_queue.view(self._world, self._name, self.now(), datetime.now(UTC))
        seen = step(self._seats[0].queue.inspect(self._name, self._seats[0].soon))
        ours = {claim.ticket: place for place, (_, claim, _) in enumerate(self._pairs)}
        theirs = {claim.ticket: place for place, (_, _, claim) in enumerate(self._pairs)}
        assert [ours[one.token] for one in seen.holders] == [theirs[one.token] for one in info.holders]
        assert [ours[one.token] for one in seen.waiters] == [theirs[one.token] for one in info.waiters]
        self._side.check(list(self._world.queue(self._name)), self.now())

    def _of_memory(self, verb: Callable[[], Any]) -> Any:
        """A mismatch takes the wakes of those who were evicted with it: they look by themselves."""
        before = dict(self._world.places)
        try:
            return verb()
        except Mismatch:
            gone = set(before) - set(self._world.places)
            return "mismatch", None if gone else []

    def _same(self, found: Standing | None, expected: Standing | None, after: Standing | None) -> None:
        assert (found is None) == (expected is None) == (after is None)
        if found is None or expected is None or after is None:
            return
        assert (found.ticket == 0) == (expected.ticket == 0)
        assert (found.holds, found.revoked) == (expected.holds, expected.revoked)
        assert abs(found.left - expected.left) < SLACK
        assert self._side.same_next(found, expected, after)

    def _woken(self, wakes: list[Wake] | None) -> None:
        self._side.woken(wakes, self._pairs, self._world, self.now())


@st.composite
def deeds(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Mostly claims of one kind on the queue, some of another."""
    usual = draw(st.sampled_from(KINDS))
    found: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 30))):
        kind, capacity = usual if draw(st.integers(0, 7)) else draw(st.sampled_from(KINDS))
        seat = draw(st.integers(0, 1))
        places = st.sampled_from([QUEUE, QUEUE, QUEUE, UNFAIR, NOWHERE])
        claim = {
            "kind": kind,
            "capacity": capacity,
            "weight": draw(st.sampled_from(WEIGHTS[kind])),
            "lease": draw(st.sampled_from(LEASES)),
            "waiting": draw(st.sampled_from(WAITING)),
        }
        verbs: list[st.SearchStrategy[tuple[Any, ...]]] = [
            st.tuples(st.just("join"), st.just(seat), places, st.just(claim)),
            st.tuples(st.just("join"), st.just(seat), places, st.just(claim)),
            st.tuples(st.just("rejoin"), numbers),
            st.tuples(st.just("renew"), st.just(seat), st.lists(numbers, min_size=1, max_size=6)),
            st.tuples(st.just("amend"), numbers, st.sampled_from([0, 1, 2])),
            st.tuples(st.just("leave"), numbers, st.booleans()),
            st.tuples(st.just("leave"), numbers, st.just(True)),
            st.tuples(st.just("evict"), st.integers(-1, 9)),
            st.tuples(st.just("revoke"), st.integers(-1, 9)),
            st.tuples(st.just("step"), st.sampled_from(STEPS)),
        ]
        found.append(draw(st.one_of(verbs)))
    return found
