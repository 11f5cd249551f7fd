"""Giving back many claims of session mode at once: every session is told before any is read, so that together they take
one way there and back.
"""

from __future__ import annotations

from contextlib import suppress

from dibs.backends.mysql.session.session import Session
from dibs.backends.mysql.session.sessions import Sessions
from dibs.backends.mysql.session.stands import Stands
from dibs.core.rule import Claim
from dibs.errors import StoreError


class Leaving:
    def __init__(self, stands: Stands, sessions: Sessions) -> None:
        self._stands = stands
        self._sessions = sessions
        self.told: list[tuple[int, Session]] = []
        """Positions of those that held, with their sessions, which are to answer."""
        self.waits: list[tuple[int, int]] = []
        """The server's numbers of the sessions of those that waited, which are closed, with their tickets."""
        self.rest: list[int] = []
        """Positions of those whose session somebody else has, or is not ready for this; and of those that are gone."""

    def tell(self, position: int, claim: Claim, answered: bool, now: float) -> None:
        """Nothing here waits."""
        stand = self._stands.find(claim.id)
        if stand is None:
            self.rest.append(position)
            return
        self._stands.catch_up(stand)
        try:
            session = stand.desk.pop()
        except IndexError:
            self.rest.append(position)
            return
        self.told.append((position, session))
        if session.asked == stand.holds:  # one that holds is still to answer, or one that waits is not
            self.told.pop()
            stand.put_back(session, self._sessions)
            self.rest.append(position)
            return
        if not answered:
            self._stands.bury(claim)
        self._stands.finish(claim.id)
        if stand.holds:
            with suppress(StoreError):  # it ended, which is seen when it is read
                session.ask(stand.asks.give, now)
        else:
            self.told.pop()
            self.waits.append((session.number, stand.ticket))
            self._stands.ignore(session)
            self._sessions.discard(session)

    def abandon(self) -> None:
        """After an interrupt: what they hold ends with them."""
        while self.told:
            self._sessions.discard(self.told.pop()[1])
