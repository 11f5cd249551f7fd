"""The same lock in Java and in Python, and what both leave in Redis."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import redis

from lab.redisson import PATIENCE, Fenced, Held, Lock, Permits, Redisson, Semaphore
from lab.servers.supervisor import until
from store.sides import Python, Shift, Turn

LEASE = 20.0
"""Seconds for which Java takes a permit."""


class Theirs:
    """A lock of Java, of whatever kind."""

    def __init__(self, handle: Lock | Semaphore | Permits) -> None:
        self.handle = handle
        self._ids: list[str] = []

    def begin(self, timeout: float | None = None) -> Future[Held | None]:
        if isinstance(self.handle, Permits):
            return self.handle.begin_take(1, timeout, LEASE)
        return self.handle.begin_take(timeout=timeout)

    def sleeps(self) -> None:
        """Until a message about a read-write lock would wake it. No thread sleeps for a fenced lock."""
        if not isinstance(self.handle, Fenced):
            until(self.handle.is_asleep, PATIENCE, "it sleeps")

    def take(self, timeout: float | None = None) -> Held | None:
        return self.held(self.begin(timeout))

    def held(self, taken: Future[Held | None]) -> Held | None:
        held = taken.result(PATIENCE)
        self._ids = [] if held is None else held.ids
        return held

    def give(self) -> int:
        return self.handle.give(self._ids) if isinstance(self.handle, Permits) else self.handle.give()

    def turns(self, shift: Shift, order: Callable[[], int] = lambda: 0) -> None:
        """Turns until it is enough."""
        while shift.open():
            held = self.take()
            assert held is not None
            number = order()
            shift.turns.append(Turn(held.at, self.give(), "java", number))


@dataclass(frozen=True, eq=False)
class Kind:
    """One exclusive use of a name, made by either side. `channel` is the one on which a waiter without a place in a
    queue listens."""

    name: str
    ours: Callable[[Any, str], Any]
    theirs: Callable[[Redisson, str], Lock | Semaphore | Permits]
    channel: str
    options: dict[str, str] = field(default_factory=dict)

    def java(self, java: Redisson, name: str) -> Theirs:
        return Theirs(self.theirs(java, name))

    def __str__(self) -> str:
        return self.name


_LOCKS, _RW, _PERMITS = "redisson_lock__channel:{%s}", "redisson_rwlock:{%s}", "redisson_sc:{%s}"
LOCK = Kind("lock", lambda client, name: client.lock(name), Redisson.lock, _LOCKS)
RLOCK = Kind("rlock", lambda client, name: client.rlock(name), Redisson.lock, _LOCKS)
FENCED = Kind("fenced", lambda client, name: client.lock(name, fenced=True), Redisson.fenced, _LOCKS)
FAIR = Kind("fair", lambda client, name: client.lock(name, fair=True), Redisson.fair, "")
WRITE = Kind("write", lambda client, name: client.rwlock(name).write, Redisson.write, _RW)
SEMAPHORE = Kind("semaphore", lambda client, name: client.semaphore(name, 1), Redisson.semaphore, _PERMITS)
PERMITS = Kind(
    "permits", lambda client, name: client.semaphore(name, 1, renew=False, lease=LEASE), Redisson.permits, _PERMITS
)
KINDS = (LOCK, RLOCK, FENCED, FAIR, WRITE, SEMAPHORE, PERMITS)
UNFAIR = tuple(kind for kind in KINDS if kind is not FAIR)


class Raw:
    """The server, past both libraries. Names are without the prefix."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.client, self.prefix = client, prefix

    def key(self, name: str) -> str:
        return self.prefix + name

    def queue(self, name: str) -> list[str]:
        """The holder ids of those who wait for a fair lock."""
        found: list[bytes] = self.client.lrange(f"redisson_lock_queue:{{{self.key(name)}}}", 0, -1)
        return [holder.decode() for holder in found]

    def may_wait(self, name: str, holder: str) -> float:
        """For how many seconds more a waiter of a fair lock counts as alive."""
        until_ms = self.client.zscore(f"redisson_lock_timeout:{{{self.key(name)}}}", holder)
        seconds, microseconds = self.client.time()
        return float("inf") if until_ms is None else float(until_ms) / 1e3 - seconds - microseconds / 1e6

    def holders(self, name: str) -> dict[str, int]:
        """How often each holder holds."""
        found: dict[bytes, bytes] = self.client.hgetall(self.key(name))
        return {holder.decode(): int(count) for holder, count in found.items() if holder != b"mode"}

    def wait_for(self, kind: Kind, name: str, clients: int) -> None:
        """Until so many wait there: places in a queue, or clients that listen."""
        if kind is FAIR:
            until(lambda: len(self.queue(name)) == clients, PATIENCE, f"{clients} wait for {name}")
            return
        channel = kind.channel % self.key(name)
        until(lambda: self.listening(channel) == clients, PATIENCE, f"{clients} clients listen to {channel}")

    def listening(self, channel: str) -> int:
        ((_, count),) = self.client.pubsub_numsub(channel)
        return int(count)

    def left(self, name: str) -> list[str]:
        """The keys of a name, other than its own, that nobody deletes."""
        found: list[bytes] = self.client.keys(f"*{self.key(name)}*")
        return sorted(key.decode() for key in found if key.decode() != self.key(name))

    def renewed(self, name: str, times: int) -> None:
        """Until the time to live has risen so often."""
        seen, before = 0, float("inf")

        def risen() -> bool:
            nonlocal seen, before
            left = self.client.pttl(self.key(name))
            assert left > 0, "it is gone"
            seen, before = seen + (left > before), left
            return seen >= times

        until(risen, PATIENCE, f"renewed {times} times")


def take_turns(
    java: Redisson,
    side: Python,
    raw: Raw,
    name: str,
    kind: Kind,
    client: Any,
    wait: Callable[[], None] | None = None,
) -> None:
    """Each waits for the other once. Python begins: it sets the size of a semaphore. `wait`: until one waits there."""
    wait = wait or (lambda: raw.wait_for(kind, name, 1))
    hold, theirs = side.take(kind.ours(client, name)), kind.java(java, name)
    assert theirs.take(0) is None
    waits = theirs.begin()
    wait()
    theirs.sleeps()
    assert not waits.done()
    side.do(hold.release)
    assert theirs.held(waits)
    assert side.tries(kind.ours(client, name)) is None
    ours = side.takes(kind.ours(client, name))
    wait()
    assert not ours.done()
    theirs.give()
    hold = ours.result(PATIENCE)
    hold.check()
    assert theirs.take(0) is None
    side.do(hold.release)
