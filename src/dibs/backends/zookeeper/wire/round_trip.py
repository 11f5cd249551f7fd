"""How long a reply may take, estimated from every reply that a caller waited for, as TCP estimates it (RFC 6298)."""

from __future__ import annotations


class RoundTrip:
    """
    >>> trip = RoundTrip()
    >>> trip.estimate
    0.0
    >>> trip.note(0.1)
    >>> round(trip.estimate, 3)
    0.3
    >>> for _ in range(50): trip.note(0.1)
    >>> round(trip.estimate, 3)
    0.1
    """

    __slots__ = ("_deviation", "_smoothed", "estimate")

    def __init__(self) -> None:
        self._smoothed = self._deviation = 0.0
        self.estimate = 0.0
        """Seconds: the smoothed time and four times its mean deviation; 0.0 before the first reply."""

    def note(self, took: float) -> None:
        if not self._smoothed:
            self._smoothed, self._deviation = took, took / 2
        else:
            self._deviation += (abs(took - self._smoothed) - self._deviation) / 4
            self._smoothed += (took - self._smoothed) / 8
        self.estimate = self._smoothed + 4 * self._deviation
