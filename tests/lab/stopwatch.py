"""Time that counts only while this machine let us run, and measurements that are repeated where it did not.

    with Stopwatch() as watch:
        ...
    assert watch.seconds() < 1                  # not counted: what others took of the machine

    for attempt in promise(within=0.5):         # in a coroutine too
        lock = ...                              # what each measurement needs, made anew
        with attempt:
            await lock.acquire()                # measured; or `attempt.took(seconds)` says what is judged

A thread of the stopwatch wakes every 10 ms. If it wakes late, other processes had the machine, or it was suspended: of
that gap only a moment counts, or the CPU time that this process used in it, if that is more. So on a machine that runs
us a quarter of the time, a wait is counted as about a quarter. On a quiet machine the stopwatch is exact.

`promise` is for bounds that dibs promises. It measures once if the bound is kept. It measures again, up to `tries`
times, only if the stopwatch saw that at least a tenth of the bound was taken from us. It fails at once where the
machine was ours, and after the last try. An exception in the body passes through: nothing is tried again after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Self

_TICK = 0.01
_MOMENT = 0.015
"""What a gap between two ticks counts at most if we did not run in it."""


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
        self._counted = self._elapsed = 0.0
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
        """Counted so far, or until the end."""
        if not self._over.is_set():
            self._count()
        return self._counted

    def stolen(self) -> float:
        """Seconds that were not counted."""
        return self._elapsed - self.seconds()

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            self._count()

    def _count(self) -> None:
        with self._lock:
            now, used = time.monotonic(), time.process_time()
            gap, ran = now - self._last[0], used - self._last[1]
            self._last = now, used
            self._elapsed += gap
            self._counted += min(gap, max(_MOMENT, ran))


class Attempt:
    """One measurement of `promise`."""

    def __init__(self, within: float, last: bool) -> None:
        self.kept = False
        self._within, self._last = within, last
        self._took: float | None = None
        self._watch = Stopwatch()

    def took(self, seconds: float) -> None:
        """Judge this figure instead of the time that the body took."""
        self._took = seconds

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        self._watch.__exit__()
        if raised is not None:
            return
        seconds = self._watch.seconds() if self._took is None else self._took
        self.kept = seconds <= self._within
        stolen = self._watch.stolen()
        ours = stolen < self._within / 10
        assert self.kept or not (ours or self._last), (
            f"it took {seconds:.3f} s, and not at most {self._within:g} s; others had the machine for {stolen:.3f} s"
        )


def promise(within: float, tries: int = 8) -> Iterator[Attempt]:
    """Measurements, until one of them keeps the bound."""
    for left in reversed(range(tries)):
        attempt = Attempt(within, last=left == 0)
        yield attempt
        if attempt.kept:
            return
