"""A claim in session mode, with what its connection has proven; see common/session_claims.py."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import psycopg

from dibs.backends.common.session_claims import GONE, HOLDS, SessionClaim
from dibs.backends.postgresql.connection import PostgresqlConnection, broken
from dibs.backends.postgresql.executor import words_of
from dibs.core.deadline import FOREVER, left_for, valid_until
from dibs.core.line import LOOK, YOURS, Signal
from dibs.core.rule import Claim, Standing

_LATE = 0.25
"""Part of a lease: a grant that the server made longer ago counts once the server has replied again."""


class PostgresqlClaim(SessionClaim[PostgresqlConnection]):
    __slots__ = ("anchor", "key", "pinged", "shared")

    def __init__(self, claim: Claim, key: int) -> None:
        super().__init__(claim)
        self.key = key
        self.shared = claim.weight < claim.capacity
        self.anchor = -inf
        """When the last statement was sent that the server has replied to: it holds for a lease longer than that."""
        self.pinged: float | None = None
        """When the request was sent that the server still owes a reply to."""

    def settle(self, words: Sequence[bytes], sent_at: float) -> bool:
        """Read the reply of `take`: whether it holds."""
        if words[1] != b"s" or len(words) != 3 or not words[2].isdigit():
            return False
        self.claim.ticket = int(words[2])
        self.anchor = sent_at
        self.state = HOLDS
        return True

    def hear(self, connection: PostgresqlConnection, lease: float) -> Signal | None:
        """Read the reply to its wait: see `SessionClaims`."""
        try:
            result = connection.received()
        except psycopg.Error as error:
            raise broken(error) from None
        if result is None:
            return None
        if not self.settle(words_of(result), -inf):
            self.state = GONE
            return LOOK
        return YOURS if connection.age_of(result) <= lease * _LATE else LOOK

    def standing(self, lease: float, now: float) -> Standing | None:
        """None: gone. The lease of a waiter begins when it is granted. So half of one may count from any moment at
        which it was not, if the reply that says so comes in less than the other half; `hear` sees to that."""
        if self.state is GONE:
            return None
        if self.state is not HOLDS:
            return Standing(0, False, min(self.claim.waiting, lease / 2), FOREVER, False)
        left = left_for(valid_until(self.anchor, lease), now)
        return Standing(self.claim.ticket or 0, True, left, FOREVER, self.revoked)
