"""Poll a store, for `watch` and `wait`.

A store that does not respond is reported once and polled again, for ten seconds; then its error is raised. One request
times out sooner than that, so that there is something to report in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import dibs
from dibs.cli.output import say

T = TypeVar("T")

POLL_INTERVAL = 0.2
"""Seconds between two requests, at least."""
POLL_TIMEOUT = 1.0
"""Seconds that one request may take: the `retry` of a client that polls."""
_REST = 9
"""Pause after a request, as a multiple of the time that it took: a tenth of a core is enough."""
PATIENCE = 10.0
"""Seconds for which a store may not respond."""


def poll(read: Callable[[], T], command: str, until: float = float("inf")) -> Iterator[T]:
    """Yield the result of each `read`; the last one is at `until` (monotonic clock)."""
    heard, silent = time.monotonic(), False
    while True:
        began = time.monotonic()
        try:
            seen = read()
        except dibs.StoreUnavailable as error:
            if time.monotonic() >= min(heard + PATIENCE, until):
                raise
            if not silent:
                silent = True
                say(f"{error} (retrying)", command=command)
        else:
            if silent:
                silent = False
                say("the store responds again", command=command)
            heard = time.monotonic()
            yield seen
        pause = max(POLL_INTERVAL, _REST * (time.monotonic() - began))  # a long queue takes long to read
        time.sleep(min(pause, max(until - time.monotonic(), 0.0)))
