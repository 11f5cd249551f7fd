"""A line twice: by the routines on a server, and by the verbs of ledger.py in memory. Whatever is asked of the one is
asked of the other, and every answer must be the same: who holds, who is told so, what is gone, refused or void.

Tickets and ids' fates are compared, not their values. The server's clock runs under the shim and steps by tens of
seconds; leases end at fives, so a machine that stalls for less than that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dibs.backends import ledger
from dibs.backends.ledger import Wake
from dibs.backends.memory import World
from dibs.core.line import LOOK, YOURS, Place
from dibs.core.rule import Claim, Standing
from dibs.errors import Mismatch
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.clock import Clock
from store.mysql.rows import Raw

SLACK = 3.0
"""What is left of a lease is read at two instants."""


class Both:
    """One line. `seats`: the clients that take part."""

    def __init__(self, seats: list[Seat], raw: Raw, clock: Clock, name: str) -> None:
        self._seats, self._raw, self._clock = seats, raw, clock
        self._name = name
        self._world = World("both")
        self._pairs: list[tuple[Seat, Claim, Claim]] = []
        self._places: list[Place] = []

    def now(self) -> float:
        """On memory's side."""
        return self._seats[0].now() + self._clock.offset

    def join(self, seat: int, place: Place, **claim: Any) -> None:
        ours = self._seats[seat].claim(self._name, by=claim["waiting"], **claim)
        twin = Claim(
            ours.id, ours.name, ours.kind, ours.capacity, ours.weight, ours.lease, ours.waiting,
            ours.by + self._clock.offset, ours.client, ours.about,
        )  # fmt: skip
        self._pairs.append((self._seats[seat], ours, twin))
        self._places.append(place)
        self.rejoin(len(self._pairs) - 1, place)

    def rejoin(self, number: int, _: Place) -> None:
        """Where it asked to stand at first: nobody goes from outside into the line by the same id."""
        if not self._pairs:
            return
        place = self._places[number % len(self._pairs)]
        seat, ours, twin = self._pairs[number % len(self._pairs)]
        theirs, wakes = self._of_memory(lambda: ledger.join(self._world, twin, place, self.now()))
        with suppress(Mismatch):
            found: Any = "mismatch"
            found = seat.join(ours, place)
        if theirs == "mismatch" or found == "mismatch":
            assert theirs == found
        else:
            self._same(found, theirs)
        self._woken(wakes)

    def renew(self, seat: int, numbers: Iterable[int]) -> None:
        """Who holds only extends its claim there, and here looks at the line as well: there everybody looks first."""
        chosen = {number % len(self._pairs) for number in numbers} if self._pairs else set()
        mine = [self._pairs[number] for number in sorted(chosen) if self._pairs[number][0] is self._seats[seat]]
        if not mine:
            return
        theirs, wakes = ledger.renew(self._world, [twin for _, _, twin in mine], self.now())
        self._seats[seat].evict(0, self._name)
        for found, expected in zip(self._seats[seat].renew(*(ours for _, ours, _ in mine)), theirs, strict=True):
            self._same(found, expected)
        self._woken(wakes)

    def amend(self, number: int, weight: int) -> None:
        if self._pairs:
            seat, ours, twin = self._pairs[number % len(self._pairs)]
            wakes = ledger.amend(self._world, twin, weight, self.now())
            seat.amend(ours, weight)
            self._woken(wakes)

    def leave(self, number: int, answered: bool) -> None:
        if self._pairs:
            seat, ours, twin = self._pairs[number % len(self._pairs)]
            twin.asked = True  # the server looks for any id
            stood, wakes = ledger.leave(self._world, twin, answered, self.now())
            assert seat.leave(ours, answered=answered) == stood
            self._woken(wakes)

    def evict(self, number: int) -> None:
        """A server keeps a late copy of its join out, as behind a leave; a store of one process has none."""
        if self._by_ticket(number, ledger.evict, Seat.evict):
            _, ours, _ = self._pairs[number % len(self._pairs)]
            self._world.bury(ours.id, self.now() + ours.waiting, self.now())

    def revoke(self, number: int) -> None:
        self._by_ticket(number, ledger.revoke, Seat.revoke)

    def _by_ticket(self, number: int, theirs: Any, ours: Any) -> bool:
        """One that never was, too."""
        ticket, twin = 10**12, 10**12
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
            seat.evict(0, f"{self._name} elsewhere")

    def check(self) -> None:
        """What onlookers see."""
        info = ledger.view(self._world, self._name, self.now(), datetime.now(UTC))
        seen = step(self._seats[0].line.line(self._name, self._seats[0].soon))
        ours = {claim.ticket: place for place, (_, claim, _) in enumerate(self._pairs)}
        theirs = {claim.ticket: place for place, (_, _, claim) in enumerate(self._pairs)}
        assert [ours[one.token] for one in seen.holders] == [theirs[one.token] for one in info.holders]
        assert [ours[one.token] for one in seen.waiters] == [theirs[one.token] for one in info.waiters]
        stand = [entry.id for entry in self._world.line(self._name)]
        rows = [id for _, id in self._raw.claims(self._name)]
        assert [id for id in rows if id in stand] == stand
        over = self._raw.over(self._name)
        assert set(rows) - set(stand) <= over, "what has not expired is removed there and not here"

    def _of_memory(self, verb: Callable[[], Any]) -> Any:
        """A mismatch takes the wakes of those who were evicted with it: they look by themselves."""
        before = dict(self._world.places)
        try:
            return verb()
        except Mismatch:
            gone = set(before) - set(self._world.places)
            return "mismatch", None if gone else []

    def _same(self, found: Standing | None, expected: Standing | None) -> None:
        assert (found is None) == (expected is None)
        if found is None or expected is None:
            return
        assert (found.ticket == 0) == (expected.ticket == 0)
        assert (found.holds, found.revoked) == (expected.holds, expected.revoked)
        assert abs(found.left - expected.left) < SLACK
        if not found.holds:
            assert found.next == expected.next or abs(found.next - expected.next) < SLACK

    def _woken(self, wakes: list[Wake] | None) -> None:
        """Exactly who now holds: handed over in this process, or marked for its client to hear. Those who wait outside
        are marked, some of them, if it is theirs to try."""
        key = self._raw.key(self._name)
        told = {bytes(id) for (id,) in self._raw.ask("SELECT id FROM dibs_claims WHERE name = %s AND freed = 1", key)}
        self._raw.ask("UPDATE dibs_claims SET freed = NULL WHERE name = %s AND freed = 1", key)
        for seat, ours, _ in self._pairs:
            if step(seat.me.inbox.wait(ours.id, 0.0)) == YOURS.value:
                told.add(ours.id)
        asked = {bytes(id) for (id,) in self._raw.ask("SELECT id FROM dibs_watchers WHERE name = %s AND told = 1", key)}
        self._raw.ask("UPDATE dibs_watchers SET told = NULL WHERE name = %s AND told = 1", key)
        if wakes is None:
            return
        assert told == {wake.id for wake in wakes if wake.signal is YOURS}
        to_look = {wake.id for wake in wakes if wake.signal is LOOK}
        assert asked <= to_look
        fresh = {ours.id for _, ours, twin in self._pairs if twin.by > self.now() + SLACK}
        assert not to_look & fresh or asked, "nobody outside is told"
