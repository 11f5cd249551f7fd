"""Both APIs for the tests of `synchronized`: a body is written once, as async, and so is what a test does with it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from itertools import count
from threading import Thread
from typing import Any

import dibs
import dibs.aio
from dibs.runtime.threads import step
from process.children import PATIENCE, until

_fresh = count(1)
Body = Callable[..., Coroutine[Any, Any, Any]]


class Api:
    """One store, seen through one API. The blocking client `other` is somebody else."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.is_aio = name == "aio"
        self.client: Any = self.connect()
        self.other = dibs.connect(url)

    def connect(self, url: str | None = None, **options: Any) -> Any:
        return (dibs.aio if self.is_aio else dibs).connect(url or self.url, **options)

    def function(self, body: Body) -> Callable[..., Any]:
        """The body as the user of this API has it; its coroutine never suspends in the blocking one."""
        if self.is_aio:
            return body

        @wraps(body)
        def function(*args: Any, **kwargs: Any) -> Any:
            return step(body(*args, **kwargs))

        function.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]  # it takes just that
        return function

    async def pause(self) -> None:
        """Lets others run."""
        if self.is_aio:
            await asyncio.sleep(0.001)
        else:
            time.sleep(0.001)

    async def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            await self.pause()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_aio:
            return asyncio.run(function(*args, **kwargs))
        return function(*args, **kwargs)

    def together(self, *calls: Callable[[], Any]) -> list[Any]:
        """What each of them brings; every one has a thread or a task of its own."""
        if self.is_aio:

            async def all_of_them() -> list[Any]:
                return await asyncio.gather(*(call() for call in calls))

            return asyncio.run(all_of_them())
        with ThreadPoolExecutor(len(calls)) as pool:
            return [pending.result() for pending in [pool.submit(call) for call in calls]]

    def close(self, client: Any) -> None:
        closing = client.close()
        if closing is not None:

            async def wait() -> None:
                await closing

            asyncio.run(wait())

    def end(self) -> None:
        self.close(self.client)
        self.other.close()

    @contextmanager
    def let_go_once_waited_for(self, name: str) -> Iterator[None]:
        """Somebody else holds it until somebody waits."""
        hold = self.other.lock(name).acquire(timeout=0)
        assert hold is not None

        def let_go() -> None:
            try:
                until(lambda: self.other.inspect(name).waiters, what="somebody waits")
            finally:
                hold.release()

        thread = Thread(target=let_go)
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENCE)


def fresh_url() -> str:
    return f"memory://synchronized-{next(_fresh)}"
