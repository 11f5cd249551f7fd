"""What this client has in session mode: a stand for each claim, with the connection that waits or holds for it.

A connection that waits has asked, and the server answers when its turn has come. The sockets of all of them are one
source of messages (core/runtime.py), together with the ear: in threads one of those who wait reads, in asyncio the
loop. A stand's link is used by whoever has its `busy`, and by nobody else. A stand whose connection ended is gone.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Sequence
from enum import Enum, auto
from math import inf

import psycopg

from dibs.backends.common.disconnects import Disconnects
from dibs.backends.common.wakeup import Wakeup
from dibs.backends.postgresql.answers import Refusal
from dibs.backends.postgresql.connection import Dialler, PostgresqlConnection
from dibs.backends.postgresql.executor import words_of
from dibs.backends.postgresql.sessions import Sessions
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.deadline import FOREVER, left_for, valid_until
from dibs.core.line import LOOK, YOURS, Me
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_CLOSING = 1.0
_LATE = 0.25
"""Of a lease: what was granted so long ago is to be asked about again before it counts."""


class State(Enum):
    ASKS = auto()
    WAITS = auto()
    HOLDS = auto()
    GONE = auto()


ASKS, WAITS, HOLDS, GONE = State


class Stand:
    __slots__ = ("anchor", "busy", "claim", "is_forsaken", "key", "link", "pinged", "revoked", "shared", "state")

    def __init__(self, claim: Claim, key: int) -> None:
        self.claim = claim
        self.key = key
        self.shared = claim.weight < claim.capacity
        self.state = ASKS
        self.link: PostgresqlConnection | None = None
        self.busy = allocate_lock()
        self.anchor = -inf
        """When the last statement went out that the server has answered: it holds for a lease longer than that."""
        self.pinged: float | None = None
        """When the question went out that the server still owes an answer to."""
        self.revoked = False
        self.is_forsaken = False

    def hold(self, token: int, sent_at: float) -> None:
        self.claim.ticket = token
        self.anchor = sent_at
        self.state = HOLDS

    def standing(self, lease: float, now: float) -> Standing | None:
        """None: gone. The lease of who waits begins when it is granted. So half of one may count from any moment at
        which it was not, if the answer that says so comes in less than the other half; `_heard` sees to that."""
        if self.state is GONE:
            return None
        if self.state is not HOLDS:
            return Standing(0, False, min(self.claim.waiting, lease / 2), FOREVER, False)
        left = left_for(valid_until(self.anchor, lease), now)
        return Standing(self.claim.ticket or 0, True, left, FOREVER, self.revoked)


class Stands:
    def __init__(self, dialler: Dialler, runtime: Runtime, me: Me, ear: PostgresqlSubscriber | None, most: int) -> None:
        self.lease = me.lease
        self._me = me
        self._now = runtime.now
        self.ear = ear
        self._hangups = Disconnects(runtime, self._ended, self._tidied)
        self.sessions = Sessions(dialler, self._hangups, me.lease, most)
        self._stands: dict[bytes, Stand] = {}
        self._linked: dict[int, Stand] = {}
        """By the number of its socket."""
        self._buried: dict[bytes, float] = {}
        """Who was given up, until when a late copy of its join could come."""
        self.is_swept = False
        self._reading = allocate_lock()
        self._closed = False
        self._poked = Wakeup()
        self.fileno, self.poke = self._poked.fileno, self._poked.poke
        if ear is not None:
            self._poked.attend(ear.source.fileno())

    def find(self, claim: Claim) -> Stand | None:
        return self._stands.get(claim.id)

    def begin(self, claim: Claim, key: int) -> Stand:
        stand = self._stands[claim.id] = Stand(claim, key)
        return stand

    def finish(self, claim: Claim) -> Stand | None:
        return self._stands.pop(claim.id, None)

    def bury(self, claim: Claim) -> None:
        now = self._now()
        for id, by in list(self._buried.items()):
            if by < now:
                self._buried.pop(id, None)
        self._buried[claim.id] = claim.by

    def is_void(self, claim: Claim) -> bool:
        """Too late, or given up before."""
        return self._now() > claim.by or claim.id in self._buried

    def lend(self, stand: Stand, link: PostgresqlConnection) -> None:
        """From now on that connection is this stand's; one that it had before is gone."""
        stand.link, stand.state = link, ASKS
        self._linked[link.fileno()] = stand

    def wait(self, stand: Stand, link: PostgresqlConnection) -> None:
        """It has asked the server to be told when its turn has come."""
        stand.state = WAITS
        self._poked.attend(link.fileno())

    def stop_waiting(self, link: PostgresqlConnection) -> None:
        self._poked.ignore(link.fileno())

    def give_back(self, stand: Stand) -> None:
        """Its connection holds nothing any more, and is as good as before."""
        link = self._unlinked(stand)
        if link is not None:
            self.sessions.give(link)

    def drop(self, stand: Stand) -> None:
        """With its connection goes whatever it holds, or waits for."""
        link = stand.link
        if link is not None and self._linked.get(link.fileno()) is stand:
            self.stop_waiting(link)
        self._unlinked(stand)
        stand.state = GONE
        if link is not None:
            self.sessions.drop(link)

    def _unlinked(self, stand: Stand) -> PostgresqlConnection | None:
        link, stand.link = stand.link, None
        if link is not None and self._linked.get(link.fileno()) is stand:  # not another's that bears its number by now
            self._linked.pop(link.fileno(), None)
        return link

    def free(self, stand: Stand) -> None:
        """Whoever had it lets go of it. If it was given up meanwhile by somebody who did not get it, nobody else will
        clear it away."""
        if stand.is_forsaken:
            self.drop(stand)
        stand.busy.release()

    def forsake(self, stand: Stand) -> None:
        """Somebody else has it, and is to clear it away."""
        stand.is_forsaken = True
        if stand.busy.acquire(blocking=False):  # that one has just gone
            self.free(stand)

    def look(self, stand: Stand) -> list[tuple[bytes, bytes]]:
        """Whether the turn has come of one that waits; never blocks. Where somebody uses it now, that one will see."""
        if not stand.busy.acquire(blocking=False):
            return []
        try:
            return self._heard(stand, stand.link) if stand.state is WAITS and stand.link is not None else []
        finally:
            self.free(stand)

    def _heard(self, stand: Stand, link: PostgresqlConnection) -> list[tuple[bytes, bytes]]:
        try:
            result = link.received()
            if result is None:
                return []
            self.stop_waiting(link)
            if self.settle(stand, words_of(result), -inf):
                signal = YOURS if link.age_of(result) <= self.lease * _LATE else LOOK
                return [(stand.claim.id, signal.value)]
            self.give_back(stand)
            stand.state = GONE
        except (psycopg.Error, Refusal, StoreUnavailable, StoreError):
            self.drop(stand)
        except BaseException:
            self.drop(stand)
            raise
        return [(stand.claim.id, LOOK.value)]  # it asks again, and is told why

    @staticmethod
    def settle(stand: Stand, words: Sequence[bytes], sent_at: float) -> bool:
        """What `take` answered: whether it holds."""
        if words[1] != b"s" or len(words) != 3 or not words[2].isdigit():
            return False
        stand.hold(int(words[2]), sent_at)
        return True

    def close(self) -> None:
        self._closed = True
        self._hangups.close()
        self.poke()
        was_read = self._reading.acquire(timeout=_CLOSING)  # who still reads is about to stop
        for stand in list(self._stands.values()):
            if stand.busy.acquire(timeout=_CLOSING):
                self.drop(stand)
                stand.busy.release()
        self.sessions.close()
        self._poked.close()
        if was_read:
            self._reading.release()

    def abandon(self) -> None:
        """A forked child lets go of what is its parent's, of which no lock can be trusted."""
        for stand in self._stands.values():
            if stand.link is not None:
                stand.link.abandon()
        self.sessions.abandon()
        self._poked.close()

    # As a source of messages: see core/runtime.py.

    def read(self) -> list[tuple[bytes, bytes]]:
        self._poked.settle()
        told = [] if self.ear is None else self.ear.source.read()
        for there in self._poked.readable():
            stand = self._linked.get(there)
            if stand is not None:
                told += self.look(stand)
        return told

    def receive(self, patience: float) -> list[tuple[bytes, bytes]]:
        with self._reading:
            if self._closed:
                return []
            self._poked.sleep(patience)
            return self.read()

    def _tidied(self) -> None:
        self.sessions.tidy()

    def _ended(self, link: PostgresqlConnection) -> None:
        """In the thread of the hang-ups: whose connection it was is looked at at once."""
        stand = self._linked.get(link.fileno())
        if stand is None:
            self.sessions.ended(link)
        else:
            self._me.news(stand.claim.id)
