"""Polling for waiters that no messages reach: one of them polls for all, in one statement; soon after a new one
came, and then less and less often.
"""

from __future__ import annotations

from dibs.core.rule import Claim

POLL_INTERVAL, _FIRST = 0.75, 0.05
"""Seconds between two looks, in the end: with the watchdog's renewals less than two statements a second."""


class Polling:
    """The waiters of one client, in any threads or tasks."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Claim] = {}
        self.due = 0.0
        """The instant of the next look."""
        self._gap = POLL_INTERVAL
        self.untold: dict[bytes, None] = {}
        """Claims that wait, in the queue or outside, and that nobody tells when they hold."""

    def add(self, claim: Claim, now: float) -> None:
        self._gap = _FIRST
        self.due = min(self.due, now + _FIRST) if self._waiting else now + _FIRST
        self._waiting[claim.id] = claim

    def remove(self, claim: Claim) -> None:
        self._waiting.pop(claim.id, None)

    def expect(self, claim: Claim) -> None:
        """It waits."""
        self.untold[claim.id] = None

    def forget(self, claim: Claim) -> None:
        self.untold.pop(claim.id, None)

    def is_untold(self, claim: Claim) -> bool:
        return claim.id in self.untold

    def all(self) -> list[Claim]:
        return list(self._waiting.values())

    def on(self, name: str) -> list[Claim]:
        return [claim for claim in self.all() if claim.name == name]

    def is_ours(self, now: float) -> bool:
        """Whether the caller polls now: one of all that wake at the same time."""
        if now < self.due:
            return False
        self._gap = min(self._gap * 2, POLL_INTERVAL)
        self.due = now + self._gap
        return True
