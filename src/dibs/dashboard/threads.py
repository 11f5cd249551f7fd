"""The dashboard's own threads: those of `asyncio.to_thread` belong to the app that it is mounted in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Threads:
    """Started when they are first needed, and again after `close`. Use it in an event loop."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._executor: ThreadPoolExecutor | None = None
        self.under_way = 0
        """Calls that wait or run."""

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """A caller that is cancelled does not end the work, which counts until its end."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._count, self._name)
        future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
        self.under_way += 1
        future.add_done_callback(self._ended)
        return await asyncio.shield(future)

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self.under_way -= 1

    def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
