"""The queue of both.py on a MySQL server: the rows of its name, and who is marked as told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dibs.backends.common.atomic_queue import Wake
from dibs.backends.memory import World
from dibs.core.queue import LOOK, QUEUE, YOURS, Place, Taken
from dibs.core.rule import Claim, Entry, Prepared, Standing
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from store.both import SLACK, Pair, Side
from store.mysql.rows import Raw


class FreeSeat(Seat):
    """A client that takes and leaves by the free path, where there is one."""

    def claim(self, *given: Any, **options: Any) -> Claim:
        claim = super().claim(*given, **options)
        claim.prepared = Prepared()
        return claim

    def join(self, claim: Claim, place: Place | None = None) -> Standing | None:
        taken = self.queue.take_now(claim, place or self.usual, self.soon)
        assert taken is None or isinstance(taken, Standing)
        return super().join(claim, place) if taken is None else taken

    def leave(self, claim: Claim, *, answered: bool = True) -> bool:
        left = self.queue.leave_now(claim, self.soon) if answered else None
        assert left is None or isinstance(left, bool)
        return super().leave(claim, answered=answered) if left is None else left


@contextmanager
def meanwhile_taking(seat: FreeSeat, claim: Claim) -> Iterator[list[Taken]]:
    """`take_now` in a thread of its own: its answer, once that is there."""
    found: list[Taken] = []
    thread = threading.Thread(target=lambda: found.append(seat.queue.take_now(claim, QUEUE, seat.soon)))
    thread.start()
    try:
        yield found
    finally:
        thread.join()


class MysqlSide(Side):
    def __init__(self, raw: Raw, name: str, world: World) -> None:
        """Every second queue was used before, and is free."""
        self._raw, self._name = raw, name
        if int(name.rpartition(":")[2]) % 2:
            raw.ask("INSERT INTO dibs_queues (name, special, apart) VALUES (%s, 0, 0)", raw.key(name))

    def before_renewing(self, seat: Seat) -> None:
        """A holder only extends its claim here; in memory it looks at the queue as well. So everybody looks first."""
        seat.evict(0, self._name)

    def tell_time(self, seat: Seat) -> None:
        seat.evict(0, f"{self._name} elsewhere")

    def same_next(self, found: Standing, expected: Standing, after: Standing) -> bool:
        """A holder has no use for it. A renewal extends holders before it looks, and the others later."""
        return found.holds or expected.next - SLACK <= found.next <= after.next + SLACK

    def check(self, stand: list[Entry], now: float) -> None:
        standing = [entry.id for entry in stand]
        rows = [id for _, id in self._raw.claims(self._name)]
        assert [id for id in rows if id in standing] == standing
        over = self._raw.over(self._name)
        assert set(rows) - set(standing) <= over, "what has not expired is removed there and not here"

    def woken(self, wakes: list[Wake] | None, pairs: list[Pair], world: World, now: float) -> None:
        """Exactly who now holds: handed over in this process, or marked for its client to hear. Those who wait outside
        are marked, some of them, if it is theirs to try."""
        key = self._raw.key(self._name)
        told = {bytes(id) for (id,) in self._raw.ask("SELECT id FROM dibs_claims WHERE name = %s AND freed = 1", key)}
        self._raw.ask("UPDATE dibs_claims SET freed = NULL WHERE name = %s AND freed = 1", key)
        for seat, ours, _ in pairs:
            if step(seat.me.inbox.wait(ours.id, 0.0)) == YOURS.value:
                told.add(ours.id)
        asked = {bytes(id) for (id,) in self._raw.ask("SELECT id FROM dibs_watchers WHERE name = %s AND told = 1", key)}
        self._raw.ask("UPDATE dibs_watchers SET told = NULL WHERE name = %s AND told = 1", key)
        if wakes is None:
            return
        assert told == {wake.id for wake in wakes if wake.signal is YOURS}
        to_look = {wake.id for wake in wakes if wake.signal is LOOK}
        assert asked <= to_look
        fresh = {ours.id for _, ours, twin in pairs if twin.by > now + SLACK}
        assert not to_look & fresh or asked, "nobody outside is told"
