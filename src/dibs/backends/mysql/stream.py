"""The way to the server from an event loop: some connections at most, each made in the client's own thread. A task that
is cancelled amid an exchange closes its connection: the server rolls back what it had begun, or finishes it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.link import ATTEMPT, LEAST, Dialer, Link, broken
from dibs.backends.mysql.pool import TRUSTED
from dibs.backends.mysql.wire import Answer, Sets
from dibs.core.line import Unsent
from dibs.core.runtime import Runtime
from dibs.errors import Closed, StoreUnavailable

_CHUNK = 65_536
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Stream:
    """One connection, watched by a loop."""

    def __init__(self, link: Link, now: Callable[[], float]) -> None:
        self.link = link
        self.loop = asyncio.get_running_loop()
        self._now = now
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None
        self._rest = b""
        link.sock.setblocking(False)
        self.loop.add_reader(link.sock, self._readable)

    @property
    def lost(self) -> bool:
        return self.link.sock.fileno() < 0

    async def exchange(self, request: Request, until: float) -> Sets:
        self.link.sent_at = self._now()
        self._answer, self._done = Answer(), self.loop.create_future()
        patience = min(max(until - self.link.sent_at, LEAST), ATTEMPT)
        timer = self.loop.call_later(patience, self._fail, StoreUnavailable("the server did not answer in time"))
        try:
            self._rest = request.packed(self.link.offset)
            self._writable()
            await self._done
            found = self._answer.result()
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._done = None
        self.link.hear(found)
        return found

    def close(self) -> None:
        if not self.lost:
            if not self.loop.is_closed():
                self.loop.remove_reader(self.link.sock)
                self.loop.remove_writer(self.link.sock)
            self.link.bid_farewell()

    def abandon(self) -> None:
        """In a forked child: the loop, and what it watches, are the parent's."""
        self.link.close()

    def _fail(self, error: StoreUnavailable) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def _writable(self) -> None:
        try:
            sent = self.link.sock.send(self._rest)
        except _NOT_NOW:
            sent = 0
        except OSError as error:
            self._fail(broken(error))
            return
        self._rest = self._rest[sent:]
        if self._rest:
            self.loop.add_writer(self.link.sock, self._writable)
        else:
            self.loop.remove_writer(self.link.sock)

    def _readable(self) -> None:
        done, answer = self._done, self._answer
        if done is None or answer is None:  # it was closed, or something came that nobody asked for
            self.close()
            return
        try:
            while True:
                received = self.link.sock.recv(_CHUNK)
                if answer.feed(received):
                    if not done.done():
                        done.set_result(None)
                    return
                if len(received) < _CHUNK and not isinstance(self.link.sock, ssl.SSLSocket):
                    return
        except _NOT_NOW:
            return
        except StoreUnavailable as error:
            self._fail(error)
        except OSError as error:
            self._fail(broken(error))


class Streams:
    def __init__(self, dialer: Dialer, runtime: Runtime, size: int) -> None:
        self._dialer = dialer
        self._runtime = runtime
        self._now = runtime.now
        self._size = size
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[Stream, None] = {}
        self._idle: deque[Stream] = deque()
        self._seats = asyncio.Semaphore(size)
        self._closed = False

    async def exchange(self, request: Request, until: float) -> Sets:
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._move(loop)
        seats = self._seats
        if seats.locked():
            try:
                async with asyncio.timeout(max(min(until - self._now(), ATTEMPT), LEAST)):
                    await seats.acquire()
            except TimeoutError:
                raise Unsent(
                    "all connections of this client are in use", step="give connections= more of them"
                ) from None
        else:
            await seats.acquire()
        try:
            stream = await self._take(until)
            try:
                return await stream.exchange(request, until)
            finally:
                if stream.lost or self._closed:
                    self._open.pop(stream, None)
                    stream.close()
                else:
                    self._idle.append(stream)
        finally:
            seats.release()

    def close(self) -> None:
        self._closed = True
        self._drop()

    def abandon(self) -> None:
        for stream in list(self._open):
            stream.abandon()

    def _drop(self) -> None:
        for stream in list(self._open):
            stream.close()
        self._open.clear()
        self._idle.clear()

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        """What served an earlier loop cannot serve this one."""
        self._drop()
        self._seats = asyncio.Semaphore(self._size)
        self._loop = loop

    async def _take(self, until: float) -> Stream:
        if self._closed:
            raise Closed("this client was closed", step="connect again")
        while self._idle:
            stream = self._idle.pop()
            if not stream.lost and (self._now() - stream.link.used_at < TRUSTED or not stream.link.is_stale()):
                return stream
            self._open.pop(stream, None)
            stream.close()
        made = Stream(await self._runtime.offload(lambda: self._dialer.link(until)), self._now)
        self._open[made] = None
        if self._closed:
            self._drop()
            raise Closed("this client was closed", step="connect again")
        return made
