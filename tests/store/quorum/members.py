"""Quorums of memory stores for tests: their members can be made to fail.

PYTHONPATH=tests pytest src/dibs/testing/contract --dibs-store quorum=store.quorum.members:memory

client, members = quorum_of(5, dibs.connect, lease=2)
members[0].state = DOWN         # every request fails at once, without effect
members[1].state = DEAF         # every request times out, without effect
members[2].state = MUTE         # every request is done, but its reply never comes
members[3].forget()             # it restarts without its data
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from dibs import StoreUnavailable
from dibs.backends.memory import MemoryStore
from dibs.core.queue import ClientIdentity
from dibs.core.rule import Claim, Entry
from dibs.core.runtime import Runtime
from dibs.runtime.threads import boottime

_numbers = count(1)


class State(Enum):
    WELL = auto()
    DOWN = auto()
    DEAF = auto()
    MUTE = auto()


WELL, DOWN, DEAF, MUTE = State


def memory(_: Path) -> str:
    """The URL of a fresh quorum of three memory stores."""
    return f"quorum+memory://{','.join(_names(3))}"


def quorum_of(count: int, connect: Callable[..., Any], **options: Any) -> tuple[Any, list[Member]]:
    """A client of a fresh quorum, and its members."""
    client = connect([f"memory://{name}" for name in _names(count)], **options)
    store = client._core.store
    store.members[:] = members = [Member(member) for member in store.members]
    return client, members


def beside(client: Any, connect: Callable[..., Any], **options: Any) -> Any:
    """Another client of the same members, which fail for it too."""
    other = connect([member.shown for member in client._core.store.members], **options)
    other._core.store.members[:] = client._core.store.members
    return other


def _names(count: int) -> list[str]:
    number = next(_numbers)
    return [f"member-{number}-{letter}" for letter in "abcdefg"[:count]]


class Member:
    """A memory store, as all clients of a test see it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.state = WELL
        self.began = -inf
        """When it last started."""
        self.asked: list[str] = []
        """The verbs that reached it."""
        self.before: dict[str, Callable[[], object]] = {}
        """By verb: a callback that runs once, before the next such request."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open(self, runtime: Runtime, me: ClientIdentity) -> Port:
        return Port(self, self._store.open(runtime, me), runtime)

    def forget(self) -> None:
        self._store._world.reset()
        self.began = boottime()

    def entries(self, name: str = "a") -> list[Entry]:
        return list(self._store._world.queue(f"dibs:{name}"))


class Port:
    """The queue of a member."""

    def __init__(self, member: Member, queue: Any, runtime: Runtime) -> None:
        self._member = member
        self._queue = queue
        self._runtime = runtime

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._queue, verb)
        if not inspect.iscoroutinefunction(found):
            return found

        async def ask(*args: Any) -> Any:
            todo = self._member.before.pop(verb, None)
            if todo is not None:
                todo()
            return await self._ask(verb, found, args)

        return ask

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        return self._runtime.now() - self._member.began

    async def _ask(self, verb: str, found: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        member, until = self._member, args[-1]
        if member.state is DOWN:
            raise StoreUnavailable("nobody is there")
        if member.state is not DEAF:
            member.asked.append(verb)
            answer = await found(*args)
            if member.state is not MUTE:
                return answer
        await self._runtime.sleep(max(until - self._runtime.now(), 0.0))
        raise StoreUnavailable("no answer")
