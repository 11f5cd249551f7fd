"""One proxied connection: a `Link` of two `Flow`s, one for each direction.

A flow reads at once and delivers in order, so its sender does not notice a delay. What it has read is still delivered
when its sender is gone. Everything here runs in the proxy's loop; any thread may read the counters.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from lab.faults import BlackHole, Cut, Direction, Drip, Fault, Hold, Latency, Stall
from lab.splitters import Splitter

F = TypeVar("F", bound=Fault)
_CHUNK = 1 << 16
_LINGER_NOT = struct.pack("ii", 1, 0)


@dataclass
class Count:
    messages: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


@dataclass(frozen=True, eq=False)
class Rule:
    """A fault, and whom it concerns: these directions of one link, or of all."""

    fault: Fault
    directions: tuple[Direction, ...]
    link: Link | None


class Rules:
    def __init__(self, told: Callable[[], None]) -> None:
        self.all: list[Rule] = []
        self.told = told
        """Called after everything that somebody outside may wait for."""
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def of(self, kind: type[F], flow: Flow) -> list[F]:
        return [
            rule.fault
            for rule in self.all
            if isinstance(rule.fault, kind)
            and flow.direction in rule.directions
            and (rule.link is None or rule.link is flow.link)
        ]

    def changed(self) -> None:
        self._change.set_result(None)
        self._change = asyncio.get_running_loop().create_future()
        self.told()

    async def change(self, within: float) -> None:
        await asyncio.wait([self._change], timeout=None if math.isinf(within) else within)


class Unit(NamedTuple):
    data: bytes
    at: float
    last: bool = False
    reset: bool = False


class Over(Exception):
    def __init__(self, reset: bool) -> None:
        super().__init__()
        self.reset = reset


@dataclass(eq=False)
class Flow:
    link: Link
    direction: Direction
    rules: Rules
    splitter: Splitter | None
    passed: Count = field(default_factory=Count)
    dropped: Count = field(default_factory=Count)
    held: Count = field(default_factory=Count)
    """Messages that waited for a `Hold` or a `Stall`."""
    deaf: bool = False
    """It lost something, and stays silent."""
    ended: bool = False
    """The receiver was told that its sender has gone."""
    broken: bool = False

    def __post_init__(self) -> None:
        self._queue: asyncio.Queue[Unit] = asyncio.Queue()
        self._number = 0

    async def read(self, source: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        rest, reset = b"", False
        try:
            while chunk := await loop.sock_recv(source, _CHUNK):
                rest = self._split(rest + chunk)
        except OSError:
            reset = True
        if rest:
            self._put(rest)
        self._put(b"", last=True, reset=reset)

    def _split(self, text: bytes) -> bytes:
        """Send the whole messages on their way; gives what is left."""
        while text and (length := self.splitter(text, self._number) if self.splitter else len(text)):
            self._put(text[:length])
            self._number += 1
            text = text[length:]
        return text

    def _put(self, data: bytes, last: bool = False, reset: bool = False) -> None:
        self._queue.put_nowait(Unit(data, asyncio.get_running_loop().time(), last, reset))

    async def write(self, sink: socket.socket) -> None:
        while True:
            unit = await self._queue.get()
            await self._travel(unit)
            self.deaf = self.deaf or bool(self.rules.of(BlackHole, self))
            if unit.last:
                self._end(unit, sink)
                return
            await self._deliver(unit.data, sink)

    async def _travel(self, unit: Unit) -> None:
        """Until the message is due and nothing stalls."""
        loop = asyncio.get_running_loop()
        stalled = False
        while True:
            late = sum(one.seconds for one in self.rules.of(Latency, self))
            stall = bool(self.rules.of(Stall, self))
            if stall and not stalled:
                stalled = True
                self.held.add(len(unit.data))
                self.rules.told()
            pause = math.inf if stall else unit.at + late - loop.time()
            if pause <= 0:
                return
            await self.rules.change(pause)

    async def _deliver(self, data: bytes, sink: socket.socket) -> None:
        if self.deaf:
            self._drop(data)
            return
        for cut in self.rules.of(Cut, self):
            if (offset := cut.spot.meet(data)) is not None:
                await self._send(data[:offset], sink)
                if data[offset:]:
                    self._drop(data[offset:])
                else:
                    self.passed.messages += 1
                raise Over(cut.reset)
        holds: list[Hold] = []
        for hold in self.rules.of(Hold, self):
            if len(hold.held) < hold.often and (offset := hold.spot.meet(data)) is not None:
                await self._send(data[:offset], sink)
                data = data[offset:]
                holds.append(hold)
                hold.held.append(data)
        arrived = False
        try:
            await self._wait(holds, data)
            arrived = await self._send(data, sink)
        finally:
            for hold in holds:
                hold.over.append(arrived)
        self.passed.messages += arrived
        self.rules.told()

    async def _wait(self, holds: list[Hold], data: bytes) -> None:
        if holds:
            self.held.add(len(data))
            self.rules.told()
        try:
            while set(holds) & set(self.rules.of(Hold, self)):
                await self.rules.change(math.inf)
        except asyncio.CancelledError:
            self._drop(data)
            raise

    async def _send(self, data: bytes, sink: socket.socket) -> bool:
        """All of it, byte by byte while it drips; False if nobody is there."""
        loop = asyncio.get_running_loop()
        start = 0
        while start < len(data) and not self.broken:
            drip = max((one.every for one in self.rules.of(Drip, self)), default=0.0)
            piece = data[start : start + 1] if drip else data[start:]
            try:
                await loop.sock_sendall(sink, piece)
            except OSError:
                self.broken = True
                break
            start += len(piece)
            self.passed.bytes += len(piece)
            self.rules.told()
            if drip:
                await self.rules.change(drip)
        if self.broken:
            self._drop(data[start:])
            if self.link.other(self).ended:
                raise Over(reset=True)
        return not self.broken

    def discard(self) -> None:
        while not self._queue.empty():
            unit = self._queue.get_nowait()
            if not unit.last:
                self._drop(unit.data)

    def _drop(self, data: bytes) -> None:
        self.dropped.add(len(data))
        self.rules.told()

    def _end(self, unit: Unit, sink: socket.socket) -> None:
        """The sender has gone; the receiver hears of it unless this direction is dead."""
        if self.deaf:
            return
        if unit.reset or self.link.other(self).broken:
            raise Over(reset=True)
        self.ended = True
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class Link:
    """One connection through the proxy; it stays in the proxy's list when it is over."""

    def __init__(self, client: socket.socket, rules: Rules, splitter: Splitter | None) -> None:
        self.peer: tuple[str, int] = client.getpeername()
        self.up, self.down = (Flow(self, direction, rules, splitter) for direction in Direction)
        self.open = True
        self.was_reset = False
        self.error: ExceptionGroup[Exception] | None = None
        """A mistake of the lab itself, or of a splitter."""
        self._client = client
        self._server = socket.socket()
        self._rules = rules
        self._task: asyncio.Task[None] | None = None

    def other(self, flow: Flow) -> Flow:
        return self.down if flow is self.up else self.up

    def start(self, target: Callable[[], tuple[str, int]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(target))

    async def cut(self, reset: bool) -> None:
        assert self._task is not None
        self.was_reset = self.was_reset or (reset and self.open)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._close()  # also if the task had not even begun

    async def _run(self, target: Callable[[], tuple[str, int]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.up.read(self._client))
                await self._connect(target)
                group.create_task(self.up.write(self._server))
                if not self.up.deaf:
                    group.create_task(self.down.read(self._server))
                    group.create_task(self.down.write(self._client))
        except* Over as over:
            self.was_reset = any(one.reset for one in over.exceptions if isinstance(one, Over))
        except* Exception as errors:
            self.error = errors
        finally:
            self._close()

    async def _connect(self, target: Callable[[], tuple[str, int]]) -> None:
        """A fault that stops data going up also stops the connection."""
        if self._rules.of(Stall, self.up):
            self.up.held.add(0)
            self._rules.told()
        while self._rules.of(Stall, self.up):
            await self._rules.change(math.inf)
        if self._rules.of(BlackHole, self.up):
            self.up.deaf = True
            return
        prepare(self._server)
        try:
            await asyncio.get_running_loop().sock_connect(self._server, target())
        except OSError:
            raise Over(reset=True) from None

    def _close(self) -> None:
        for flow in (self.up, self.down):
            flow.discard()
        self.open = False
        for end in (self._client, self._server):
            close(end, reset=self.was_reset)
        self._rules.told()


def prepare(end: socket.socket) -> None:
    end.setblocking(False)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def close(end: socket.socket, *, reset: bool) -> None:
    if reset:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    end.close()
