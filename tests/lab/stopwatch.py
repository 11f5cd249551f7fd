"""Time as this machine let us run: a stretch in which it stood still counts as a moment.

For tests that say that something takes no longer than it should. What is measured is ours; what a machine that many
share does in between is not.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

_TICK = 0.01
_MOMENT = 0.05
"""What a tick counts at most, however late it comes."""


class Stopwatch:
    """
    >>> with Stopwatch() as watch:
    ...     watch.seconds() < 1
    True
    """

    def __init__(self) -> None:
        self._counted = 0.0
        self._ticked = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="stopwatch", daemon=True)

    def __enter__(self) -> Self:
        self._ticked = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def seconds(self) -> float:
        return self._counted + min(time.monotonic() - self._ticked, _MOMENT)

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            now = time.monotonic()
            self._counted += min(now - self._ticked, _MOMENT)
            self._ticked = now
