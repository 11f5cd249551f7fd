"""Python's side of locks that it shares with Java: the same steps through either API, and who held when.

`Python` runs what it is told on a thread (sync API) or as a task (asyncio), so that a test reads the same for both.
Instants are those of one clock for both languages, so `overlaps` can tell who held when.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import dibs
import dibs.aio
from dibs.runtime.threads import step
from lab.java_process import PATIENCE
from lab.servers.supervisor import until

APIS = ("blocking", "aio")
MANY = 32
"""More than a test ever lets wait at once."""


class Python:
    """dibs, through one API; its clients end with it."""

    def __init__(self, api: str, url: str) -> None:
        self.api, self.url = api, url
        self._clients: list[Any] = []
        self._threads = ThreadPoolExecutor(MANY)
        self._loop = asyncio.new_event_loop()
        self._looping = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._looping.start()
        self.onlooker = self.client()

    def client(self, *, namespace: str = "", below: str = "", **options: Any) -> Any:
        module = dibs if self.api == "blocking" else dibs.aio
        client = module.connect(self.url + below, namespace=namespace, **options)
        self._clients.append(client)
        return client

    def begin(self, action: Callable[[], Any]) -> Future[Any]:
        """Do it without waiting for its end."""
        if self.api == "blocking":
            return self._threads.submit(action)
        return asyncio.run_coroutine_threadsafe(_awaited(action), self._loop)

    def do(self, action: Callable[[], Any]) -> Any:
        return self.begin(action).result(2 * PATIENCE)

    def take(self, lock: Any, timeout: float = PATIENCE, **options: Any) -> Any:
        return self.do(lambda: lock.acquire(timeout=timeout, **options))

    def tries(self, lock: Any) -> Any:
        """One try. It grants the store only a moment to answer, which a busy machine may not keep: then once more."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.take(lock, timeout=0)
            except dibs.StoreUnavailable:
                if time.monotonic() > end:
                    raise

    def takes(self, lock: Any, **options: Any) -> Future[Any]:
        """It waits for its turn."""
        return self.begin(lambda: lock.acquire(timeout=PATIENCE, **options))

    def works(self, shift: Shift, lock: Any, **options: Any) -> Future[Any]:
        """It takes turns. What awaits nothing is stepped through on a thread."""
        turns = shift.python(lock, **options)
        return self.begin(lambda: step(turns) if self.api == "blocking" else turns)

    def inspect(self, name: str, client: Any = None) -> dibs.LockInfo:
        info: dibs.LockInfo = self.do(lambda: (client or self.onlooker).inspect(name))
        return info

    def locks(self, prefix: str) -> list[dibs.LockInfo]:
        found: list[dibs.LockInfo] = self.do(lambda: _listed(self.onlooker.locks(prefix)))
        return found

    def in_queue(self, name: str, count: int) -> None:
        """Wait for that number of waiters, of any client."""
        until(lambda: len(self.inspect(name).waiters) == count, PATIENCE, f"{count} wait for {name}")

    def close(self) -> None:
        for client in self._clients:
            self.do(client.close)
        self._threads.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._looping.join(PATIENCE)
        self._loop.close()


@contextmanager
def python(api: str, url: str) -> Iterator[Python]:
    side = Python(api, url)
    try:
        yield side
    finally:
        side.close()


async def _awaited(action: Callable[[], Any]) -> Any:
    done = action()
    return await done if inspect.isawaitable(done) else done


def _listed(found: Any) -> Any:
    async def collect(found: AsyncIterator[dibs.LockInfo]) -> list[dibs.LockInfo]:
        return [info async for info in found]

    return collect(found) if hasattr(found, "__aiter__") else list(found)


class Turn(NamedTuple):
    """One hold: from just after it was granted until just before it was given back."""

    granted: int
    released: int
    who: str
    order: int = 0
    """On ZooKeeper the transaction that made its node."""
    weight: int = 1


def overlaps(turns: Iterable[Turn], capacity: int = 1) -> list[Turn]:
    """The turns that began while others held too much of the capacity."""
    ordered = sorted(turns)
    return [
        turn
        for turn in ordered
        if turn.weight + sum(other.weight for other in ordered if other.granted < turn.granted < other.released)
        > capacity
    ]


class Shift:
    """Turns of many actors, taken until `enough` says so of all turns that were taken."""

    def __init__(self, enough: Callable[[list[Turn]], bool]) -> None:
        self.turns: list[Turn] = []
        self._enough = enough
        self._end = time.monotonic() + 2 * PATIENCE

    def open(self) -> bool:
        assert time.monotonic() < self._end, f"only {len(self.turns)} turns in {2 * PATIENCE:g} s"
        return not self._enough(self.turns)

    async def python(
        self, lock: Any, weight: int = 1, hold: float = 0.0, order: Callable[[Any], int] = attrgetter("token")
    ) -> None:
        """The same for both APIs: see Python.works."""
        while self.open():
            held = await _awaited(lambda: lock.acquire(timeout=PATIENCE))
            assert held is not None
            granted, number = time.monotonic_ns(), order(held)
            time.sleep(hold)
            released = time.monotonic_ns()
            await _awaited(held.release)
            self.turns.append(Turn(granted, released, "python", number, weight))


def hand_overs(turns: list[Turn]) -> int:
    """How often one language followed the other."""
    ordered = sorted(turns)
    return sum(one.who != other.who for one, other in itertools.pairwise(ordered))
