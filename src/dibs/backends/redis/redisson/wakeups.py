"""Route the messages of Redisson to the waiters of this client.

A message tells one waiter of its channel to try. Where several may hold at once, each waiter tells the next one after
its try, until a waiter gets the lock exclusively. Redisson wakes all of them together. A waiter that was told and gives
up before it tries tells the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.common.subscriber import Messages
from dibs.core.latches import OPENED
from dibs.core.queue import LOOK, TRY
from dibs.core.runtime import Inbox

_OF_LATCHES = b"redisson_countdownlatch__channel__"
_OF_LOCKS = (b"redisson_lock__channel:", b"redisson_rwlock:", b"redisson_sc:")


class Wakeups:
    """Shared by the queues of a client. Each step is atomic in CPython, or repeats harmlessly."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._told: dict[bytes, None] = {}
        """Waiters that were told to try, and have not begun."""

    def route(self, channel: bytes, text: bytes, keys: Sequence[bytes]) -> Messages:
        """The messages to the listeners of a channel. Of a latch only the one that it opened: a later one, that it was
        closed again, would replace it in the inbox."""
        if channel.startswith(_OF_LOCKS):
            return self._told_to_try(keys)
        if channel.startswith(_OF_LATCHES):
            return [(key, OPENED) for key in keys] if text == OPENED else []
        return [(key, LOOK.value) for key in keys]

    def begins(self, key: bytes) -> bool:
        """A waiter tries: what comes from here on is news for it. Gives whether it was told to."""
        return self._told.pop(key, 0) is None

    def wake_one(self, keys: Sequence[bytes]) -> None:
        self._inbox.deliver_all(self._told_to_try(keys))

    def ends(self, key: bytes, others: Sequence[bytes]) -> None:
        """A waiter leaves."""
        if self.begins(key):
            self.wake_one(others)

    def _told_to_try(self, keys: Sequence[bytes]) -> Messages:
        for key in keys:
            if key in self._told:
                continue
            self._told[key] = None
            if key in self._inbox.expected:
                return [(key, TRY.value)]
            self.begins(key)  # it has left meanwhile
        return []


def after(keys: Sequence[bytes], key: bytes) -> Sequence[bytes]:
    """The keys behind this one.

    >>> after([b"a", b"b", b"c"], b"b"), after([b"a"], b"b")
    ([b'c'], [])
    """
    return keys[keys.index(key) + 1 :] if key in keys else []
