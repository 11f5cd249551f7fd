"""The kinds of locks that dibs and Curator share on one path, as either side makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lab.curator import Curator, Handle
from store.sides import APIS


@dataclass(frozen=True, eq=False)
class Kind:
    name: str
    ours: Callable[[Any, str], Any]
    """(client, path): a lock."""
    theirs: Callable[[Curator, str], Handle]
    word: str = ""
    """Java gets it with each take and give."""
    options: dict[str, str] = field(default_factory=dict)
    """For the client."""
    shape: str = "semaphore"
    """Kinds of one shape share a path."""

    def __str__(self) -> str:
        return self.name


def _mutex(java: Curator, path: str) -> Handle:
    return java.mutex(path)


def _read_write(java: Curator, path: str) -> Handle:
    return java.read_write(path)


LOCK = Kind("lock", lambda client, path: client.lock(path), _mutex, shape="mutex")
RLOCK = Kind("rlock", lambda client, path: client.rlock(path), _mutex, shape="mutex")
WRITE = Kind("write", lambda client, path: client.rwlock(path).write, _read_write, "write", shape="rw")
READ = Kind("read", lambda client, path: client.rwlock(path).read, _read_write, "read", shape="rw")
SEMAPHORE = Kind(
    "semaphore", lambda client, path: client.semaphore(path, 1), lambda java, path: java.semaphore(path, 1), "1"
)
SEMAPHORE_MUTEX = Kind(
    "semaphore-mutex", lambda client, path: client.lock(path), lambda java, path: java.semaphore_mutex(path),
    options={"layout": "semaphore-mutex"},
)  # fmt: skip
ELECTION = Kind(
    "election", lambda client, path: client.election(path).lead(), lambda java, path: java.latch(path, "java"),
    shape="election",
)  # fmt: skip
KINDS = (LOCK, RLOCK, WRITE, SEMAPHORE, SEMAPHORE_MUTEX, ELECTION)


def each(*kinds: Kind, argument: str = "kind") -> pytest.MarkDecorator:
    """A test for each kind, the APIs in turn. All but the first go to the gate."""
    params = [
        pytest.param(APIS[n % 2], kind, id=f"{kind}-{APIS[n % 2]}", marks=[pytest.mark.gate] if n else [])
        for n, kind in enumerate(kinds)
    ]
    return pytest.mark.parametrize(("side", argument), params, indirect=["side"])
