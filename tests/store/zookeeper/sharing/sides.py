"""Both sides of a shared path: Python (store/sides.py), and Java by Curator; and which kind is which of the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.curator import Curator, Handle
from store.sides import Shift, Turn


@dataclass(frozen=True, eq=False)
class Kind:
    """One exclusive use of a path, made by either side."""

    name: str
    ours: Callable[[Any, str], Any]
    """(client, path): a lock."""
    theirs: Callable[[Curator, str], Handle]
    word: str = ""
    """What Java is told with each take and give."""
    options: dict[str, str] = field(default_factory=dict)
    """Of the client."""

    def __str__(self) -> str:
        return self.name


LOCK = Kind("lock", lambda client, path: client.lock(path), lambda java, path: java.mutex(path))
RLOCK = Kind("rlock", lambda client, path: client.rlock(path), lambda java, path: java.mutex(path))
WRITE = Kind("write", lambda client, path: client.rwlock(path).write, lambda java, path: java.read_write(path), "write")
SEMAPHORE = Kind(
    "semaphore", lambda client, path: client.semaphore(path, 1), lambda java, path: java.semaphore(path, 1), "1"
)
SEMAPHORE_MUTEX = Kind(
    "semaphore-mutex",
    lambda client, path: client.lock(path),
    lambda java, path: java.semaphore_mutex(path),
    options={"layout": "semaphore-mutex"},
)
ELECTION = Kind(
    "election", lambda client, path: client.election(path).lead(), lambda java, path: java.latch(path, "java")
)
READ = Kind("read", lambda client, path: client.rwlock(path).read, lambda java, path: java.read_write(path), "read")
KINDS = (LOCK, RLOCK, WRITE, SEMAPHORE, SEMAPHORE_MUTEX, ELECTION)


def java_turns(shift: Shift, handle: Handle, word: str = "", weight: int = 1, hold: float = 0.0) -> None:
    """Turns of one handle, until it is enough."""
    while shift.open():
        held = handle.take(word=word)
        assert held is not None
        time.sleep(hold)  # the length of the hold, nothing is waited for
        shift.turns.append(Turn(held.at, handle.give(word), "java", held.czxid, weight))
