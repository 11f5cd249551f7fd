"""One wake-up source, many waiting threads.

Each waiter has its own bell. Where messages also come from a descriptor, one waiter leads: it reads for all and rings
the others, so that the kernel wakes a lone waiter directly, without another thread. A leader that stops waiting rings a
successor. If a leader disappears without that (an interrupt within an interrupt), the next waiter to arrive leads;
until then the watchdog's checks serve all waiters.
"""

from __future__ import annotations

import _thread
import math
from collections.abc import Callable, Sequence
from weakref import ref

from dibs.core.runtime import Source

_LONGEST_READ = 1.0
_LONGEST_SLEEP = float(2**20)
"""The longest timeout of `_thread.lock`; the bell ends the wait earlier."""


class _Waiter:
    __slots__ = ("bell", "key", "message")

    def __init__(self, key: bytes, message: bytes | None) -> None:
        self.key = key
        self.message = message
        self.bell = _thread.allocate_lock()
        self.bell.acquire()

    def ring(self) -> None:
        """Called with the mutex of the inbox, so the bell is released once."""
        if self.bell.locked():
            self.bell.release()


class _Hand:
    __slots__ = ("__weakref__",)


def _no_hand() -> None:
    return None


_BY_HAND = _Waiter(b"by hand", None)
"""Stands for a caller that reads by hand (`lead`); never rung."""


class ThreadInbox:
    """See core/runtime.py."""

    def __init__(self, now: Callable[[], float], nap: float = math.inf) -> None:
        self._now = now
        self._longest_read = min(nap, _LONGEST_READ)
        self._longest_sleep = min(nap, _LONGEST_SLEEP)
        self._mutex = _thread.allocate_lock()
        self.expected: dict[bytes, bytes | None] = {}
        """Keys, each with the message that came while no waiter was there. One key per hold, so it may be large."""
        self._waiters: dict[bytes, _Waiter] = {}
        self._leader: _Waiter | None = None
        self._hand: Callable[[], _Hand | None] = _no_hand
        """A weak reference to an object in the frame of the caller that reads by hand."""
        self._source: Source | None = None

    def expect(self, key: bytes) -> None:
        self.expected[key] = None

    def forget(self, key: bytes) -> None:
        self.expected.pop(key, None)
        if self._waiters:
            self._waiters.pop(key, None)

    def deliver(self, key: bytes, message: bytes) -> None:
        if self._hand_over(key, message) and self._source is not None:
            self._source.poke()

    def deliver_all(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        for key, message in messages:
            self.deliver(key, message)

    async def wait(self, key: bytes, until: float) -> bytes | None:
        with self._mutex:
            waiter = self._waiters.get(key) or _Waiter(key, self.expected.get(key))
            self.expected[key], self._waiters[key] = None, waiter
        try:
            while waiter.message is None and (left := until - self._now()) > 0:
                if (source := self._source) is not None and self._leads(waiter):
                    if waiter.message is None:  # it may have come while another waiter led
                        for other, message in source.receive(min(left, self._longest_read)):
                            self._hand_over(other, message)
                else:
                    waiter.bell.acquire(timeout=min(left, self._longest_sleep))
        finally:
            if self._source is not None:
                with self._mutex:
                    self._succeed(waiter)
        with self._mutex:
            # A waiter left here would be rung as a successor and not answer.
            if self._waiters.get(key) is waiter:
                del self._waiters[key]
            return waiter.message

    def lead(self) -> object | None:
        with self._mutex:
            if self._source is None or (self._leader is not None and self._is_led()):
                return None
            hand = _Hand()
            self._hand = ref(hand)
            self._leader = _BY_HAND
            return hand

    def resign(self) -> None:
        """Under the mutex: two callers that lead by hand look the same."""
        with self._mutex:
            if self._waiters or self._leader is not _BY_HAND:
                self._succeed(_BY_HAND)
            else:
                self._leader = None

    def listen(self, source: Source) -> None:
        self._source = source

    def unlisten(self) -> None:
        self._source = None

    def _leads(self, waiter: _Waiter) -> bool:
        with self._mutex:
            if not self._is_led():
                self._leader = waiter
            return self._leader is waiter

    def _is_led(self) -> bool:
        """Whether there is a leader that has not disappeared."""
        leader = self._leader
        if leader is _BY_HAND:
            return self._hand() is not None
        return leader is not None and self._waiters.get(leader.key) is leader

    def _hand_over(self, key: bytes, message: bytes) -> bool:
        """True: the message is for the leader, which waits for the source and not for its bell."""
        with self._mutex:
            if key not in self.expected:
                return False
            waiter = self._waiters.get(key)
            if waiter is None:
                self.expected[key] = message
                return False
            waiter.message = message
            waiter.ring()
            return waiter is self._leader

    def _succeed(self, waiter: _Waiter) -> None:
        """Ring another waiter to lead, if `waiter` led or no one does. Called with the mutex."""
        if self._leader is not None and self._leader is not waiter:
            return
        self._leader = None
        for other in list(self._waiters.values()):
            if other is not waiter and other.message is None:
                other.ring()
                return
