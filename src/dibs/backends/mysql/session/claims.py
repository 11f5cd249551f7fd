"""Claims in session mode, each with what its session has proven; see common/session_claims.py.

A waiting session is in the middle of a statement (take.sql): its reply is the grant. `Leaving` gives back many at once:
every session is told before any is read, so that together they take one round trip.
"""

from __future__ import annotations

from contextlib import suppress

from dibs.backends.common.session_claims import GONE, HOLDS, SessionClaim, SessionClaims
from dibs.backends.mysql.calls import Query, size_of
from dibs.backends.mysql.errors import strange
from dibs.backends.mysql.session.connection import Session
from dibs.backends.mysql.wire import execution
from dibs.core.deadline import FOREVER
from dibs.core.queue import LOOK, YOURS, Signal
from dibs.core.rule import Claim, Standing
from dibs.errors import StoreError


class Asks:
    """The requests for a claim; all claims of one lock object share them."""

    __slots__ = (
        "description",
        "give",
        "give_size",
        "is_busy",
        "key",
        "kind",
        "lease",
        "name",
        "release",
        "take",
        "take_size",
    )

    def __init__(self, key: str, name: bytes, kind: str, lease: int, description: bytes) -> None:
        self.key = key
        """The name of the user lock."""
        self.name = name
        self.kind = kind
        self.lease = lease
        self.description = description
        self.release = Query("DO RELEASE_LOCK({})", key)
        self.take, self.give = execution((kind, lease, description, key, key)), execution((key,))
        self.take_size, self.give_size = size_of(self.take), size_of(self.give)
        self.is_busy = False
        """It was not free when it was last asked for: `join` is the shorter way."""


class MysqlClaim(SessionClaim[Session]):
    __slots__ = ("asks", "seen_at", "ticket")

    def __init__(self, claim: Claim, asks: Asks) -> None:
        super().__init__(claim)
        self.asks = asks
        self.ticket = 0
        self.seen_at = 0.0
        """An instant at which its session surely had not been silent for any time yet."""

    def standing(self, lease: float, now: float) -> Standing | None:
        left = self.seen_at + lease - now
        if self.state is GONE or left <= 0:
            return None
        holds = self.state is HOLDS
        return Standing(self.ticket, holds, left if holds else min(left, self.claim.waiting), FOREVER, self.revoked)

    def hold(self, said: list[bytes]) -> None:
        self.ticket = self.claim.ticket = ticket_of(said)
        self.state = HOLDS

    def hear(self, session: Session, now: float) -> Signal | None:
        """Read the reply to its wait: see `SessionClaims`."""
        told = session.result() if session.read() else session.told()
        if told is None:
            self.seen_at = now
            return None
        if told[1] == b"held":
            self.hold(told)
            return YOURS
        self.state = GONE
        return LOOK  # it asks again, and is told why


Claims = SessionClaims[MysqlClaim, Session]


class Leaving:
    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self.told: list[tuple[int, MysqlClaim, Session]] = []
        """Positions of those that held, with the claims and their sessions, which are to reply."""
        self.waits: list[tuple[int, int]] = []
        """The server's numbers of the sessions of those that waited, which are closed, with their tickets."""
        self.rest: list[int] = []
        """Positions of those whose session somebody else uses, or is not ready for this; and of those that are gone."""

    def tell(self, position: int, claim: Claim, answered: bool, now: float) -> None:
        """Nothing here waits."""
        one = self._claims.find(claim)
        if one is None:
            self.rest.append(position)
            return
        self._claims.look(one)
        session = one.take()
        if session is None:
            self.rest.append(position)
            return
        self.told.append((position, one, session))
        holds = one.state is HOLDS
        if session.asked == holds:  # one that holds is still to reply, or one that waits is not
            self.told.pop()
            self._claims.put_back(one, session)
            self.rest.append(position)
            return
        if not answered:
            self._claims.bury(claim)
        self._claims.finish(claim)
        if holds:
            with suppress(StoreError):  # it ended, which is seen when it is read
                session.ask(one.asks.release, now)
        else:
            self.told.pop()
            self.waits.append((session.number, one.ticket))
            self._claims.drop(one, session)

    def abandon(self) -> None:
        """After an interrupt: what they hold ends with them."""
        while self.told:
            self._claims.pool.drop(self.told.pop()[2])


def ticket_of(said: list[bytes]) -> int:
    try:
        return int(said[2])
    except (ValueError, IndexError):
        raise strange() from None
