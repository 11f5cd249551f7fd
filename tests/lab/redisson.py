"""Redisson in a Java process, driven by a test: the other side of a shared name.

    with Redisson(f"127.0.0.1:{server.port}") as java:
        lock = java.lock("a")               # also fair, spin, fenced, read, write, multi
        held = lock.take(5)                 # Held, or None if busy; take() waits without limit, take(0) only tries
        waits = java.lock("a").begin_take() # a Future
        lock.give()
        waits.result(PATIENCE)
        java.semaphore("s"), java.permits("p"), java.latch("l")

Redisson binds a hold to a thread. Each handle has a thread of its own, so handles exclude each other as processes do.
`beside=other` shares the other's thread and with it the holder. A handle that waits does nothing else meanwhile. All
handles of a process share one client. `java.client_id` is its UUID and `handle.holder` is the field in Redis's hash.
Times are seconds; instants are `time.monotonic_ns()`, one clock for all processes. What Java throws raises Failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partialmethod
from typing import Literal, NamedTuple, Self

from lab.java_process import PATIENCE, Failed, JavaProcess, read_as
from lab.java_programs import REDISSON as NEWEST
from lab.java_programs import REDISSONS as VERSIONS
from lab.java_programs import class_path

__all__ = [
    "NEWEST", "PATIENCE", "SMALL", "VERSIONS", "Failed", "Fenced", "Handle", "Held", "Latch", "Lock",
    "Permits", "Redisson", "Semaphore", "State", "Topology",
]  # fmt: skip

SMALL = ("-Xmx96m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")
Topology = Literal["single", "sentinel", "cluster"]
Sharded = Literal["AUTO", "ON", "OFF"]
_FAIR_WAIT = 300.0
"""Redisson's default, and the only value before 3.46."""
_serial = itertools.count(1)


class Held(NamedTuple):
    at: int
    token: int
    """0 unless the lock is fenced."""
    ids: list[str]
    """Ids of expirable permits."""


class State(NamedTuple):
    locked: bool
    held_by_me: bool
    holds: int
    """Holds of the handle's thread."""
    ttl_ms: int
    """-2 where there is no key, -1 where it never expires."""


class Handle:
    """One object of Redisson, as one thread of the Java process uses it."""

    def __init__(self, process: JavaProcess, client_id: str, kind: str, name: str, beside: Handle | None) -> None:
        self._process, self._id = process, f"{kind}-{next(_serial)}"
        thread = self.ask("make", kind, name, beside._id if beside else "")[1]
        self.holder = f"{client_id}:{thread}"

    def begin(self, *words: object) -> Future[list[str]]:
        return self._process.tell(self._id, *words)

    def ask(self, *words: object, within: float = PATIENCE) -> list[str]:
        return self.begin(*words).result(within)

    def interrupt(self) -> None:
        """Interrupt the thread in the verb that runs; without one nothing happens."""
        self._process.tell("-", "interrupt", self._id).result(PATIENCE)

    def is_asleep(self) -> bool:
        """Its thread waits for a message about the lock. A message about a read-write lock wakes no other thread."""
        return self._process.tell("-", "asleep", self._id).result(PATIENCE)[1] == "true"

    def _number(self, *words: object) -> int:
        return int(self.ask(*words)[1])

    def _truth(self, *words: object) -> bool:
        return self.ask(*words)[1] == "true"


class Lock(Handle):
    """RLock in all its kinds. A multi-lock has no state, cannot be forced, and goes on waiting when interrupted. A fair
    waiter that is interrupted stays in the queue until its deadline."""

    def begin_take(self, timeout: float | None = None, lease: float | None = None) -> Future[Held | None]:
        """Timeout 0 without a lease is `tryLock()`. Without a lease the watchdog renews. Redisson remembers a lease
        until the object is unlocked: if the hold expires instead, the next take without a lease gets the old one."""
        return read_as(_held, self.begin("take", _milliseconds(timeout), _milliseconds(lease)))

    def take(self, timeout: float | None = None, lease: float | None = None) -> Held | None:
        return self.begin_take(timeout, lease).result(PATIENCE + (timeout or 0))

    def give(self) -> int:
        """When it began to release."""
        return self._number("give")

    def force(self) -> bool:
        """Whether there was a lock."""
        return self._truth("force")

    def state(self) -> State:
        locked, mine, holds, ttl = self.ask("state")[1:]
        return State(locked == "true", mine == "true", int(holds), int(ttl))


class Fenced(Lock):
    def token(self) -> int:
        """The newest one; 0 where none was ever given."""
        token = self.ask("token")[1]
        return 0 if token == "null" else int(token)


class Semaphore(Handle):
    def begin_take(self, n: int = 1, timeout: float | None = None) -> Future[Held | None]:
        return read_as(_held, self.begin("take", n, _milliseconds(timeout)))

    def take(self, n: int = 1, timeout: float | None = None) -> Held | None:
        return self.begin_take(n, timeout).result(PATIENCE + (timeout or 0))

    def give(self, n: int = 1) -> int:
        """When it began to release."""
        return self._number("give", n)

    def available(self) -> int:
        return self._number("available")

    def set_permits(self, n: int) -> bool:
        """Whether there was no number before."""
        return self._truth("set", n)


class Permits(Handle):
    def begin_take(self, n: int = 1, timeout: float | None = None, lease: float | None = None) -> Future[Held | None]:
        """Without a lease a permit never expires."""
        return read_as(_held, self.begin("take", n, _milliseconds(timeout), _milliseconds(lease)))

    def take(self, n: int = 1, timeout: float | None = None, lease: float | None = None) -> Held | None:
        return self.begin_take(n, timeout, lease).result(PATIENCE + (timeout or 0))

    def give(self, id: str | Iterable[str]) -> int:
        """When it began to release. Several ids are released all together or not at all."""
        return self._number("give", *([id] if isinstance(id, str) else id))

    def available(self) -> int:
        return self._number("available")

    def total(self) -> int:
        return self._number("total")

    def acquired(self) -> int:
        return self._number("acquired")

    def set_permits(self, n: int) -> bool:
        """Whether there was no number before."""
        return self._truth("set", n)


class Latch(Handle):
    def set_count(self, n: int) -> bool:
        """Whether there was no count before."""
        return self._truth("set", n)

    def count_down(self) -> None:
        self.ask("down")

    def count(self) -> int:
        return self._number("count")

    def begin_wait(self, timeout: float | None = None) -> Future[bool]:
        return read_as(lambda words: words[1] == "true", self.begin("wait", _milliseconds(timeout)))

    def wait(self, timeout: float | None = None) -> bool:
        return self.begin_wait(timeout).result(PATIENCE + (timeout or 0))


class Redisson:
    """The process. `addresses`: host:port of the server, of the sentinels or of some nodes of the cluster, separated by
    commas or in a sequence. `service` is the sentinels' name of the primary. A NameMapper puts `prefix` before every
    name."""

    def __init__(
        self,
        addresses: str | Iterable[str],
        *,
        topology: Topology = "single",
        service: str = "",
        watchdog: float = 30.0,
        fair_wait: float = _FAIR_WAIT,
        sharded: Sharded = "AUTO",
        prefix: str = "",
        timeout: float = 3.0,
        version: str = NEWEST,
    ) -> None:
        listed = addresses.split(",") if isinstance(addresses, str) else addresses
        urls = ",".join(address if "://" in address else f"redis://{address}" for address in listed)
        # 3.27 cannot be told the fair wait or the sharded mode: their defaults are left unsaid.
        wait = "" if fair_wait == _FAIR_WAIT else _milliseconds(fair_wait)
        options = [topology, urls, service, _milliseconds(watchdog), wait, sharded, prefix, _milliseconds(timeout)]
        self._process = JavaProcess(
            [*SMALL, "-cp", class_path("redisson", version), "RedissonProgram", *map(str, options)],
            "redisson",
            starting=2 * PATIENCE,
        )
        self.client_id = self._process.ready[0]

    def _make(self, kind: str, name: str, *, beside: Handle | None = None) -> Lock:
        return Lock(self._process, self.client_id, kind, name, beside)

    lock = partialmethod(_make, "lock")
    fair = partialmethod(_make, "fair")
    spin = partialmethod(_make, "spin")
    read = partialmethod(_make, "read")
    write = partialmethod(_make, "write")

    def multi(self, names: Iterable[str]) -> Lock:
        return self._make("multi", " ".join(names))

    def fenced(self, name: str, *, beside: Handle | None = None) -> Fenced:
        return Fenced(self._process, self.client_id, "fenced", name, beside)

    def semaphore(self, name: str) -> Semaphore:
        return Semaphore(self._process, self.client_id, "semaphore", name, None)

    def permits(self, name: str) -> Permits:
        return Permits(self._process, self.client_id, "permits", name, None)

    def latch(self, name: str) -> Latch:
        return Latch(self._process, self.client_id, "latch", name, None)

    def kill(self) -> None:
        """SIGKILL: its holds stay until their leases end."""
        self._process.kill()

    def close(self) -> None:
        """Redisson releases nothing when it is shut down: holds stay until their leases end."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _milliseconds(seconds: float | None) -> int:
    """-1 for none. What is not 0 stays so."""
    return -1 if seconds is None else max(round(seconds * 1000), int(seconds > 0))


def _held(words: list[str]) -> Held | None:
    return None if words[0] == "busy" else Held(int(words[1]), int(words[2]), words[3:])
