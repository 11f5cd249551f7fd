"""Inspecting and breaking locks of session mode. The server itself knows only which session has which user lock. The
rest is in rows that each session writes about itself, and counts only while that session exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import groupby

from dibs.backends.common import atomic_queue
from dibs.backends.mysql.calls import MICROSECONDS, query, routine_call
from dibs.backends.mysql.errors import mode_mismatch, strange
from dibs.backends.mysql.executor import MysqlExecutor, number, words
from dibs.backends.mysql.wire import Row
from dibs.core.rule import Claim
from dibs.errors import Mismatch
from dibs.info import LockInfo, Participant, read_description

LONGEST = 2048
"""Bytes of a description."""
_NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_HELD = (
    f"SELECT name, ticket, kind, 0 AS waits, {_NOW} - since, lease, about FROM dibs_sessions"
    " WHERE IS_USED_LOCK(lock_name) = session"
)
_WAITS = (
    f"SELECT name, ticket, kind, 1 AS waits, {_NOW} - since, lease, about FROM dibs_waits"
    " WHERE session IN (SELECT id FROM information_schema.PROCESSLIST WHERE info LIKE 'CALL dibs_2_take(%')"
)
_ORDER = "ORDER BY name, waits, ticket"
_QUEUE = f"{_HELD} AND name = {{0}} UNION ALL {_WAITS} AND name = {{0}} {_ORDER}"
_OF_THEM = "AND name > {0} AND LEFT(name, {1}) = {2}"
_QUEUES = f"{_HELD} {_OF_THEM} UNION ALL {_WAITS} {_OF_THEM} {_ORDER} LIMIT {atomic_queue.PAGE + 1}"
_HOLDER = "name = {} AND ticket = {} AND IS_USED_LOCK(lock_name) = session"
_REVOKE = f"UPDATE dibs_sessions SET revoked = 1 WHERE {_HOLDER}"
_REVOKED = f"SELECT COUNT(*) FROM dibs_sessions WHERE {_HOLDER} AND revoked"


async def queue_info(executor: MysqlExecutor, key: bytes, name: str, until: float) -> LockInfo:
    (found,) = await executor.ask(query(_QUEUE, key), until)
    return _info(name, found)


async def page(executor: MysqlExecutor, prefix: bytes, wanted: bytes, after: bytes, until: float) -> list[LockInfo]:
    """`prefix`: the start of all keys of this store, which is not shown."""
    (found,) = await executor.ask(query(_QUEUES, after, len(wanted), wanted), until)
    queues = [(name, list(rows)) for name, rows in groupby(found, lambda one: one[0] or b"")]
    if len(found) > atomic_queue.PAGE and len(queues) > 1:
        queues.pop()  # it may continue on the next page
    return [_info(name[len(prefix) :].decode(errors="replace"), rows) for name, rows in queues]


async def revoke(executor: MysqlExecutor, key: bytes, token: int, until: float) -> bool:
    await executor.ask(query(_REVOKE, key, token), until)
    (found,) = await executor.ask(query(_REVOKED, key, token), until)
    return number(found[0][0]) > 0


async def evict(executor: MysqlExecutor, key: bytes, token: int, until: float) -> bool:
    sets, is_repeated = await executor.ask_often(routine_call("end", key, token), until)
    return words(sets, 2)[1] == b"1" or is_repeated


def kind_of(claim: Claim) -> str:
    """The kind and the capacity, as rows have them."""
    return claim.kind if claim.capacity == 1 else f"{claim.kind}:{claim.capacity}"


def sized(kind: str) -> tuple[str, int]:
    """Parse what `kind_of` made."""
    name, _, capacity = kind.partition(":")
    return name, int(capacity) if capacity.isdigit() else 1


def description_of(claim: Claim) -> bytes:
    """The description, without the user's info if it is too long."""
    description = claim.description.encode()
    if len(description) > LONGEST:
        description = json.dumps({**json.loads(claim.description), "info": {}}).encode()
    return description if len(description) <= LONGEST else b"{}"


def _info(name: str, rows: Iterable[Row]) -> LockInfo:
    holders: list[Participant] = []
    waiters: list[Participant] = []
    kind, capacity = "mutex", 1
    for _, ticket, what, waits, ago, lease, description in rows:
        if not (holders or waiters):
            kind, capacity = sized((what or b"").decode(errors="replace"))
        since = datetime.now(UTC) - timedelta(microseconds=min(max(number(ago), 0), 10**17))
        (waiters if number(waits) else holders).append(
            Participant(
                since=since,
                remaining=number(lease) / MICROSECONDS,
                token=number(ticket),
                **read_description((description or b"").decode(errors="replace")),
            )
        )
    if not (holders or waiters):
        return LockInfo(name=name)
    return LockInfo(name=name, kind=kind, capacity=capacity, holders=tuple(holders), waiters=tuple(waiters))


def mismatch(what: bytes, kind: str, claim: Claim) -> Mismatch:
    """The error for a refusal of take.sql."""
    if what == b"other":
        return atomic_queue.mismatch(*sized(kind), claim)
    if what not in (b"within", b"leased"):
        raise strange()
    return mode_mismatch("within" if what == b"within" else "lease")
