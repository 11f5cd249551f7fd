"""`acme-plain://name`: a store that can do the least: mutexes, in no order. What it did not promise, it refuses."""

from __future__ import annotations

from typing import ClassVar

from acme_locks.store import AcmeLine, AcmeStore
from dibs import Unsupported
from dibs.core.line import LEASES, LINE, RECORDS, Place
from dibs.core.rule import Claim, Standing

REFUSED = {"rw", "semaphore"}


class PlainLine(AcmeLine):
    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        if place is LINE or claim.kind in REFUSED:
            raise Unsupported(f"acme-plain was asked for {claim.kind} in {place}, which it does not have")
        standing: Standing | None = await self._line.join(claim, place, until)
        return standing


class PlainStore(AcmeStore):
    line = PlainLine
    capabilities: ClassVar[frozenset[str]] = frozenset({LEASES, RECORDS})
