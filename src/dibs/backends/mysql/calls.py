"""Questions to the server: a routine with its arguments, or a statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dibs.backends.mysql.wire import Argument, call, execution, literal, statement, value
from dibs.core.rule import Claim

MICROSECONDS = 1_000_000


class Request(Protocol):
    def packed(self, offset: float) -> bytes:
        """As it goes out to a server whose clock is so much ahead of ours."""


class RoutineCall:
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


TAKE = (
    "UPDATE dibs_queues SET asked = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),"
    " ticket = LAST_INSERT_ID(GREATEST(ticket + 1, asked)), client = ?, kind = ?, capacity = ?, weight = ?, lease = ?,"
    " waiting = ?, about = ?, revoked = 0, until = asked + lease, id = ?"
    " WHERE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) BETWEEN ticket + 1 AND ? AND name = ? AND id = ''"
    " AND special = 0"
)
"""Take a free queue: see tables.sql. SYSDATE is read after the lock of the row was waited for. Where the clock was set
back behind the last ticket, the queue does not count as free."""
LEAVE = "UPDATE dibs_queues SET id = '' WHERE name = ? AND id = ? AND special = 0"


class FreePath:
    """The requests to take and to leave a free queue, packed but for the id and the deadline."""

    __slots__ = ("is_busy", "leave", "leave_size", "take", "take_end", "take_size")

    def __init__(self, name: bytes, claim: Claim, client: bytes) -> None:
        lease, waiting = int(claim.lease * MICROSECONDS), int(claim.waiting * MICROSECONDS)
        id, self.take_end = bytes(16), value(name)
        take = execution(
            (client, claim.kind, claim.capacity, claim.weight, lease, waiting, claim.description, id, 0, name)
        )
        self.take = take[: -len(id) - 8 - len(self.take_end)]
        self.take_size = size_of(take)
        leave = execution((name, id))
        self.leave = leave[: -len(id)]
        self.leave_size = size_of(leave)
        self.is_busy = False
        """The queue was not free when it was last asked for: `join` is the shorter way."""


def size_of(executed: bytes) -> bytes:
    return (len(executed) + 5).to_bytes(3, "little") + b"\x00"


class Query:
    """One statement of ours, with a value for each {}."""

    __slots__ = ("_text",)

    def __init__(self, text: str, *values: Argument) -> None:
        self._text = text.format(*map(literal, values))

    def packed(self, offset: float) -> bytes:
        return statement(self._text)


class Packed:
    """A request that is packed already."""

    __slots__ = ("_packed",)

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def packed(self, offset: float) -> bytes:
        return self._packed
