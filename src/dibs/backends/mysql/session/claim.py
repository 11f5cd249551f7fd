"""A claim in session mode, with what its session has proven; see common/session_claims.py.

A waiting session is in the middle of a statement (take.sql): its reply is the grant.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.backends.common.session_claims import GONE, HOLDS, SessionClaim, SessionClaims
from dibs.backends.mysql.answers import strange
from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.session.connection import Session
from dibs.core.deadline import FOREVER
from dibs.core.line import LOOK, YOURS, Signal
from dibs.core.rule import Claim, Standing


class Asks(NamedTuple):
    """The requests for a claim; all claims of one name and kind share them."""

    key: str
    """The name of its user lock."""
    take: Request
    give: Request


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


def ticket_of(said: list[bytes]) -> int:
    try:
        return int(said[2])
    except (ValueError, IndexError):
        raise strange() from None
