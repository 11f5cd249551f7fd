"""What the rows on ZooKeeper run against, and beside: the server, the floor, kazoo's Lock, Curator's InterProcessMutex.

`serving(settings)` is a real server of the lab, alone, whose transaction log is synced to this run's own directory: so
`--dir` says which disk is measured. `Floor` speaks the protocol on a bare socket and does the least that could
work, a sequential node made and deleted; it is no lock. Curator runs in one JVM, warmed up before it is timed.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contend import PROCESSES, Contender, Outcome
from crew import Failed
from measure import Settings, Timed, timed

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from lab.curator import SERVER, Curator, Handle
from lab.servers import ports, programs
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper

FLOOR, KAZOO, CURATOR = "floor_create_delete", "kazoo.Lock", "Curator"
SESSION = 30.0
_PATIENCE = 60.0
TICK_MS = 2000
"""ZooKeeper's usual: sessions of up to 40 s, so that nobody's ends while others have their turns."""
LONGEST_SESSION_MS = 20 * TICK_MS
_CREATE2, _DELETE = 15, 2
_EXISTS_ALREADY = -110
_EPHEMERAL_SEQUENTIAL = 3
_OPEN = struct.pack("!ii", 1, 31) + struct.pack("!i5si6s", 5, b"world", 6, b"anyone")
"""An ACL of one entry: all rights to anyone."""


@contextmanager
def serving(settings: Settings) -> Iterator[Server]:
    with ExitStack() as stack:
        log = stack.enter_context(TemporaryDirectory(prefix="zookeeper-", dir=settings.directory))
        server = stack.enter_context(Server(ZooKeeper(f"dataLogDir={log}", tick_ms=TICK_MS)))
        create_delete(server.port, stack)(settings.choose(1500, 200))  # or whoever comes first would do it
        yield server


def url(port: int) -> str:
    return f"zookeeper://{ports.HOST}:{port}"


class Floor:
    """A session on a bare socket; each request is waited for. It sends no pings: no turn may outlast the session."""

    def __init__(self, port: int) -> None:
        self._line = socket.create_connection((ports.HOST, port))
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._line.makefile("rb")
        self._xid = 0
        self._exchange(struct.pack("!iqiqi16s?", 0, 0, LONGEST_SESSION_MS, 0, 16, b"", False))
        self._create(b"/floor", 0)

    def pair(self) -> None:
        made = self._create(b"/floor/lock-", _EPHEMERAL_SEQUENTIAL)
        self._request(_DELETE, _text(made) + struct.pack("!i", -1))

    def close(self) -> None:
        self._answers.close()
        self._line.close()

    def _create(self, path: bytes, flags: int) -> bytes:
        """Gives the name that the server made of it."""
        answer = self._request(_CREATE2, _text(path) + _text(b"") + _OPEN + struct.pack("!i", flags))
        return answer[20 : 20 + int.from_bytes(answer[16:20], "big")]

    def _request(self, kind: int, body: bytes) -> bytes:
        self._xid += 1
        answer = self._exchange(struct.pack("!ii", self._xid, kind) + body)
        if (error := int.from_bytes(answer[12:16], "big", signed=True)) not in (0, _EXISTS_ALREADY):
            raise Failed(f"ZooKeeper error {error}")
        return answer

    def _exchange(self, message: bytes) -> bytes:
        self._line.sendall(_text(message))
        return self._answers.read(int.from_bytes(self._answers.read(4), "big"))


def _text(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


def create_delete(port: int, stack: ExitStack) -> Timed:
    """A session for each turn, which then need not survive the turns of the others."""

    def run(n: int) -> list[float]:
        with closing(Floor(port)) as floor:
            return timed(floor.pair)(n)

    return run


def kazoo_pair(port: int, stack: ExitStack) -> Timed:
    return timed(pair_of(kazoo_lock(port, stack, "/kazoo-free")))


def kazoo_lock(port: int, stack: ExitStack, path: str = "/kazoo") -> Any:
    from kazoo.client import KazooClient

    client = KazooClient(f"{ports.HOST}:{port}", timeout=SESSION)
    stack.callback(client.close)
    stack.callback(client.stop)
    client.start()
    return client.Lock(path, "bench")


def pair_of(lock: Any) -> Callable[[], None]:
    def once() -> None:
        lock.acquire()
        lock.release()

    return once


def curator_pair(port: int, stack: ExitStack, warm_up: int) -> Timed:
    """InterProcessMutex. From one grant to the next is one pair, as nobody waits between them."""
    lock = curator(port, stack).mutex("/curator-free")
    lock.pairs(warm_up)
    pace = lock.pairs(warm_up // 4)

    def run(n: int) -> list[float]:
        until = time.monotonic_ns() + round(n * pace * 1e9)
        grants = [granted for granted, _ in lock.contend(until).result(_PATIENCE)]
        return [(later - earlier) / 1e9 for earlier, later in pairwise(grants)]

    return run


def curator_contender(port: int, stack: ExitStack, processes: int, warm_up: float) -> Contender:
    """Four threads in so many JVMs, each with an InterProcessMutex of its own."""
    javas = [curator(port, stack) for _ in range(processes)]
    locks = [javas[number % processes].mutex(f"/curator-{processes}") for number in range(PROCESSES)]
    curator_turn(locks, warm_up, 0.0)

    def contend(outcome: Outcome, seconds: float, hold: float) -> None:
        outcome.add_holds(seconds, *curator_turn(locks, seconds, hold))

    return contend


def curator_turn(locks: list[Handle], seconds: float, hold: float) -> tuple[int, list[list[tuple[int, int]]]]:
    """When it was to end, and for each lock its holds: granted, released."""
    end = time.monotonic_ns() + round(seconds * 1e9)
    turns = [lock.contend(end, hold) for lock in locks]
    return end, [turn.result(seconds + _PATIENCE) for turn in turns]


def curator(port: int, stack: ExitStack) -> Curator:
    if absent := programs.missing("zookeeper", "curator"):
        raise Failed(f"not installed: {', '.join(absent)}; scripts/servers installs them")
    return stack.enter_context(Curator(f"{ports.HOST}:{port}", timeout=SESSION, flags=SERVER))
