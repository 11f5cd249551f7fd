"""`acme-plain://name`: a store that can do the least: mutexes, in no order. What it did not promise, it refuses."""

from __future__ import annotations

from typing import ClassVar

from acme_locks.store import AcmeQueue, AcmeStore
from dibs import Unsupported
from dibs.core.queue import LEASES, QUEUE, RECORDS, Place
from dibs.core.rule import Claim, Standing

REFUSED = {"rw", "semaphore"}


class PlainQueue(AcmeQueue):
    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        if place is QUEUE or claim.kind in REFUSED:
            raise Unsupported(f"acme-plain was asked for {claim.kind} in {place}, which it does not have")
        standing: Standing | None = await self._queue.join(claim, place, until)
        return standing


class PlainStore(AcmeStore):
    queue = PlainQueue
    capabilities: ClassVar[frozenset[str]] = frozenset({LEASES, RECORDS})
