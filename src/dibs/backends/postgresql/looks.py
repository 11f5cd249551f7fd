"""Who waits where no messages are to be had: whoever's turn it is looks for all of them, in one statement."""

from __future__ import annotations

from dibs.core.rule import Claim

GLANCE = 0.75
"""Seconds between two looks: with the keeper's renewals less than two statements a second."""


class Looks:
    """Of one client, in whatever threads or tasks they wait."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Claim] = {}
        self.due = 0.0
        """The instant of the next look."""
        self._outside: dict[bytes, None] = {}

    def add(self, claim: Claim, now: float) -> None:
        if not self._waiting:
            self.due = now + GLANCE
        self._waiting[claim.id] = claim

    def remove(self, claim: Claim) -> None:
        self._waiting.pop(claim.id, None)

    def stay_outside(self, claim: Claim) -> None:
        """It stands in no line, and is to be told when it may try again."""
        self._outside[claim.id] = None

    def come_in(self, claim: Claim) -> None:
        self._outside.pop(claim.id, None)

    def is_outside(self, claim: Claim) -> bool:
        return claim.id in self._outside

    def all(self) -> list[Claim]:
        return list(self._waiting.values())

    def on(self, name: str) -> list[Claim]:
        return [claim for claim in self.all() if claim.name == name]

    def is_ours(self, now: float) -> bool:
        """Whether who asks is to look now: one of all who wake at the same time."""
        if now < self.due:
            return False
        self.due = now + GLANCE
        return True
