"""Peers on ZooKeeper: the floor, kazoo's Lock, Curator's InterProcessMutex.

`Floor` speaks the protocol on a bare socket and does the least work that could do the job: it creates a sequential node
and deletes it. It is no lock. Curator runs in JVMs that are warmed up before they are timed.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any

from contest import PROCESSES, Contender, Outcome
from crew import Failed
from measure import Settings, Timed, timed
from redis_peers import address
from servers import TICK_MS

from lab.curator import SERVER, Curator, Handle
from lab.servers import programs

FLOOR, KAZOO, CURATOR = "floor_create_delete", "kazoo.Lock", "Curator"
CURATORS = f"{CURATOR}, {PROCESSES} JVMs"
SESSION = 30.0
_PATIENCE = 60.0
LONGEST_SESSION_MS = 20 * TICK_MS
_CREATE2, _DELETE = 15, 2
_EXISTS_ALREADY = -110
_EPHEMERAL_SEQUENTIAL = 3
_OPEN = struct.pack("!ii", 1, 31) + struct.pack("!i5si6s", 5, b"world", 6, b"anyone")
"""An ACL of one entry: all rights to anyone."""


class Floor:
    """A session on a bare socket; it waits for each reply. It sends no pings: no turn may outlast the session."""

    def __init__(self, url: str) -> None:
        self._socket = socket.create_connection(address(url))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._socket.makefile("rb")
        self._xid = 0
        self._exchange(struct.pack("!iqiqi16s?", 0, 0, LONGEST_SESSION_MS, 0, 16, b"", False))
        self._create(b"/floor", 0)

    def pair(self) -> None:
        made = self._create(b"/floor/lock-", _EPHEMERAL_SEQUENTIAL)
        self._request(_DELETE, _text(made) + struct.pack("!i", -1))

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def _create(self, path: bytes, flags: int) -> bytes:
        """Returns the name that the server made of it."""
        reply = self._request(_CREATE2, _text(path) + _text(b"") + _OPEN + struct.pack("!i", flags))
        return reply[20 : 20 + int.from_bytes(reply[16:20], "big")]

    def _request(self, kind: int, body: bytes) -> bytes:
        self._xid += 1
        reply = self._exchange(struct.pack("!ii", self._xid, kind) + body)
        if (error := int.from_bytes(reply[12:16], "big", signed=True)) not in (0, _EXISTS_ALREADY):
            raise Failed(f"ZooKeeper error {error}")
        return reply

    def _exchange(self, message: bytes) -> bytes:
        self._socket.sendall(_text(message))
        return self._replies.read(int.from_bytes(self._replies.read(4), "big"))


def _text(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


def create_delete(url: str, stack: ExitStack) -> Timed:
    """A session for each turn, which need not survive the turns of the others."""

    def run(n: int) -> list[float]:
        with closing(Floor(url)) as floor:
            return timed(floor.pair)(n)

    return run


def kazoo_lock(url: str, stack: ExitStack) -> Any:
    from kazoo.client import KazooClient

    client = KazooClient(":".join(map(str, address(url))), timeout=SESSION)
    stack.callback(client.close)
    stack.callback(client.stop)
    client.start()
    return client.Lock("/kazoo", "bench")


def curator_pair(url: str, settings: Settings, stack: ExitStack) -> Timed:
    """InterProcessMutex. From one grant to the next is one pair, as nobody waits between them."""
    lock, warm_up = curator(url, stack).mutex("/curator-free"), settings.choose(5000, 200)
    lock.pairs(warm_up)
    pace = lock.pairs(warm_up // 4)

    def run(n: int) -> list[float]:
        until = time.monotonic_ns() + round(n * pace * 1e9)
        grants = [granted for granted, _ in lock.contend(until).result(_PATIENCE)]
        return [(later - earlier) / 1e9 for earlier, later in pairwise(grants)]

    return run


def curator_contender(processes: int, url: str, settings: Settings, stack: ExitStack) -> Contender:
    """Four threads in this number of JVMs, each with an InterProcessMutex of its own."""
    javas = [curator(url, stack) for _ in range(processes)]
    locks = [javas[number % processes].mutex(f"/curator-{processes}") for number in range(PROCESSES)]
    curator_turn(locks, settings.choose(5.0, 0.5), 0.0)

    def contend(outcome: Outcome, seconds: float, hold: float) -> None:
        outcome.add_holds(seconds, *curator_turn(locks, seconds, hold))

    return contend


def curator_turn(locks: list[Handle], seconds: float, hold: float) -> tuple[int, list[list[tuple[int, int]]]]:
    """When it was to end, and for each lock its holds: granted, released."""
    end = time.monotonic_ns() + round(seconds * 1e9)
    turns = [lock.contend(end, hold) for lock in locks]
    return end, [turn.result(seconds + _PATIENCE) for turn in turns]


def curator(url: str, stack: ExitStack) -> Curator:
    if absent := programs.missing("zookeeper", "curator"):
        raise Failed(f"not installed: {', '.join(absent)}; scripts/servers installs them")
    return stack.enter_context(Curator(":".join(map(str, address(url))), timeout=SESSION, flags=SERVER))
