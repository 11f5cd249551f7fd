"""Stores that promise what the others keep. Each has one mistake, of those that are really made."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from acme_locks.store import AcmeQueue, AcmeStore
from dibs.core.queue import NOWHERE, QUEUE, UNFAIR, ClientIdentity, Place
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime


class LeaveQueue(AcmeQueue):
    """Gives back by name, whoever holds by now: `DEL lock`."""

    async def leave(self, claim: Claim, answered: bool, until: float) -> None:
        for holder in (await self._queue.inspect(claim.name, until)).holders:
            await self._queue.evict(claim.name, holder.token, until)
        await self._queue.leave(claim, answered, until)


class LeaveStore(AcmeStore):
    queue = LeaveQueue


class RenewQueue(AcmeQueue):
    """Renews what has expired as well: `SET lock me PX 30000`."""

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        standings = await self._queue.renew(claims, until)
        return [
            standing or await self._queue.join(self._as_new(claim), UNFAIR, until)
            for claim, standing in zip(claims, standings, strict=True)
        ]

    @staticmethod
    def _as_new(claim: Claim) -> Claim:
        again = copy(claim)
        again.by = float("inf")
        return again


class RenewStore(AcmeStore):
    queue = RenewQueue


class TryQueue(AcmeQueue):
    """A try that fails stands in the queue for a moment, in the way of others."""

    def __init__(self, queue: Any, runtime: Runtime) -> None:
        super().__init__(queue)
        self._runtime = runtime

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        standing: Standing | None = await self._queue.join(claim, QUEUE if place is NOWHERE else place, until)
        if place is NOWHERE and standing is not None and not standing.holds:
            await self._runtime.sleep(0.01)
            await self._queue.leave(claim, True, until)
        return standing


class TryStore(AcmeStore):
    def open(self, runtime: Runtime, me: ClientIdentity) -> Any:
        return TryQueue(self._inner.open(runtime, me), runtime)


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

    def open(self, runtime: Runtime, me: ClientIdentity) -> Any:
        return super().open(runtime, ClientIdentity(me.id, Deaf(me.inbox), me.lease, me.news))
