"""The line of both.py on a MySQL server: the rows of its name, and who is marked as told."""

from __future__ import annotations

from dibs.backends.ledger import Wake
from dibs.backends.memory import World
from dibs.core.line import LOOK, YOURS, Place
from dibs.core.rule import Claim, Entry, Standing
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from store.both import SLACK, Pair
from store.mysql.rows import Raw


class MysqlSide:
    def __init__(self, raw: Raw, name: str, world: World) -> None:
        self._raw, self._name = raw, name

    def joined(self, ours: Claim, place: Place, found: Standing | None, now: float) -> None:
        """Who waits outside is noted there."""

    def left(self, ours: Claim, stood: bool) -> None:
        """Likewise."""

    def before_renewing(self, seat: Seat) -> None:
        """Who holds only extends its claim, and in memory looks at the line as well: here everybody looks first."""
        seat.evict(0, self._name)

    def tell_time(self, seat: Seat) -> None:
        seat.evict(0, f"{self._name} elsewhere")

    def same_next(self, found: Standing, expected: Standing, after: Standing) -> bool:
        """Who holds has no use for it. A renewal extends those who hold before it looks, and the others later."""
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
