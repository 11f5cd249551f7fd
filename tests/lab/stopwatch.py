"""Time that counts only while this machine let us run.

    with Stopwatch() as watch:
        ...
    assert watch.seconds() < 1      # not counted: time that other processes had the machine

    with promise(within=0.5):       # fails unless the body takes at most 0.5 s; also in a coroutine
        await lock.acquire()

A thread of the stopwatch wakes every 10 ms. If it wakes late, other processes had the machine, or it was suspended. Of
that gap only 15 ms count, or the CPU time that this process used in it, if that is more. On a quiet machine the
stopwatch is exact.

`promise` is for bounds that dibs promises, in tests that run alone. It measures once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

_TICK = 0.01
_MOMENT = 0.015
"""Most that a gap between two ticks counts if this process did not run in it."""


class Stopwatch:
    """
    >>> with Stopwatch() as watch:
    ...     watch.seconds() < 1
    True
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._tick, name="stopwatch", daemon=True)
        self._counted = 0.0
        self._last = (0.0, 0.0)

    def __enter__(self) -> Self:
        self._last = (time.monotonic(), time.process_time())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._count()

    def seconds(self) -> float:
        if not self._over.is_set():
            self._count()
        return self._counted

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            self._count()

    def _count(self) -> None:
        with self._lock:
            now, used = time.monotonic(), time.process_time()
            gap, ran = now - self._last[0], used - self._last[1]
            self._last = now, used
            self._counted += min(gap, max(_MOMENT, ran))


@contextmanager
def promise(within: float) -> Iterator[Stopwatch]:
    with Stopwatch() as watch:
        yield watch
    assert watch.seconds() <= within, f"it took {watch.seconds():.3f} s, and not at most {within:g} s"
