"""Connections that nobody uses: the last one in is used first, so the first ones in grow old."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

One = TypeVar("One")


def outworn(idle: deque[One], is_old: Callable[[One], bool]) -> Iterator[One]:
    """Those that are, taken out; others may take and give meanwhile.

    >>> idle = deque([1, 2, 7, 8])
    >>> list(outworn(idle, lambda used_at: used_at < 5)), idle
    ([1, 2], deque([7, 8]))
    """
    while idle:
        try:
            one = idle.popleft()
        except IndexError:  # another thread was quicker
            return
        if not is_old(one):
            idle.appendleft(one)
            return
        yield one
