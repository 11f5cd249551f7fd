"""Stores that promise what the others keep. Each has one mistake, of those that are really made."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from acme_locks.store import AcmeLine, AcmeStore
from dibs.core.line import LINE, NOWHERE, OUTSIDE, Me, Place
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime


class LeaveLine(AcmeLine):
    """Gives back by name, whoever holds by now: `DEL lock`."""

    async def leave(self, claim: Claim, answered: bool, until: float) -> None:
        for holder in (await self._line.line(claim.name, until)).holders:
            await self._line.evict(claim.name, holder.token, until)
        await self._line.leave(claim, answered, until)


class LeaveStore(AcmeStore):
    line = LeaveLine


class RenewLine(AcmeLine):
    """Renews what has expired as well: `SET lock me PX 30000`."""

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        standings = await self._line.renew(claims, until)
        return [
            standing or await self._line.join(self._as_new(claim), OUTSIDE, until)
            for claim, standing in zip(claims, standings, strict=True)
        ]

    @staticmethod
    def _as_new(claim: Claim) -> Claim:
        again = copy(claim)
        again.by = float("inf")
        return again


class RenewStore(AcmeStore):
    line = RenewLine


class TryLine(AcmeLine):
    """A try that fails stands in line for a moment, in the way of others."""

    def __init__(self, line: Any, runtime: Runtime) -> None:
        super().__init__(line)
        self._runtime = runtime

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        standing: Standing | None = await self._line.join(claim, LINE if place is NOWHERE else place, until)
        if place is NOWHERE and standing is not None and not standing.holds:
            await self._runtime.sleep(0.01)
            await self._line.leave(claim, True, until)
        return standing


class TryStore(AcmeStore):
    def open(self, runtime: Runtime, me: Me) -> Any:
        return TryLine(self._inner.open(runtime, me), runtime)


class Deaf:
    """An inbox that nothing arrives in."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox

    def deliver(self, key: bytes, message: bytes) -> None:
        """Lost."""

    def __getattr__(self, part: str) -> Any:
        return getattr(self._inbox, part)


class WakeStore(AcmeStore):
    """Wakes nobody: who waits finds out by looking, late."""

    def open(self, runtime: Runtime, me: Me) -> Any:
        return super().open(runtime, Me(me.id, Deaf(me.inbox), me.lease, me.news))
