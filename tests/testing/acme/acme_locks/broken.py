"""Stores that promise what the others keep. Each has one mistake, of those that are really made."""

from __future__ import annotations

from typing import Any

from acme_locks.store import AcmeQueue, AcmeStore
from dibs.core.queue import ClientIdentity
from dibs.core.rule import Claim
from dibs.core.runtime import Runtime


class LeaveQueue(AcmeQueue):
    """Gives back by name, whoever holds by now: `DEL lock`."""

    async def leave(self, claim: Claim, answered: bool, until: float) -> None:
        for holder in (await self._queue.inspect(claim.name, until)).holders:
            await self._queue.evict(claim.name, holder.token, until)
        await self._queue.leave(claim, answered, until)


class LeaveStore(AcmeStore):
    queue = LeaveQueue


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
