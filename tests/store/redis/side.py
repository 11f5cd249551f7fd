"""The queue of both.py on a Redis server: the hash of its name, and what is published."""

from __future__ import annotations

from typing import Any

from dibs.backends.common.atomic_queue import QUEUES, Entry, Wake
from dibs.backends.memory import World
from dibs.core.cells import CellKey
from dibs.core.queue import LOOK, UNFAIR, YOURS, Place
from dibs.core.rule import Claim, Standing
from dibs.testing.contract.seats import Seat
from store.both import SLACK, Pair
from store.redis.hashes import Raw

_WATCHER = b"watcher"
_LONG = 86_400_000


class Spy:
    """Everything that is published below a prefix, in order."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self._heard: Any = raw.client.pubsub()
        self._heard.psubscribe(f"{raw.prefix}*")
        assert self._heard.get_message(timeout=10)["type"] == "psubscribe", "it is not acknowledged"
        self._number = 0

    def heard(self) -> list[tuple[bytes, bytes]]:
        """Since the last time."""
        self._number += 1
        end = (f"{self._raw.prefix}end".encode(), b"%d" % self._number)
        self._raw.client.publish(*end)
        found: list[tuple[bytes, bytes]] = []
        while end not in found:
            message = self._heard.get_message(timeout=10)
            assert message is not None, "what was published did not arrive"
            found.append((message["channel"], message["data"]))
        return found[:-1]

    def close(self) -> None:
        self._heard.close()


class RedisSide:
    """After every verb the chain in the hash must be whole."""

    def __init__(self, raw: Raw, spy: Spy, name: str, world: World) -> None:
        self._raw, self._spy, self._name = raw, spy, name
        self._queue = raw.queue(name)
        self._unfair = 0.0
        """Until when somebody may listen there."""
        self._watch(world)

    def joined(self, ours: Claim, place: Place, found: Standing | None, now: float) -> None:
        if place is UNFAIR and found is not None and not found.holds:
            self._unfair = max(self._unfair, now + ours.waiting)

    def left(self, ours: Claim, stood: bool) -> None:
        """Redis keeps no record of a subscriber."""

    def before_renewing(self, seat: Seat) -> None:
        """A renewal looks at the whole queue."""

    def tell_time(self, seat: Seat) -> None:
        seat.holders(self._name)

    def same_next(self, found: Standing, expected: Standing, after: Standing) -> bool:
        return found.next == expected.next or abs(found.next - expected.next) < SLACK

    def check(self, stand: list[Entry], now: float) -> None:
        chain = [record["ID"] for record in self._queue.check()]
        assert chain == [entry.id for entry in stand], "what expired is removed here and not there"
        assert self._queue.lasts() > 0 or not self._queue.fields(), "a key that stays for ever"
        self._raw.client.pexpire(self._queue.key, _LONG)  # or what expired would go with it, unseen

    def woken(self, wakes: list[Wake] | None, pairs: list[Pair], world: World, now: float) -> None:
        """Exactly who now holds, each on its client's channel; and those who listen to the name, if there are any."""
        heard = self._spy.heard()
        yours = {(channel, said[at : at + 17]) for channel, said in heard for at in range(0, len(said), 17)
                 if channel != self._queue.key}  # fmt: skip
        if wakes is not None:
            assert yours == {(self._raw.channel(wake.client).encode(), wake.id + b"y") for wake in wakes
                             if wake.signal is YOURS}  # fmt: skip
        told = any(channel == self._queue.key for channel, _ in heard)
        to_look = [wake for wake in wakes or [] if wake.signal is LOOK]
        watched = any(wake.id == _WATCHER for wake in to_look)
        unfair_waiters = self._unfair > now + SLACK and len(to_look) > watched
        if watched or unfair_waiters:
            assert told
        if told:
            assert watched or self._unfair > now - SLACK or wakes is None, "nobody listens"
        self._watch(world)

    def _watch(self, world: World) -> None:
        """Somebody follows the election, always: who was told follows it no longer."""
        world.watch(CellKey(QUEUES, self._name), b"watching", _WATCHER)
