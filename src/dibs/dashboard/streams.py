"""Viewers of a store, and the stream of server-sent events to one of them.

A stream sends the latest state, never a backlog: a client that reads slowly misses states, and one that does not read
at all is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from time import monotonic
from typing import Any, Self

from dibs._shared import ExcType, Raised, Trace
from dibs.dashboard.threads import Threads
from dibs.dashboard.views import Encoded, Query, StoreViews
from dibs.monitor.sampler import Viewer

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
HEARTBEAT = 10.0
PATIENCE = 20.0
"""Seconds that a client may take to read an event."""
_PADDING = b":" + b" " * 2048 + b"\n\n"
"""Fills the buffer of a proxy that sends no small answers."""


class Watching:
    """One request or stream that shows a view, a lock, or both. Create and use it in the event loop."""

    def __init__(self, store: StoreViews, query: Query | None, name: str | None, threads: Threads) -> None:
        self.store = store
        self.query = query
        self.name = name
        self.closed = False
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._sampled = asyncio.Event()
        self._viewer = Viewer(self._wake, self._shown, name)

    async def __aenter__(self) -> Self:
        self.store.sampler.want()
        self.store.sampler.join(self._viewer)
        return self

    async def __aexit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        self.store.sampler.leave(self._viewer)

    def close(self) -> None:
        """End the stream; from any thread."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._sampled.set)

    def _shown(self) -> Iterator[str]:
        if self.name is not None:
            yield self.name
        if self.query is not None:
            yield from self.store.shown(self.query)

    @property
    def ready(self) -> bool:
        """Whether there is a sample that shows all that was asked for."""
        sampler = self.store.sampler
        return sampler.is_known and (self.name is None or self.name in sampler.breaks or sampler.error is not None)

    async def sampled(self, seconds: float) -> None:
        """Wait until the view is known."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self.ready or self.closed):
                    await self.next_sample(seconds)

    async def next_sample(self, seconds: float) -> bool:
        """Wait for the next sample; False: none came in that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._sampled.wait()
        there = self._sampled.is_set()
        self._sampled.clear()
        return there

    async def encoded(self, what: Query | str | None) -> Encoded:
        """See `StoreViews.encoded`."""
        found = self.store.cached(what)
        return found if found is not None else await self._threads.run(self.store.encoded, what)


async def send_stream(watching: Watching, receive: Receive, send: Send, last: int | None) -> None:
    """Send events until the client leaves, or does not read, or the app ends."""
    leaving = asyncio.create_task(_close_with_client(watching, receive))
    try:
        async with asyncio.timeout(None) as limit:
            await _send_events(watching, send, last, limit)
            await send({"type": "http.response.body", "body": b""})
    except (TimeoutError, OSError):  # it does not read, or is gone: the server closes the connection
        pass
    finally:
        leaving.cancel()


async def _close_with_client(watching: Watching, receive: Receive) -> None:
    """Servers do not report a closed connection to `send`."""
    while (await receive())["type"] != "http.disconnect":
        pass
    watching.close()


async def _send_events(watching: Watching, send: Send, last: int | None, limit: asyncio.Timeout) -> None:
    loop, quiet_since = asyncio.get_running_loop(), monotonic()

    async def put(data: bytes) -> None:
        limit.reschedule(loop.time() + PATIENCE)
        await send({"type": "http.response.body", "body": data, "more_body": True})
        limit.reschedule(None)

    await put(b"retry: 2000\n\n" + _PADDING)
    while not watching.closed:
        if watching.ready:
            data, last = await _news(watching, last)
            await put(data)
            quiet_since = monotonic()
        if not await watching.next_sample(max(quiet_since + HEARTBEAT - monotonic(), 0.0)):
            await put(b": heartbeat\n\n")
            quiet_since = monotonic()


async def _news(watching: Watching, last: int | None) -> tuple[bytes, int]:
    version = watching.store.sampler.version
    if version == last:
        return event("as_of", version, (await watching.encoded(None)).body), version
    view = await watching.encoded(watching.query)
    data = event("view", view.version, view.body)
    if watching.name is not None:
        page = await watching.encoded(watching.name)
        data += event("lock", view.version, page.body)
    return data, view.version


def event(name: str, version: int, data: bytes) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), version, data)
