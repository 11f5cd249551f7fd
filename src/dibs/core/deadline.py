"""Durations that users give, and how long a reply of the store is valid.

The API turns a timeout into a deadline once. All code below it passes instants of `Runtime.now()`; `FOREVER` never
comes. Every reply about a claim says how many seconds are `left` in the store. They count from before the request was
sent, less a margin, so that the holder's own deadline passes before the store's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta

FOREVER = math.inf
SHORTEST_LEASE = 0.5
LONGEST_LEASE = 1e9
"""Stores count in microseconds; a double is exact only up to about this."""
WAITING_LEASE = 5.0
"""How long a waiting claim survives without renewal, unless its lease is shorter."""
RELEASE_PATIENCE = 5.0
LEAVE_PATIENCE = 1.0
"""How long a caller that gave up waits for its claim to leave; after that the watchdog removes it."""
LEAST_PATIENCE = 3.0
"""How long the store may take to answer even a try (timeout 0)."""

_FACTOR = 2.0


def attempt(own: float, round_trip: float) -> float:
    """How long to wait for a reply: a timeout shorter than the round trip would always fail.

    >>> attempt(0.5, round_trip=0.01), attempt(0.5, round_trip=0.4)
    (0.5, 0.8)
    """
    return max(own, _FACTOR * round_trip)


_NOISE = 1e-6
"""An upper bound of the rounding error of a few sums of instants."""

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Between two requests to a store that does not answer."""


def rest(pause: float, jitter: float, left: float) -> float:
    """How long to pause before a retry. At most half of the time left, so that the last reply still comes in time.

    >>> rest(0.25, 0.25, left=60.0), rest(0.25, 0.25, left=0.5)
    (0.5, 0.25)
    """
    return min(pause + jitter, left / 2)


_FIRST_GAP, _LONGEST_GAP = 0.0005, 1.0
"""Between two compare-and-set attempts; growing pauses spread many writers out."""


def gaps(tries: int) -> Iterator[float]:
    """The longest pause after each attempt.

    >>> list(gaps(3))
    [0.0005, 0.001, 0.002]
    """
    return (min(_FIRST_GAP * 2**tried, _LONGEST_GAP) for tried in range(tries))


def seconds(value: object, what: str, *, least: float = 0.0) -> float:
    """Check a duration that a user gave, and convert it to seconds.

    >>> seconds(timedelta(minutes=1), "lease")
    60.0
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number of seconds or a timedelta, not {value!r}")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if math.isnan(value) or math.isinf(value):
        raise ValueError(f"{what} must be a finite number of seconds, not {value!r}")
    if value < least:
        raise ValueError(f"{what} must be at least {least:g} s, not {value!r}")
    return value


def patience(timeout: object) -> float | None:
    """Check a timeout: None waits for ever, 0 tries once."""
    return None if timeout is None else seconds(timeout, "timeout")


def lease_of(value: object) -> float:
    lease = seconds(value, "lease", least=SHORTEST_LEASE)
    if lease > LONGEST_LEASE:
        raise ValueError(f"lease must be at most {LONGEST_LEASE:g} s, thirty years, not {lease!r}")
    return lease


def margin(left: float) -> float:
    """The allowance for clocks that run at different speeds: a tenth, at least 50 ms."""
    return left * 0.1 if left > 0.5 else 0.05


def valid_until(sent_at: float, left: float) -> float:
    """The holder's own deadline, from a reply of `left` seconds to a request sent at `sent_at`."""
    return sent_at + left - (left * 0.1 if left > 0.5 else 0.05)  # `margin`, without the call


def left_for(until: float, sent_at: float) -> float:
    """The `left` to report if a store knows the holder's own deadline: the inverse of `valid_until`.

    It is rounded down, so that `valid_until` never returns a later deadline, unless that deadline has passed anyway.

    >>> round(left_for(until=127.0, sent_at=100.0), 3), left_for(until=99.0, sent_at=100.0)
    (30.0, 0.0)
    """
    own = until - sent_at - _NOISE
    return max(own / 0.9 if own > 0.45 else own + 0.05, 0.0)
