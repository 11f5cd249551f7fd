"""A bounded number of permits, each for one connection at a time. One comes back by itself, wherever it was dropped: an
interrupt may strike between any two lines of whoever has it.

>>> permits = Permits(1)
>>> permit = permits.take(0.0)
>>> permits.take(0.0) is None
True
>>> del permit
>>> permits.take(0.0) is None
False
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from weakref import ReferenceType, ref


class Permit:
    """Made without a line of Python, so that an interrupt finds it whole, or not there."""

    there: ReferenceType[SimpleQueue[Permit]] | None = None

    def __del__(self) -> None:
        free = None if self.there is None else self.there()
        if free is not None:
            again = Permit()  # Python finalises an object once only
            again.there = self.there
            free.put(again)


class Permits:
    def __init__(self, most: int) -> None:
        self._free: SimpleQueue[Permit] = SimpleQueue()
        there = ref(self._free)
        for _ in range(most):
            permit = Permit()
            permit.there = there
            self._free.put(permit)

    def take(self, patience: float) -> Permit | None:
        """None: all were in use for so many seconds."""
        try:
            return self._free.get(timeout=patience)
        except Empty:
            return None

    def give(self, permit: Permit) -> None:
        """Sooner than by dropping it."""
        self._free.put(permit)
