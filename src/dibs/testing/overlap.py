"""Detect two holders at once, as the application sees them, whatever the store says.

A hold counts from the return of its acquire until its release is called, even if it was lost in between: code that
continues after a loss is the bug that we look for. Holds that share a grant count once. A hold no longer counts once an
exception abandoned it or its client was closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from dibs.core.client import Client
from dibs.core.deadline import FOREVER
from dibs.core.grantor import Grantor
from dibs.core.grants import Grant, Hold, Request
from dibs.testing.stage import Stage


@dataclass(frozen=True)
class Holder:
    """One of two holders at once.

    Attributes:
        who: Its thread or task.
        token: Its fencing token.
        lost: Whether its hold was already lost when the other one was granted.
    """

    who: str
    token: int
    lost: bool

    def __str__(self) -> str:
        return f"{self.who} (token {self.token})"


@dataclass(frozen=True)
class Overlap:
    """Two holders at once: the first went on while the second was granted the lock.

    Attributes:
        name: The name of the lock.
        first: The holder that went on.
        second: The next holder.
    """

    name: str
    first: Holder
    second: Holder

    def __str__(self) -> str:
        how = "had lost it and went on" if self.first.lost else "had not been told of any loss and went on"
        return (
            f'"{self.name}": two holders at once: {self.first} {how} while {self.second} got it. Next: stop what the '
            "lock protects once hold.lost is set or hold.check() raises, or let the resource refuse the lower token"
        )


class Record:
    """The holds of all clients of a test, and the overlaps among them."""

    def __init__(self) -> None:
        self.overlaps: list[Overlap] = []
        self._mutex = threading.Lock()
        self._queues: dict[tuple[str, str], dict[Grant, list[Hold]]] = {}

    def begin(self, queue: tuple[str, str], hold: Hold) -> None:
        grant = hold.grant
        assert grant is not None  # it was acquired
        with self._mutex:
            spans = self._queues[queue] = {
                there: alive for there, holds in self._queues.get(queue, {}).items() if (alive := _alive(holds))
            }
            if grant not in spans and not _fit(spans, hold.weight, grant.request.capacity):
                self.overlaps.append(Overlap(hold.name, _holder(_overlapped(spans)), _holder(hold)))
            spans.setdefault(grant, []).append(hold)

    def end(self, queue: tuple[str, str], hold: Hold) -> None:
        with self._mutex:
            for holds in self._queues.get(queue, {}).values():
                if hold in holds:
                    holds.remove(hold)


class _General:
    """A grantor without its free path: every acquire and release then passes through the registry."""

    def __init__(self, grantor: Grantor) -> None:
        self._grantor = grantor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grantor, name)

    def take(self, *_: object) -> bool:
        return False

    def give(self, _: Hold) -> None:
        return None


class WatchedRegistry:
    """A client's registry; records what it gives and takes back."""

    def __init__(self, client: Client, stage: Stage, record: Record) -> None:
        self._registry = client.registry
        self._runtime = client.runtime
        self._store = client.store.shown
        self._stage = stage
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    @property
    def grantor(self) -> object:
        grantor = self._registry.grantor
        return None if grantor is None else _General(grantor)

    @grantor.setter
    def grantor(self, grantor: Grantor) -> None:
        self._registry.grantor = grantor

    @property
    def closed(self) -> bool:
        return self._registry.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._registry.closed = closed

    async def acquire(self, hold: Hold, request: Request, share: bool, description: str) -> bool:
        with self._stage.call(self._runtime, hold.deadline):
            held = await self._registry.acquire(hold, request, share, description)
            if held:
                self._record.begin((self._store, request.name), hold)
            return held

    def release(self, hold: Hold) -> Coroutine[Any, Any, bool]:
        self._end(hold)
        return self._release(hold)

    async def _release(self, hold: Hold) -> bool:
        with self._stage.call(self._runtime, FOREVER):
            return await self._registry.release(hold)

    def abandon(self, hold: Hold) -> None:
        self._end(hold)
        self._registry.abandon(hold)

    def _end(self, hold: Hold) -> None:
        if hold.grant is not None:
            self._record.end((self._store, hold.grant.request.name), hold)


def _alive(holds: list[Hold]) -> list[Hold]:
    return [hold for hold in holds if hold.wanted() and not hold.context.closed]


def _fit(spans: dict[Grant, list[Hold]], weight: int, capacity: int) -> bool:
    """A grant weighs what its heaviest hold weighs, now: one may have been downgraded."""
    return weight + sum(max(hold.weight for hold in holds) for holds in spans.values()) <= capacity


def _overlapped(spans: dict[Grant, list[Hold]]) -> Hold:
    """The hold that overlaps with the new one: a lost one if there is any, else the first."""
    holds = [holds[0] for holds in spans.values()]
    return next((hold for hold in holds if hold.is_lost()), holds[0])


def _holder(hold: Hold) -> Holder:
    caller = hold.caller
    if isinstance(caller, asyncio.Task):
        who = f"task {caller.get_name()}"
    else:
        who = f"thread {caller.name}" if isinstance(caller, threading.Thread) else repr(caller)
    return Holder(who, hold.token, hold.is_lost())
