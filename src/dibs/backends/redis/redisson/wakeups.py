"""Who hears a message of Redisson.

A message wakes one waiter of each client (0), all of them (1), or as many as permits are free. So of the waiters of
this client on a channel, one at a time is told to try. A waiter that was told and gives up before it tries passes that
on.
"""

from __future__ import annotations

from collections.abc import Iterable

from dibs.backends.common.subscriber import Messages
from dibs.core.queue import LOOK, TRY
from dibs.core.runtime import Inbox

_ALL = 1_000_000


class Wakeups:
    """Shared by the queues of a client. Each step is atomic in CPython, or repeats harmlessly."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._told: dict[bytes, None] = {}
        """Waiters that were told to try, and have not begun."""

    def route(self, channel: bytes, text: bytes, keys: Iterable[bytes]) -> Messages:
        """The messages to the listeners of a channel."""
        if channel.startswith(b"redisson_lock__channel:"):
            return self._next(keys, 1)
        if channel.startswith(b"redisson_rwlock:"):
            return self._next(keys, _ALL if text == b"1" else 1)
        if channel.startswith(b"redisson_sc:"):
            return self._next(keys, int(text) if text.isdigit() else 1)
        return [(key, text if text in (b"0", b"1") else LOOK.value) for key in keys]

    def begins(self, key: bytes) -> None:
        """A waiter tries: what comes from here on is news for it."""
        self._told.pop(key, None)

    def wake_next(self, keys: Iterable[bytes]) -> None:
        """Others may hold beside one that was woken."""
        self._inbox.deliver_all(self._next(keys, 1))

    def ends(self, key: bytes, others: Iterable[bytes]) -> None:
        """A waiter leaves."""
        if key in self._told:
            self.begins(key)
            self.wake_next(others)

    def _next(self, keys: Iterable[bytes], count: int) -> Messages:
        found: Messages = []
        for key in keys:
            if len(found) >= count:
                break
            if key not in self._told:
                self._told[key] = None
                found.append((key, TRY.value))
        return found
