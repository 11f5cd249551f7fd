"""The queue of both.py on a PostgreSQL server: the rows of its name, and what is notified."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from dibs.backends.common.atomic_queue import QUEUES, Wake
from dibs.backends.memory import World
from dibs.core.cells import CellKey
from dibs.core.deadline import FOREVER
from dibs.core.queue import LOOK, UNFAIR, YOURS, Place
from dibs.core.rule import Claim, Entry, Standing
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from store.both import SLACK, Pair, Side
from store.postgresql.rows import Raw

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


class PostgresqlSide(Side):
    def __init__(self, raw: Raw, spy: Spy, follower: bytes, name: str, world: World) -> None:
        """`follower`: the client that follows the election."""
        self._raw, self._spy, self._follower, self._name = raw, spy, follower, name
        self._unfair: set[bytes] = set()
        """The unfair waiters on record that were not told since."""
        self._watch(world)

    def joined(self, ours: Claim, place: Place, found: Standing | None, now: float) -> None:
        if place is UNFAIR and found is not None and not found.ticket:
            self._unfair.add(ours.id)
        elif place is UNFAIR and found is not None:
            self._unfair.discard(ours.id)

    def left(self, ours: Claim, stood: bool) -> None:
        if not stood:
            self._unfair.discard(ours.id)

    def tell_time(self, seat: Seat) -> None:
        step(seat.queue.identity(seat.soon))

    def same_next(self, found: Standing, expected: Standing, after: Standing) -> bool:
        """A holder has no use for it."""
        return found.holds or expected.next == FOREVER or abs(found.next - expected.next) < SLACK

    def check(self, stand: list[Entry], now: float) -> None:
        there = [entry.id for entry in stand if entry.until > now]
        assert self._raw.claims(self._name) == there, "what stands here does not there"

    def woken(self, wakes: list[Wake] | None, pairs: list[Pair], world: World, now: float) -> None:
        """Exactly who now holds, who follows the election, and those outside, if nobody in the queue was freed."""
        heard = self._spy.heard(self._raw)
        if wakes is not None:
            yours = {(wake.id, YOURS.value) for wake in wakes if wake.signal is YOURS}
            to_look = {(wake.id, LOOK.value) for wake in wakes if wake.signal is LOOK}
            told = {letter for letter in to_look if letter[0] == _WATCHER or letter[0] in self._unfair}
            assert heard == yours | told
        self._unfair -= {id for id, what in heard if what == LOOK.value}
        self._watch(world)

    def _watch(self, world: World) -> None:
        """Somebody follows the election, always: who was told follows it no longer."""
        world.watch(CellKey(QUEUES, self._name), self._follower, _WATCHER)
        self._raw(
            "INSERT INTO {s}.dibs_watchers VALUES ('line', %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            self._name, _WATCHER, self._follower, _LONG,
        )  # fmt: skip
