"""The message that `dibs run` prints while it waits: after two seconds, then after each change.

    waiting for "deploy": held by ana@ci-7 pid 4121 (deploy.sh) for 3m12s; you are 2nd of 3 in the queue

A second thread reads the queue once a second, while the main thread waits for the lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Self

import dibs
from dibs.cli.output import held_by, hides_holders, host, ordinal, runs_under, unheld
from dibs.info import LockInfo, Participant, printable

_FIRST, _AGAIN = 2.0, 1.0


class Narrator:
    """Prints between `__enter__` and `__exit__`."""

    def __init__(self, client: dibs.Client, name: str, note: str, say: Callable[[str], None]) -> None:
        self._client = client
        self._name = name
        self._note = note
        self._say = say
        self._over: SimpleQueue[None] = SimpleQueue()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.put(None)

    def _is_over(self, seconds: float) -> bool:
        try:
            self._over.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _run(self) -> None:
        said: object = None
        pause = _FIRST
        while not self._is_over(pause):
            pause = _AGAIN
            try:
                info = self._client.inspect(self._name)
            except dibs.Closed:
                return
            except dibs.DibsError as error:
                seen, text = str(type(error)), f'waiting for "{printable(self._name)}": {error}'
            else:
                if any(map(_is_own, info.holders)):  # we hold it, and will learn so in a moment
                    continue
                seen, text = key(info), f'waiting for "{printable(self._name)}"{self._note}: {describe_queue(info)}'
            if seen != said and not self._is_over(0):
                self._say(text)
                said = seen


def key(info: LockInfo) -> str:
    """A text that changes when another message should be printed: not with the elapsed time."""
    return repr(([one.key for one in info.holders], place(info)))


def describe_queue(info: LockInfo) -> str:
    """Which other process holds it, and our place in the queue.

    We may be listed as the holder already: the store counts the first waiter of a dead holder as one.
    """
    others = [one for one in info.holders if not _is_own(one)]
    if not others:
        return unheld(info) if hides_holders(info) else "no other process holds it now"
    text = held_by(info.name, others, datetime.now(UTC)) + place(info)
    if runs_under(info.name, others[0]) and _own_place(info):
        return f"{text}; this command waits for itself and will never get the lock"
    return text


def place(info: LockInfo) -> str:
    if at := _own_place(info):
        return f"; you are {ordinal(at)} of {len(info.waiters)} in the queue"
    return f"; {len(info.waiters)} waiting" if info.waiters else ""


def _own_place(info: LockInfo) -> int:
    """Our place in the queue, from 1; 0: we are not in it."""
    for at, one in enumerate(info.waiters, 1):
        if _is_own(one):
            return at
    return 0


def _is_own(one: Participant) -> bool:
    return (one.host, one.pid) == (host(), os.getpid())
