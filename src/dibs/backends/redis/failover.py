"""Which grants count around a fail-over that sentinels decide.

A fail-over leaves two primaries for a while. Sentinels demote the old one about ten seconds after they named the new
one, and after SENTINEL FAILOVER the old one is healthy until then. The new one may also lack the last grants of the
old one. Two rules keep a name from having two valid holders, whatever was not replicated:

1. A reply counts only if a majority of the sentinels named the server the primary at most WINDOW seconds before.
2. After a majority has named a new primary, it grants nothing new for the longest lease in use plus WINDOW: the grace
   period. By then, each hold that counted at the old primary has been renewed at the new one, or has ended.

Proof: two majorities share a sentinel, and a sentinel changes its mind once in a fail-over. So a reply of the old
primary that counts came at most WINDOW after a majority named the new one. Its grant lasts one lease from there.
The longest lease in use is stored in Redis itself (lua/leases.lua).

A thread asks the sentinels once a second while the store is used, so a grant needs no further round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from math import frexp, inf

from dibs.backends.redis.settings import Endpoint
from dibs.core.rule import Standing
from dibs.core.runtime import Runtime, Worker
from dibs.errors import StoreError, StoreUnavailable

WINDOW = 3.0
"""Seconds for which the report of a majority counts."""
_INTERVAL = 1.0
_LINGER = 30.0
"""Seconds after the last use for which the sentinels are still asked."""
_REMEMBERED = 30.0
"""Seconds after which a lease in use is stored again. lua/leases.lua forgets it 90 s and one lease after that."""
_UNKNOWN = 1.0
"""Seconds to wait while the longest lease is not known."""


class Term:
    """One primary, from one fail-over to the next."""

    __slots__ = ("_noted", "confirmed_at", "epoch", "longest", "primary", "since")

    def __init__(self, primary: Endpoint, epoch: int) -> None:
        self.primary = primary
        self.epoch = epoch
        """The sentinels' number of the fail-over that began it; 0: there was none yet."""
        self.confirmed_at = -inf
        """The local instant before the last request in which a majority named it."""
        self.since = inf
        """The local instant by which a majority had named it."""
        self.longest: float | None = None
        """The longest lease in use, as this primary knows it."""
        self._noted: dict[int, tuple[float, float]] = {}
        """By class of leases: the longest lease that we stored there, and when."""

    def confirm(self, asked_at: float, since: float) -> None:
        self.since = min(self.since, since)
        self.confirmed_at = max(self.confirmed_at, asked_at)

    def unnoted(self, leases: Iterable[float], now: float) -> list[float]:
        """The leases that must be stored before anything is granted for that long."""
        nothing = (0.0, 0.0)
        return [
            lease for lease in leases
            if (known := self._noted.get(lease_class(lease), nothing))[0] < lease or now - known[1] > _REMEMBERED
        ]  # fmt: skip

    def note(self, lease: float, longest: float, now: float) -> None:
        self._noted[lease_class(lease)] = (lease, now)
        self.longest = longest


class Failover:
    """Shared by all queues of a store. Only its thread does I/O."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.term: Term | None = None
        self._held: set[bytes] = set()
        """Ids of claims whose grant has counted: a fail-over does not take them back."""
        self._used_at = 0.0
        self._is_awake = False
        self._worker: Worker | None = None
        self._learn: Callable[[float], None] | None = None

    def attend(self, runtime: Runtime, learn: Callable[[float], None]) -> None:
        """Keep the term confirmed while the store is used."""
        if self._worker is None:
            self._learn = learn
            self._worker = runtime.blocking().worker(self._turn)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    def confirms(self, term: Term | None) -> bool:
        """Whether a reply that was received in that term counts."""
        self._used_at = now = self._now()
        if not self._is_awake and self._worker is not None:
            self._is_awake = True
            self._worker.ring()
        return term is not None and term is self.term and now <= term.confirmed_at + WINDOW

    def grace(self) -> float:
        """Seconds that are left of the grace period; 0.0: it is over."""
        term = self.term
        if term is None or term.longest is None:
            return _UNKNOWN
        return max(term.since + term.longest + WINDOW - self._now(), 0.0) if term.epoch else 0.0

    def counted(self, id: bytes, standing: Standing) -> Standing:
        """In the grace period, a claim that holds in the store but did not hold before the fail-over still waits. It
        keeps its place in the queue."""
        if not standing.holds or id in self._held:
            return standing
        grace = self.grace()
        if grace:
            waits = min(standing.next, grace)
            return Standing(standing.ticket, False, standing.left, waits, standing.revoked, too_soon(grace))
        self._held.add(id)
        return standing

    def grants_by_message(self, id: bytes) -> bool:
        """Whether a message may grant now; if not, a renewal decides."""
        if not self.confirms(self.term) or self.grace():
            return False
        self._held.add(id)
        return True

    def forget(self, id: bytes) -> None:
        self._held.discard(id)

    async def _turn(self) -> float | None:
        now = self._now()
        if now - self._used_at > _LINGER or self._learn is None:
            self._is_awake = False
            return None
        with suppress(StoreError):  # the next caller gets the error
            self._learn(now + WINDOW)
        return _INTERVAL


def lease_class(lease: float) -> int:
    """Leases of one class are at most twice as long as each other.

    >>> lease_class(0.5), lease_class(29.9), lease_class(31), lease_class(1e9)
    (0, 5, 5, 30)
    """
    return frexp(lease)[1]


def too_soon(grace: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"the primary changed a moment ago: nothing new is granted for {grace:.1f} s", step="try again after that time"
    )
