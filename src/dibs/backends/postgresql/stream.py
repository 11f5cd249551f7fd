"""The way to the server from an event loop: a bounded number of connections, made in the client's own thread, each with
one question at a time.

Who finds all of them in use waits for its turn. A task that no longer waits for its answer leaves it behind: once it
has come the connection is used again. A server that owes an answer for longer than ATTEMPT is not waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque

import psycopg
from psycopg.pq.abc import PGresult

from dibs.backends.postgresql.answers import Refusal
from dibs.backends.postgresql.link import ATTEMPT, LEAST, Call, Dialer, Link, broken
from dibs.core.line import Unsent
from dibs.core.runtime import Runtime
from dibs.errors import Closed, StoreUnavailable


class Stream:
    """One connection in a loop."""

    def __init__(self, link: Link, home: Streams, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self._home = home
        self._loop = loop
        self._future: asyncio.Future[PGresult] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writes = False
        loop.add_reader(link.fileno(), self._readable)

    def ask(self, call: Call, patience: float) -> asyncio.Future[PGresult]:
        self._future = future = self._loop.create_future()
        try:
            self._timer = self._loop.call_later(min(max(patience, LEAST), ATTEMPT), self._too_long)
            self.link.begin(call)
            self._mind_writing()
        except psycopg.Error as error:
            self.close(broken(error))
        except BaseException:
            self.close(StoreUnavailable("an exchange was interrupted"))
            raise
        return future

    def close(self, error: StoreUnavailable) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.link.conn is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self.link.fileno())
                self._loop.remove_writer(self.link.fileno())
            self.link.close()
        future, self._future = self._future, None
        if future is not None and not future.done() and not self._loop.is_closed():
            future.set_exception(error)
        self._home.lost(self)

    def _too_long(self) -> None:
        self.close(StoreUnavailable("the server did not answer in time"))

    def _readable(self) -> None:
        try:
            if self._future is None:
                raise StoreUnavailable("the server closed the connection")
            result = self.link.received()
            self._mind_writing()
            if result is not None:
                self.link.hear(result)
                self._done(result)
        except Refusal as refusal:
            self._done(refusal)
        except psycopg.Error as error:
            self.close(broken(error))
        except StoreUnavailable as error:
            self.close(error)
        except BaseException:
            self.close(StoreUnavailable("an exchange was interrupted"))
            raise

    def _mind_writing(self) -> None:
        if self.link.is_flushed == self._writes:
            self._writes = not self.link.is_flushed
            if self._writes:
                self._loop.add_writer(self.link.fileno(), self._readable)
            else:
                self._loop.remove_writer(self.link.fileno())

    def _done(self, answer: PGresult | Refusal) -> None:
        future, self._future = self._future, None
        if self._timer is not None:
            self._timer.cancel()
        if future is not None and not future.done():
            if isinstance(answer, Refusal):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        if self.link.is_idle() and self._home.suits(self.link):
            self._home.free(self)
        else:
            self.close(StoreUnavailable("the transaction was left open"))


class Streams:
    def __init__(self, dialer: Dialer, runtime: Runtime, most: int) -> None:
        self._dialer = dialer
        self._runtime = runtime
        self._now = runtime.now
        self._most = most
        self._closed = False
        self.is_stated = False
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._open: set[Stream] = set()
        self._idle: deque[Stream] = deque()
        self._dialling = 0
        self._queue: deque[asyncio.Future[Stream | None]] = deque()

    async def exchange(self, call: Call, until: float) -> PGresult:
        self._check_open()
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._drop()
            self._begin(loop)
        while True:
            stream = self._idle.pop() if self._idle else await self._another(loop, until)
            if not self.suits(stream.link):
                stream.close(StoreUnavailable("it is not used any more"))
            elif stream.link.conn is not None:
                return await stream.ask(call, until - self._now())

    def free(self, stream: Stream) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(stream)
                return
        self._idle.append(stream)

    def suits(self, link: Link) -> bool:
        """What was learned since it was made may tell against it."""
        return link.is_stated == self.is_stated and self._dialer.suits(link)

    def lost(self, stream: Stream) -> None:
        self._open.discard(stream)
        if stream in self._idle:
            self._idle.remove(stream)
        self._let_one_try()

    def close(self) -> None:
        self._closed = True
        self._drop()

    def abandon(self) -> None:
        for stream in self._open:
            stream.link.abandon()

    def _drop(self) -> None:
        for stream in list(self._open):
            stream.close(StoreUnavailable("this client was closed"))
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_exception(Closed("this client was closed", step="connect again"))

    def _check_open(self) -> None:
        """Who still asks must not try again."""
        if self._closed:
            raise Closed("this client was closed", step="connect again")

    def _let_one_try(self) -> None:
        """There is room for a connection: whoever waits longest may make it."""
        while self._queue and len(self._open) + self._dialling < self._most:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _another(self, loop: asyncio.AbstractEventLoop, until: float) -> Stream:
        if len(self._open) + self._dialling < self._most:
            return await self._connect(loop, until)
        waiter: asyncio.Future[Stream | None] = loop.create_future()
        self._queue.append(waiter)
        try:
            async with asyncio.timeout(max(until - self._now(), LEAST)):
                stream = await waiter
        except TimeoutError:
            raise Unsent("all connections were in use", step="give the client more: connections=") from None
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                given = waiter.result()
                if given is not None:
                    self.free(given)
                else:
                    self._let_one_try()
            raise
        return stream if stream is not None else await self._connect(loop, until)

    async def _connect(self, loop: asyncio.AbstractEventLoop, until: float) -> Stream:
        self._dialling += 1
        try:
            link = await self._runtime.offload(lambda: self._dialer.link(until))
        finally:
            self._dialling -= 1
            if not self._open:
                self._let_one_try()
        self._check_open()
        link.is_stated = self.is_stated
        stream = Stream(link, self, loop)
        self._open.add(stream)
        return stream
