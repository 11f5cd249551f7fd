"""Questions to the server: a routine with its arguments, or a statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dibs.backends.mysql.wire import Argument, call, literal, statement

MICROSECONDS = 1_000_000


class Request(Protocol):
    def packed(self, offset: float) -> bytes:
        """As it goes out to a server whose clock is so much ahead of ours."""


class Call:
    """One routine. `by`, an instant of the local clock, is sent behind the arguments as the server's time (see
    `Connection`), rounded down, that is early."""

    __slots__ = ("arguments", "by", "routine")

    def __init__(self, routine: str, arguments: tuple[Argument, ...], by: float | None = None) -> None:
        self.routine = routine
        self.arguments = arguments
        self.by = by

    def packed(self, offset: float) -> bytes:
        if self.by is None:
            return call(self.routine, self.arguments)
        return call(self.routine, (*self.arguments, int((self.by + offset) * MICROSECONDS)))


class Leaving(NamedTuple):
    """A claim that goes, as leave_all.sql has it; `by` is an instant of the local clock."""

    name: bytes
    id: bytes
    ticket: int
    is_election: bool
    is_doubtful: bool
    by: float


class LeaveAll:
    """The routine of that name, with an instant for each claim: see `Call`."""

    __slots__ = ("_client", "_leaving", "_wait")

    def __init__(self, leaving: Sequence[Leaving], wait: bool, client: bytes) -> None:
        self._leaving = leaving
        self._wait = wait
        self._client = client

    def packed(self, offset: float) -> bytes:
        listed = [
            (name.hex(), id.hex(), ticket, int(is_election), int(is_doubtful), int((by + offset) * MICROSECONDS))
            for name, id, ticket, is_election, is_doubtful, by in self._leaving
        ]
        return call("leave_all", (json.dumps(listed, separators=(",", ":")), int(self._wait), self._client))


class Query:
    """One statement of ours, with a value for each {}."""

    __slots__ = ("_text",)

    def __init__(self, text: str, *values: Argument) -> None:
        self._text = text.format(*map(literal, values))

    def packed(self, offset: float) -> bytes:
        return statement(self._text)


class Ready:
    """A request that is asked more than once, packed already."""

    __slots__ = ("_packed",)

    def __init__(self, request: Request) -> None:
        self._packed = request.packed(0.0)

    def packed(self, offset: float) -> bytes:
        return self._packed
