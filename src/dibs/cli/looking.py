"""One lock, looked at again and again, as `watch` and `wait` do.

A store that does not answer is said once, and looked at on: for as long as a client asks a silent store again (ten
seconds), then its error is raised. One look gives up sooner than that, to have something to say meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import dibs
from dibs.cli.talk import say
from dibs.info import LockInfo

GLANCE = 0.2
"""Seconds between two looks."""
ONE_LOOK = 1.0
"""How long one look may take: the `retry` of a client that looks."""
_REST = 9
"""How many times as long as a look took one rests: a tenth of a core is enough."""
PATIENCE = 10.0
"""How long a store may be silent."""


def looks(client: dibs.Client, name: str, command: str, until: float = float("inf")) -> Iterator[LockInfo]:
    """The line as it is, every now and then, and once more at that instant of the monotonic clock."""
    heard, silent = time.monotonic(), False
    while True:
        began = time.monotonic()
        try:
            info = client.inspect(name)
        except dibs.StoreUnavailable as error:
            if time.monotonic() >= min(heard + PATIENCE, until):
                raise
            if not silent:
                silent = True
                say(f"{error}; looking on", command=command)
        else:
            if silent:
                silent = False
                say("the store answers again", command=command)
            heard = time.monotonic()
            yield info
        pause = max(GLANCE, _REST * (time.monotonic() - began))  # a long line takes its time to read
        time.sleep(min(pause, max(until - time.monotonic(), 0.0)))
