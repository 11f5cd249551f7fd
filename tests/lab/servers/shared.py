"""One ZooKeeper for all tests of a process, and a place of its own there for each that asks.

    fresh(tmp_path)     # zookeeper://127.0.0.1:34567/fresh-12: nothing stands below it yet

A JVM takes a second or two to start and is as good at the end as at the beginning, so nobody needs one alone who does
no harm to it. It starts when a test first asks; while tests are collected a URL is all that is wanted of it. It ends
with the process (see guard.py). Sessions last from 1.5 to 60 s.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path

from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper

TICK_MS = 750
SHORTEST, LONGEST = 2 * TICK_MS / 1000, 60
"""Seconds that a session lasts at least, and at most."""
HEAP_MB = 256
"""Two thousand who come at once are each told of all before them: answers that wait there to be read."""
_numbers = itertools.count(1)


@functools.cache
def _kind() -> ZooKeeper:
    kind = ZooKeeper(
        "maxClientCnxns=0", f"maxSessionTimeout={LONGEST * 1000}", tick_ms=TICK_MS, java=[f"-Xmx{HEAP_MB}m"]
    )
    at_exit(lambda: ports.release(kind.port))
    return kind


@functools.cache
def zookeeper() -> Server:
    """It serves; where there is none, whoever asks is skipped."""
    require("zookeeper")
    server = Server(_kind())
    at_exit(server.end)
    return server.start()


def fresh(_: Path) -> str:
    """The URL of a store in which nothing stands, as dibs.testing asks for it."""
    if "PYTEST_CURRENT_TEST" in os.environ:
        zookeeper()
    return f"{_kind().url()}/fresh-{next(_numbers)}"


def at_exit(end: Callable[[], None]) -> None:
    """Of this process, not of what it forked."""
    owner = os.getpid()
    atexit.register(lambda: end() if os.getpid() == owner else None)
