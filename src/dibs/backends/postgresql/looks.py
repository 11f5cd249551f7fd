"""Who waits where no messages are to be had: whoever's turn it is looks for all of them, in one statement; soon after
somebody came, and then less and less often.
"""

from __future__ import annotations

from dibs.core.rule import Claim

GLANCE, _FIRST = 0.75, 0.05
"""Seconds between two looks, in the end: with the watchdog's renewals less than two statements a second."""


class Looks:
    """Of one client, in whatever threads or tasks they wait."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Claim] = {}
        self.due = 0.0
        """The instant of the next look."""
        self._gap = GLANCE
        self.untold: dict[bytes, None] = {}
        """Those who stand in line, or outside, and were not told that they hold."""

    def add(self, claim: Claim, now: float) -> None:
        self._gap = _FIRST
        self.due = min(self.due, now + _FIRST) if self._waiting else now + _FIRST
        self._waiting[claim.id] = claim

    def remove(self, claim: Claim) -> None:
        self._waiting.pop(claim.id, None)

    def expect(self, claim: Claim) -> None:
        """It does not hold, and is to be told when it does, or may try again."""
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
        """Whether who asks is to look now: one of all who wake at the same time."""
        if now < self.due:
            return False
        self._gap = min(self._gap * 2, GLANCE)
        self.due = now + self._gap
        return True
