"""A TCP proxy with faults. It has a thread of its own; calls are synchronous.

    with Proxy(("127.0.0.1", server_port), splitter=splitters.resp) as proxy:
        client = connect(proxy.port)
        hold = proxy.hold(UP, at_message(match=lambda text: b"INCR" in text))
        ...                                  # the client sends a request, times out and disconnects
        hold.await_held()
        hold.deliver()                       # now the server gets the request
        proxy.add(BlackHole(), DOWN, link=proxy.links[0])
        proxy.reset()                        # all links, at once
        proxy.heal()

A fault (lab.faults) applies to present and future links until it is removed. A message is forwarded when the splitter
finds it whole; without a splitter a message is what came in one piece. Each link counts messages per direction
(`link.up.dropped.bytes`): a test waits with `wait_for` until its fault has happened.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from lab.faults import Direction, Fault, Hold, Refuse, Slam, Spot, at_message
from lab.link import Link, Rule, Rules, close, prepare
from lab.splitters import Splitter

T = TypeVar("T")
UP, DOWN = Direction.UP, Direction.DOWN
PATIENCE = 60.0
_BACKLOG = 512


class Proxy:
    def __init__(self, target: tuple[str, int], *, splitter: Splitter | None = None) -> None:
        self.target = target
        """Where new links lead; may be changed at any time."""
        self.links: list[Link] = []
        """All there ever were, in the order of their beginning."""
        self._splitter = splitter
        # Bound and never listening: it keeps the port ours while the listener is closed.
        self._port_keeper = _bound(0)
        self.port: int = self._port_keeper.getsockname()[1]
        self._news = threading.Condition()
        self._listener: socket.socket | None = None
        self._rules: Rules
        self._loop: asyncio.AbstractEventLoop
        self._closing: asyncio.Event
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), name="proxy", daemon=True)
        self._thread.start()
        ready.result(PATIENCE)

    def add(self, fault: Fault, *directions: Direction, link: Link | None = None) -> Rule:
        """Both directions unless said otherwise."""
        rule = Rule(fault, directions or (UP, DOWN), link)
        self._do(self._change(lambda rules: rules.append(rule)))
        return rule

    def remove(self, rule: Rule) -> None:
        self._do(self._change(lambda rules: rules.remove(rule) if rule in rules else None))

    def hold(
        self, direction: Direction, spot: Spot | None = None, *, often: int = 1, link: Link | None = None
    ) -> Holding:
        """Hold back the message at that spot, by default the next one."""
        fault = Hold(spot or at_message(), often)
        return Holding(self, self.add(fault, direction, link=link), fault)

    def heal(self) -> None:
        """Remove all faults. What was held arrives; links that lost something are reset, for TCP never skips."""
        self._do(self._heal())

    def reset(self, link: Link | None = None) -> None:
        """That link, or all there are, by RST, now."""
        self._do(self._cut([link] if link else self.links, reset=True))

    def cut(self, link: Link | None = None) -> None:
        """That link, or all there are, in the orderly way, now."""
        self._do(self._cut([link] if link else self.links, reset=False))

    def wait_for(self, condition: Callable[[], T], within: float = PATIENCE, what: str = "the condition") -> T:
        """The result of `condition` once it is true; asked again whenever something happens here."""
        end = time.monotonic() + within
        with self._news:
            while not (seen := condition()):
                left = end - time.monotonic()
                assert left > 0, f"{what}: not within {within:g} s; {self}"
                self._news.wait(left)
        return seen

    @property
    def open_links(self) -> list[Link]:
        return [link for link in self.links if link.open]

    def total(self, direction: Direction, what: str) -> tuple[int, int]:
        """Messages and bytes "passed", "dropped" or "held" in that direction by all links."""
        counts = [getattr(getattr(link, direction), what) for link in self.links]
        return sum(count.messages for count in counts), sum(count.bytes for count in counts)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive(), "the proxy hangs"
        self._port_keeper.close()
        errors = [link.error for link in self.links if link.error is not None]
        if errors:
            raise ExceptionGroup("on the proxy's links", errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        counts = {f"{way} {what}": self.total(way, what) for way in Direction for what in ("passed", "dropped", "held")}
        return f"<Proxy {self.port} of {self.target}, links open: {len(self.open_links)}, {counts}>"

    def _do(self, doing: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(PATIENCE)

    async def _run(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._rules = Rules(self._tell)
        self._listen()
        ready.set_result(None)
        await self._closing.wait()
        self._stop_listening()
        await self._cut(self.links, reset=False)

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    async def _change(self, change: Callable[[list[Rule]], Any]) -> None:
        change(self._rules.all)
        if any(isinstance(rule.fault, Refuse) for rule in self._rules.all):
            self._stop_listening()
        else:
            self._listen()
        self._rules.changed()

    async def _heal(self) -> None:
        await self._cut([link for link in self.links if link.up.deaf or link.down.deaf], reset=True)
        await self._change(list.clear)

    async def _cut(self, links: list[Link], *, reset: bool) -> None:
        for link in [link for link in links if link.open]:
            await link.cut(reset)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(_BACKLOG)
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        """By hand: a task that waits for it may be cancelled when it has come, and would drop it unclosed."""
        try:
            client, _ = listener.accept()
        except OSError:  # gone again already
            return
        try:
            if any(isinstance(rule.fault, Slam) for rule in self._rules.all):
                close(client, reset=True)
                return
            prepare(client)
        except OSError:  # the same
            client.close()
            return
        link = Link(client, self._rules, self._splitter)
        self.links.append(link)
        link.start(lambda: self.target)
        self._tell()


class Holding:
    def __init__(self, proxy: Proxy, rule: Rule, fault: Hold) -> None:
        self._proxy = proxy
        self._rule = rule
        self._fault = fault

    @property
    def messages(self) -> list[bytes]:
        return list(self._fault.held)

    def await_held(self, count: int = 1, within: float = PATIENCE) -> list[bytes]:
        self._proxy.wait_for(lambda: len(self._fault.held) >= count, within, f"{count} held")
        return self.messages

    def deliver(self, within: float = PATIENCE) -> int:
        """Let them go, and hold no more; gives how many were handed over to a receiver that is still there."""
        self._proxy.remove(self._rule)
        self._proxy.wait_for(lambda: len(self._fault.over) == len(self._fault.held), within, "delivered")
        return sum(self._fault.over)


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made
