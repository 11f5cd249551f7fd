"""Faults of a link, as data for the fault proxy.

`Cut` and `Hold` strike at a `Spot` of the stream: `at_message(n)` before the n-th message (that fits `match`),
`after_bytes(n)` after n bytes. Both count from the moment at which the rule is added, over all its links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

Match = Callable[[bytes], bool]


class Direction(StrEnum):
    UP = "up"
    DOWN = "down"


class Spot(Protocol):
    def meet(self, message: bytes) -> int | None:
        """How much of this message still goes by before the fault strikes; None: all of it, and on."""


class at_message:  # noqa: N801  # reads as a word: Cut(at_message(3))
    def __init__(self, number: int = 1, match: Match | None = None) -> None:
        self._left = number
        self._match = match

    def meet(self, message: bytes) -> int | None:
        if self._match is None or self._match(message):
            self._left -= 1
            return 0 if self._left <= 0 else None
        return None


class after_bytes:  # noqa: N801
    def __init__(self, number: int) -> None:
        self._left = number

    def meet(self, message: bytes) -> int | None:
        before, self._left = self._left, self._left - len(message)
        return max(before, 0) if self._left <= 0 else None


@dataclass(frozen=True)
class Latency:
    seconds: float


@dataclass(frozen=True)
class Drip:
    every: float


@dataclass(frozen=True)
class Stall:
    """Nothing moves, neither data nor an end nor a new connection; once healed, all of it arrives."""


@dataclass(frozen=True)
class BlackHole:
    """Everything is read and thrown away. In one direction: half open.

    A link that lost something so stays silent in that direction: TCP never skips. Healing resets it.
    """


@dataclass(frozen=True)
class Refuse:
    """The port is closed: new connections are refused."""


@dataclass(frozen=True)
class Slam:
    """New connections are accepted and reset at once."""


@dataclass(frozen=True)
class Cut:
    """The connection ends at that spot, for both; what comes after it is lost."""

    spot: Spot
    reset: bool = False


@dataclass(frozen=True, eq=False)
class Hold:
    """Holds back the data at that spot, and all behind it, until this is taken away; its sender may be gone by then.

    `often`: how many messages are held, each on a link of its own. See `Proxy.hold`.
    """

    spot: Spot
    often: int = 1
    held: list[bytes] = field(default_factory=list)
    over: list[bool] = field(default_factory=list)
    """For each that waits no more: was it handed to the receiver? False: there was nobody any more."""


Fault = Latency | Drip | Stall | BlackHole | Refuse | Slam | Cut | Hold
