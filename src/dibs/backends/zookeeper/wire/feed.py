"""Hands messages to an event loop, a few in each of its rounds: thousands of tasks that wake in one round block it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dibs.core.runtime import Inbox, Runtime

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_AT_ONCE = 100


class Feed:
    def __init__(self, inbox: Inbox, runtime: Runtime) -> None:
        self._inbox = inbox
        self._runtime = runtime
        self._messages: deque[tuple[bytes, bytes]] = deque()
        self._goes_on_in: AbstractEventLoop | None = None
        """The loop whose next round hands over more. It may be closed before, and another one come."""

    def put(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """From any thread."""
        self._messages.extend(messages)
        self._runtime.call_back(self._begin)

    def _begin(self) -> None:
        if self._goes_on_in is not _loop():
            self._hand_over()

    def _hand_over(self) -> None:
        messages, loop = self._messages, _loop()
        self._inbox.deliver_all([messages.popleft() for _ in range(min(len(messages), _AT_ONCE))])
        self._goes_on_in = loop if messages else None
        if messages:
            loop.call_soon(self._hand_over)


def _loop() -> AbstractEventLoop:
    from asyncio import get_running_loop  # noqa: PLC0415  (who uses no event loop does not need it)

    return get_running_loop()
