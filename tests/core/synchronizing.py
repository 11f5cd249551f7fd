"""Both APIs for the tests of `synchronized`: a test writes each body once, as a coroutine function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
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
    """One store through one API; `other` is another client, of the sync API."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.is_aio = name == "aio"
        self.client: Any = self.connect()
        self.other = dibs.connect(url)

    def connect(self, url: str | None = None, **options: Any) -> Any:
        return (dibs.aio if self.is_aio else dibs).connect(url or self.url, **options)

    def function(self, body: Body) -> Callable[..., Any]:
        """The body as a function of this API; in the sync API its coroutine never suspends."""
        if self.is_aio:
            return body

        @wraps(body)
        def function(*args: Any, **kwargs: Any) -> Any:
            return step(body(*args, **kwargs))

        function.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]  # it takes just that
        return function

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_aio:
            return asyncio.run(function(*args, **kwargs))
        return function(*args, **kwargs)

    def close(self, client: Any) -> None:
        async def close() -> None:
            if (closing := client.close()) is not None:
                await closing

        if self.is_aio:
            asyncio.run(close())
        else:
            client.close()

    def end(self) -> None:
        self.close(self.client)
        self.other.close()

    @contextmanager
    def let_go_once_waited_for(self, name: str) -> Iterator[None]:
        """Another client holds it until somebody waits."""
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
