"""The worker's view of a lock, and the two APIs of dibs behind it; the broken locks have the same one.

A `Want` is one acquire. An `Api` takes and gives back a `Held`. Its methods are coroutines, which a blocking API
finishes in one step, so that the worker is written once. `queue` lists the waiters: the use, and its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import dibs
import dibs.aio

T = TypeVar("T")
RETRY = 2.0
"""How long a call without an end of its own (a look) asks a silent store."""


def clock() -> float:
    """One clock for all processes of the machine, and the one that holds end by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a blocking API waited in a loop")


@dataclass(frozen=True)
class Target:
    """A name with its kind; `capacity` is what a writer or the only holder weighs."""

    name: str
    kind: str
    capacity: int


@dataclass(frozen=True)
class Want:
    use: str
    target: Target
    weight: int
    fair: bool
    renew: bool
    timeout: float

    @property
    def exclusive(self) -> bool:
        return self.weight >= self.target.capacity


class Held(Protocol):
    @property
    def token(self) -> int: ...

    @property
    def remaining(self) -> float: ...

    def check(self) -> None:
        """Raises LockLost."""


class Api(Protocol):
    async def take(self, want: Want) -> Held | None: ...

    async def give(self, hold: Any) -> None: ...

    async def nap(self, seconds: float) -> None: ...

    async def queue(self, name: str) -> list[tuple[str, int]]: ...

    async def close(self) -> None: ...


def lock_of(client: Any, want: Want) -> Any:
    """The lock to take: the same words in both APIs."""
    options = {"fair": None if want.fair else False, "renew": want.renew, "info": {"use": want.use}}
    match want.target.kind:
        case "mutex":
            return client.lock(want.target.name, **options)
        case "rw":
            both = client.rwlock(want.target.name, **options)
            return both.write if want.exclusive else both.read
        case _:
            return client.semaphore(want.target.name, want.target.capacity, **options)


def take_from(client: Any, want: Want) -> Any:
    permits = (want.weight,) if want.target.kind == "semaphore" else ()
    return lock_of(client, want).acquire(*permits, timeout=want.timeout)


def places(info: dibs.LockInfo) -> list[tuple[str, int]]:
    return [(str(waiter.info.get("use")), waiter.token) for waiter in info.waiters]


class Threads:
    def __init__(self, url: str, lease: float) -> None:
        self.client = dibs.connect(url, lease=lease, retry=RETRY)

    async def take(self, want: Want) -> Held | None:
        hold: dibs.Hold | None = take_from(self.client, want)
        return hold

    async def give(self, hold: dibs.Hold) -> None:
        hold.release()

    async def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    async def queue(self, name: str) -> list[tuple[str, int]]:
        return places(self.client.inspect(name))

    async def close(self) -> None:
        self.client.close()


class Tasks:
    def __init__(self, url: str, lease: float) -> None:
        self.client = dibs.aio.connect(url, lease=lease, retry=RETRY)

    async def take(self, want: Want) -> Held | None:
        hold: dibs.aio.Hold | None = await take_from(self.client, want)
        return hold

    async def give(self, hold: dibs.aio.Hold) -> None:
        await hold.release()

    async def nap(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def queue(self, name: str) -> list[tuple[str, int]]:
        return places(await self.client.inspect(name))

    async def close(self) -> None:
        await self.client.close()
