"""The dashboard's own threads: those of `asyncio.to_thread` belong to the app that it is mounted in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """Started when they are first needed, and again after `close`. Use it in an event loop."""

    def __init__(self, name: str, count: int, most: int = 1000) -> None:
        self._name, self._count, self._most = name, count, most
        self._executor: ThreadPoolExecutor | None = None
        self._under_way = 0

    @property
    def is_full(self) -> bool:
        return self._under_way >= self._most

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._count, self._name)
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args, **kwargs))
        finally:
            self._under_way -= 1

    def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
