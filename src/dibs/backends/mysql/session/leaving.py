"""Giving back many claims of session mode at once: every session is told before any is read, so that together they take
one way there and back.
"""

from __future__ import annotations

from contextlib import suppress

from dibs.backends.common.session_claims import HOLDS
from dibs.backends.mysql.session.claim import Claims
from dibs.backends.mysql.session.connection import Session
from dibs.core.rule import Claim
from dibs.errors import StoreError


class Leaving:
    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self.told: list[tuple[int, Session]] = []
        """Positions of those that held, with their sessions, which are to reply."""
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
        self.told.append((position, session))
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
            self._claims.pool.drop(self.told.pop()[1])
