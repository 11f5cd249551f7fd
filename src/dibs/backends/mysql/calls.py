"""Requests to the server: calls of routines, statements, and the two prepared statements of the free path."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from dibs.backends.mysql.wire import Argument, call, execution, literal, statement, value
from dibs.core.queue import ELECTION
from dibs.core.rule import Claim

MICROSECONDS = 1_000_000
Request = Callable[[float], bytes]
"""Packs a request for a server whose clock is that many seconds ahead of ours (`Connection.offset`)."""


def routine_call(routine: str, *arguments: Argument, by: float | None = None) -> Request:
    """`by`, an instant of the local clock, becomes the last argument, in the server's time and rounded down."""
    if by is None:
        return packed(call(routine, arguments))
    return lambda offset: call(routine, (*arguments, int((by + offset) * MICROSECONDS)))


def leave_all(leaving: Sequence[tuple[bytes, Claim, bool]], wait: bool, client: bytes) -> Request:
    """Call leave_all.sql. `leaving`: the key of each name, the claim, and whether its join was answered."""

    def pack(offset: float) -> bytes:
        listed = [
            (key.hex(), claim.id.hex(), claim.ticket or 0, int(claim.kind == ELECTION), int(not answered),
             int((claim.by + offset) * MICROSECONDS))
            for key, claim, answered in leaving
        ]  # fmt: skip
        return call("leave_all", (json.dumps(listed, separators=(",", ":")), int(wait), client))

    return pack


def query(text: str, *values: Argument) -> Request:
    """A statement, with a value for each {}."""
    return packed(statement(text.format(*map(literal, values))))


def packed(data: bytes) -> Request:
    return lambda _: data


TAKE = (
    "UPDATE dibs_queues SET asked = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)),"
    " ticket = LAST_INSERT_ID(GREATEST(ticket + 1, asked)), client = ?, kind = ?, capacity = ?, weight = ?, lease = ?,"
    " waiting = ?, about = ?, revoked = 0, until = asked + lease, id = ?"
    " WHERE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) BETWEEN ticket + 1 AND ? AND name = ? AND id = ''"
    " AND special = 0"
)
"""Take a free queue: see tables.sql. The server reads SYSDATE after it has waited for the row lock. If its clock was
set back behind the last ticket, the queue does not count as free."""
LEAVE = "UPDATE dibs_queues SET id = '' WHERE name = ? AND id = ? AND special = 0"


class FreePath:
    """The requests to take and to leave a free queue, packed except for the claim's id and the deadline."""

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
        """The queue was not free at the last attempt: `join` needs fewer round trips."""


def size_of(executed: bytes) -> bytes:
    return (len(executed) + 5).to_bytes(3, "little") + b"\x00"
