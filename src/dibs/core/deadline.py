"""Times: what a user may give, and how long an answer of a store is worth.

A time-out becomes a deadline once, at the edge; below that only instants of `Runtime.now()` are passed down, and
`FOREVER` is the instant that never comes. Every answer about a claim says what is `left` of it in the store; it counts
from before the request was sent and less a margin, so that the holder's own deadline passes before the store's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta

FOREVER = math.inf
SHORTEST_LEASE = 0.5
LONGEST_LEASE = 1e9
"""Stores count in microseconds, exactly only as far as a double does."""
WAITING_LEASE = 5.0
"""How long a waiting claim outlives silence, unless its lease is shorter."""
RELEASE_PATIENCE = 5.0
LEAVE_PATIENCE = 1.0
"""How long a caller who gave up waits for its claim to leave before the watchdog takes that over."""
LEAST_PATIENCE = 3.0
"""What even a try (time-out 0) grants the store to answer."""

_FACTOR = 2.0


def attempt(own: float, round_trip: float) -> float:
    """How long an answer is waited for: less than the network needs would fail for ever.

    >>> attempt(0.5, round_trip=0.01), attempt(0.5, round_trip=0.4)
    (0.5, 0.8)
    """
    return max(own, _FACTOR * round_trip)


_NOISE = 1e-6
"""More than a few sums of instants are rounded by."""

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Between two questions to a silent store."""


def rest(pause: float, jitter: float, left: float) -> float:
    """How long to rest before a silent store is asked again: what it says then must still come in time, or whoever
    asked would be told of silence, and not of what it said before.

    >>> rest(0.25, 0.25, left=60.0), rest(0.25, 0.25, left=0.5)
    (0.5, 0.25)
    """
    return min(pause + jitter, left / 2)


_FIRST_GAP, _LONGEST_GAP = 0.0005, 1.0
"""Between two tries while others come before us: many at once spread out over as long as they need."""


def gaps(tries: int) -> Iterator[float]:
    """The longest pause after each of so many tries.

    >>> list(gaps(3))
    [0.0005, 0.001, 0.002]
    """
    return (min(_FIRST_GAP * 2**tried, _LONGEST_GAP) for tried in range(tries))


def seconds(value: object, what: str, *, least: float = 0.0) -> float:
    """A user's length of time in seconds, or an error that says what is wrong with it.

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
    """A time-out as given: None waits for ever, 0 tries once."""
    return None if timeout is None else seconds(timeout, "timeout")


def lease_of(value: object) -> float:
    lease = seconds(value, "lease", least=SHORTEST_LEASE)
    if lease > LONGEST_LEASE:
        raise ValueError(f"lease must be at most {LONGEST_LEASE:g} s, thirty years, not {lease!r}")
    return lease


def margin(left: float) -> float:
    """What clocks may disagree by: a tenth, and never less than 50 ms."""
    return left * 0.1 if left > 0.5 else 0.05


def valid_until(sent_at: float, left: float) -> float:
    """The holder's own deadline for an answer that says `left`, to a request that went out at `sent_at`."""
    return sent_at + left - (left * 0.1 if left > 0.5 else 0.05)  # `margin`, without the call


def left_for(until: float, sent_at: float) -> float:
    """What a store that knows the holder's own deadline itself is to say is left: `valid_until` gives that deadline
    back, less what rounding may add, and never a later one unless it is past anyway.

    >>> round(left_for(until=127.0, sent_at=100.0), 3), left_for(until=99.0, sent_at=100.0)
    (30.0, 0.0)
    """
    own = until - sent_at - _NOISE
    return max(own / 0.9 if own > 0.45 else own + 0.05, 0.0)
