"""Curator in a Java process, driven by a test: the other side of a shared path.

    with Curator(f"127.0.0.1:{server.port}") as java:
        lock = java.mutex("/shared/a")           # also read_write, semaphore, semaphore_mutex, latch
        held = lock.take(5)                      # Held, or None if busy; take(None) waits for ever
        waits = java.mutex("/shared/a").begin()  # a Future
        lock.give()
        waits.result(PATIENCE)

Each handle is one object of Curator with a thread of its own, so handles exclude each other as processes do. A handle
that waits does nothing else meanwhile. All share one session. Instants are `time.monotonic_ns()`, one clock for all
processes. For measuring:

    with Curator(where, flags=SERVER) as java:   # one such process for each that contends
        java.mutex("/a").pairs(1000)             # seconds per free take and give; the first call warms up
        java.mutex("/a").contend(end_ns, 0.005).result(60)  # [(granted, released)], each held so many seconds
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Self

from lab.java_process import PATIENCE, Failed, JavaProcess, read_as, read_holds
from lab.java_programs import CURATOR, class_path
from lab.servers import programs

__all__ = ["LOG", "PATIENCE", "SERVER", "SMALL", "Curator", "Failed", "Handle", "Held", "Node"]

SMALL = ("-Xmx64m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")
SERVER = ("-Xmx256m", "-XX:+UseSerialGC")
"""With the compiler that a measurement owes to Java."""
LOG = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
_number = itertools.count(1)


class Held(NamedTuple):
    at: int
    node: str
    """Empty where Curator does not tell: read-write, semaphore mutex, latch."""
    czxid: int


class Node(NamedTuple):
    name: str
    czxid: int


class Handle:
    """One lock, as one thread of the Java process uses it. `word`: read or write; of a semaphore, how many."""

    def __init__(self, java: Curator, name: str) -> None:
        self._java, self._name = java, name

    def begin(self, timeout: float | None = None, word: str = "") -> Future[Held | None]:
        milliseconds = -1 if timeout is None else round(timeout * 1000)
        return read_as(_held, self._java.tell(self._name, "take", milliseconds, word))

    def take(self, timeout: float | None = PATIENCE, word: str = "") -> Held | None:
        return self.begin(timeout, word).result(PATIENCE + (timeout or 0))

    def give(self, word: str = "") -> int:
        """When it began to release."""
        return int(self.ask("give", word)[1])

    def participants(self, word: str = "") -> list[str]:
        """The participants, in Curator's order: nodes, or ids of a latch; with the word `leader` only the leader."""
        return self.ask("list", word)[1:]

    def revocable(self, word: str = "") -> None:
        """Counts for the next take only."""
        self.ask("revocable", word)

    def asked(self, within: float = PATIENCE) -> bool:
        return self.ask("asked", round(within * 1000), within=within + PATIENCE) == ["yes"]

    def pairs(self, count: int) -> float:
        return float(self.ask("pairs", count, within=600)[1])

    def contend(self, until_ns: int, hold: float = 0.0) -> Future[list[tuple[int, int]]]:
        """Take and give back, again and again; for each hold when it was granted and when its release began."""
        return read_as(read_holds, self._java.tell(self._name, "contend", until_ns, round(hold * 1e6)))

    def ask(self, *words: object, within: float = PATIENCE) -> list[str]:
        return self._java.tell(self._name, *words).result(within)


class Curator:
    """The process. `where`: host:port, host:port, ... and a chroot."""

    def __init__(
        self,
        where: str,
        *,
        timeout: float = 10.0,
        flags: Sequence[str] = SMALL,
    ) -> None:
        programs.require("zookeeper")
        times = [str(round(seconds * 1000)) for seconds in (timeout, PATIENCE)]
        self._process = JavaProcess(
            [*flags, LOG, "-cp", class_path("curator", CURATOR), "Curator", where, *times],
            "curator",
            starting=2 * PATIENCE,
        )

    def mutex(self, path: str, *, namespace: str = "") -> Handle:
        return self._make("mutex", path, namespace)

    def read_write(self, path: str, *, namespace: str = "") -> Handle:
        """InterProcessReadWriteLock; its words are read and write."""
        return self._make("rw", path, namespace)

    def semaphore(self, path: str, permits: int, *, namespace: str = "") -> Handle:
        """InterProcessSemaphoreV2; `take(word="2")` takes two, one by one, `give` gives all."""
        return self._make("semaphore", path, namespace, permits)

    def semaphore_mutex(self, path: str, *, namespace: str = "") -> Handle:
        return self._make("semaphore-mutex", path, namespace)

    def latch(self, path: str, id: str, *, namespace: str = "") -> Handle:
        """LeaderLatch: it takes part from its first take until give."""
        return self._make("latch", path, namespace, id)

    def revoke(self, node: str) -> None:
        self.tell("-", "revoke", node).result(PATIENCE)

    def nodes(self, path: str) -> list[Node]:
        """All children, oldest first; none where there is no such path."""
        try:
            _, *seen = self.tell("-", "nodes", path).result(PATIENCE)
        except Failed as error:
            if "NoNode" in str(error):
                return []
            raise
        found = (line.rsplit(" ", 1) for line in seen)
        return sorted((Node(name, int(czxid)) for name, czxid in found), key=lambda node: node.czxid)

    def data(self, node: str) -> str:
        return self.tell("-", "data", node).result(PATIENCE)[1]

    def _make(self, kind: str, path: str, namespace: str, word: object = "") -> Handle:
        handle = Handle(self, f"{kind}-{next(_number)}")
        handle.ask("make", kind, path, namespace, word)
        return handle

    def tell(self, handle: str, *words: object) -> Future[list[str]]:
        return self._process.tell(handle, *words)

    def kill(self) -> None:
        """Without a goodbye: what it held stays until its session is over."""
        self._process.kill()

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _held(words: list[str]) -> Held | None:
    return None if words[0] == "busy" else Held(int(words[1]), words[2], int(words[3]))
