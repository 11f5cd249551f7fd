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

import psycopg

from dibs.backends import ledger
from dibs.backends.ledger import LINES, Wake
from dibs.backends.memory import World
from dibs.core.cells import Spot
from dibs.core.deadline import FOREVER
from dibs.core.line import LOOK, YOURS, Place
from dibs.core.rule import Claim, Standing
from dibs.errors import Mismatch
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.clock import Clock
from store.postgresql.rows import Raw

SLACK = 3.0
"""What is left of a lease is read at two instants."""
_WATCHER = b"w" * 16
_LONG = 10**18


class Spy:
    """Everything that is sent to these clients, in order."""

    def __init__(self, connection: psycopg.Connection[Any], clients: Iterable[bytes]) -> None:
        self._connection = connection
        for client in clients:
            connection.execute(f'LISTEN "dibs_{client.hex()}"')
        connection.execute("LISTEN dibs_end")
        self._number = 0

    def heard(self, raw: Raw) -> set[tuple[bytes, bytes]]:
        """Since the last time: ids, and what is said about them."""
        self._number += 1
        raw("SELECT pg_notify('dibs_end', %s)", str(self._number))
        found: set[tuple[bytes, bytes]] = set()
        for notice in self._connection.notifies(timeout=10):
            if notice.channel == "dibs_end":
                if notice.payload == str(self._number):
                    return found
            else:
                found.add((bytes.fromhex(notice.payload[:-1]), notice.payload[-1:].encode()))
        raise AssertionError("what was sent did not arrive")


class Both:
    """One line. `seats`: the clients that take part."""

    def __init__(self, seats: list[Seat], raw: Raw, spy: Spy, clock: Clock, name: str) -> None:
        self._seats, self._raw, self._spy, self._clock = seats, raw, spy, clock
        self._name = name
        self._world = World("both")
        self._pairs: list[tuple[Seat, Claim, Claim]] = []
        self._outside: set[bytes] = set()
        """Who is noted as waiting outside, and was not told since."""
        self._watch()

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
        self.rejoin(len(self._pairs) - 1, place)

    def rejoin(self, number: int, place: Place) -> None:
        if not self._pairs:
            return
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
        if place.name == "OUTSIDE" and isinstance(found, Standing) and not found.ticket:
            self._outside.add(ours.id)
        elif place.name == "OUTSIDE" and isinstance(found, Standing):
            self._outside.discard(ours.id)

    def renew(self, seat: int, numbers: Iterable[int]) -> None:
        chosen = {number % len(self._pairs) for number in numbers} if self._pairs else set()
        mine = [self._pairs[number] for number in sorted(chosen) if self._pairs[number][0] is self._seats[seat]]
        if not mine:
            return
        theirs, wakes = ledger.renew(self._world, [twin for _, _, twin in mine], self.now())
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
            if not stood:
                self._outside.discard(ours.id)

    def evict(self, number: int) -> None:
        """A server keeps a late copy of its join out, as behind a leave; a store of one process has none."""
        if self._by_ticket(number, ledger.evict, Seat.evict):
            _, ours, _ = self._pairs[number % len(self._pairs)]
            self._world.bury(ours.id, self.now() + ours.waiting, self.now())

    def revoke(self, number: int) -> None:
        self._by_ticket(number, ledger.revoke, Seat.revoke)

    def _by_ticket(self, number: int, theirs: Any, ours: Any) -> bool:
        """One that never was, too."""
        ticket, twin = 7, 10**9
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
            step(seat.line.identity(seat.soon))

    def check(self) -> None:
        """What onlookers see, and who stands in the table."""
        info = ledger.view(self._world, self._name, self.now(), datetime.now(UTC))
        seen = step(self._seats[0].line.line(self._name, self._seats[0].soon))
        ours = {claim.ticket: place for place, (_, claim, _) in enumerate(self._pairs)}
        theirs = {claim.ticket: place for place, (_, _, claim) in enumerate(self._pairs)}
        assert [ours[one.token] for one in seen.holders] == [theirs[one.token] for one in info.holders]
        assert [ours[one.token] for one in seen.waiters] == [theirs[one.token] for one in info.waiters]
        stand = [entry.id for entry in self._world.line(self._name) if entry.until > self.now()]
        assert self._raw.claims(self._name) == stand, "what stands here does not there"

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
        if not found.holds and expected.next != FOREVER:
            assert abs(found.next - expected.next) < SLACK

    def _woken(self, wakes: list[Wake] | None) -> None:
        """Exactly who now holds, who follows the election, and those outside, if nobody in line was freed."""
        heard = self._spy.heard(self._raw)
        if wakes is not None:
            yours = {(wake.id, YOURS.value) for wake in wakes if wake.signal is YOURS}
            to_look = {(wake.id, LOOK.value) for wake in wakes if wake.signal is LOOK}
            told = {letter for letter in to_look if letter[0] == _WATCHER or letter[0] in self._outside}
            assert heard == yours | told
        self._outside -= {id for id, _ in heard}
        self._watch()

    def _watch(self) -> None:
        """Somebody follows the election, always: who was told follows it no longer."""
        client = self._seats[0].me.id
        self._world.watch(Spot(LINES, self._name), client, _WATCHER)
        self._raw(
            "INSERT INTO {s}.dibs_watchers VALUES ('line', %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            self._name, _WATCHER, client, _LONG,
        )  # fmt: skip
