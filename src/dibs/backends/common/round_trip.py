"""The measured round trip to a server, and the time limits that follow from it."""

from __future__ import annotations

ATTEMPT = 2.0
"""The shortest time limit in seconds for one reply; a caller with more time asks again, on another connection."""
LONGEST_ATTEMPT = 10.0
LEAST = 0.05
"""Seconds that a caller waits for a reply at least, also if its deadline has passed."""
_NEAR = LEAST / 10
"""Seconds. The limits do not change as long as no reply takes longer."""


class RoundTrip:
    """The smoothed round-trip time to one server and its mean deviation, as in RFC 6298.

    All connections of a store to that server share it: the caller's, the watchdog's and the subscriber's. Threads
    update it without a lock; a lost sample does no harm.

    >>> trip = RoundTrip()
    >>> trip.expected, trip.attempt, trip.least
    (0.0, 2.0, 0.05)
    >>> trip.add(0.2)
    >>> round(trip.expected, 3), round(trip.attempt, 3), round(trip.least, 3)
    (0.6, 2.0, 1.2)
    """

    __slots__ = ("_deviation", "_smoothed", "attempt", "least")

    def __init__(self, attempt: float = ATTEMPT) -> None:
        self._smoothed = self._deviation = 0.0
        self.attempt = attempt
        """Seconds to wait for one reply, and for a connection on its way."""
        self.least = LEAST
        """Seconds to wait for one reply if the caller's deadline is nearer, or has passed."""

    @property
    def expected(self) -> float:
        """Seconds that a reply may take now: the smoothed time plus four deviations. 0.0: none was measured."""
        return self._smoothed + 4 * self._deviation

    def add(self, seconds: float) -> None:
        if not self._smoothed:
            self._smoothed, self._deviation = seconds, seconds / 2
        else:
            error = seconds - self._smoothed
            self._smoothed += error / 8
            self._deviation += ((error if error > 0 else -error) - self._deviation) / 4
        if seconds > _NEAR or self.least != LEAST:
            self.least = max(LEAST, 2 * (self._smoothed + 4 * self._deviation))
            self.attempt = min(max(ATTEMPT, self.least), LONGEST_ATTEMPT)
