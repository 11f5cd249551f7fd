"""Work in another thread, and waiting for conditions, each with a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dibs
from process import children

PATIENCE = 60.0
"""An end, not a measurement."""


class Aside(threading.Thread):
    """A thread that starts at once; `result()` returns or raises what its work did."""

    def __init__(self, work: Callable[[], Any], name: str | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._returned: Any = None
        self._raised: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._returned = self._work()
        except BaseException as error:
            self._raised = error

    def result(self) -> Any:
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.name} is still at it"
        if self._raised is not None:
            raise self._raised
        return self._returned


def hold_of(lock: dibs.Lock) -> dibs.Hold:
    hold = lock.acquire()
    assert hold is not None
    return hold


def until(condition: Callable[[], Any]) -> Any:
    return children.until(condition, PATIENCE)
