"""`acme-session://name`: a store whose claims live by their client's session, as ZooKeeper's do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from acme_locks.store import AcmeQueue, AcmeStore
from dibs import StoreError
from dibs.backends.memory import MemoryStore
from dibs.core.queue import ATOMIC_TRY, LEASES, ClientIdentity, Place
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime


class SessionQueue(AcmeQueue):
    """A claim that holds and one that waits last alike, and none is to end sooner than the session does."""

    def __init__(self, queue: Any, session: float) -> None:
        super().__init__(queue)
        self._session = session

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        if claim.lease < self._session:
            raise StoreError(f"a lease of {claim.lease:g} s was asked for in a session of {self._session:g} s")
        claim.lease = claim.waiting = self._session
        standing: Standing | None = await self._queue.join(claim, place, until)
        return standing

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        for claim in claims:
            claim.lease = claim.waiting = self._session
        standings: list[Standing | None] = await self._queue.renew(claims, until)
        return standings


class SessionStore(AcmeStore):
    capabilities: ClassVar[frozenset[str]] = MemoryStore.capabilities - {LEASES, ATOMIC_TRY}

    def open(self, runtime: Runtime, me: ClientIdentity) -> Any:
        return SessionQueue(self._inner.open(runtime, me), me.lease)
