"""What others may see of session mode, and do to it. The server itself knows only which session has which user lock;
the rest stands in rows that each session writes about itself, and is believed only of sessions that are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import groupby

from dibs.backends import ledger
from dibs.backends.mysql.calls import MICROSECONDS, Call, Query
from dibs.backends.mysql.executor import MysqlExecutor, number, words
from dibs.backends.mysql.wire import Row
from dibs.core.rule import Claim
from dibs.info import LockInfo, Participant, read_about

LONGEST = 2048
"""Bytes of what a session says about itself."""
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
_LINE = f"{_HELD} AND name = {{0}} UNION ALL {_WAITS} AND name = {{0}} {_ORDER}"
_OF_THEM = "AND name > {0} AND LEFT(name, {1}) = {2}"
_LINES = f"{_HELD} {_OF_THEM} UNION ALL {_WAITS} {_OF_THEM} {_ORDER} LIMIT {ledger.PAGE + 1}"
_SPOT = "name = {} AND ticket = {} AND IS_USED_LOCK(lock_name) = session"
_REVOKE = f"UPDATE dibs_sessions SET revoked = 1 WHERE {_SPOT}"
_REVOKED = f"SELECT COUNT(*) FROM dibs_sessions WHERE {_SPOT} AND revoked"


async def line(port: MysqlExecutor, key: bytes, name: str, until: float) -> LockInfo:
    (found,) = await port.ask(Query(_LINE, key), until)
    return _info(name, found)


async def page(port: MysqlExecutor, prefix: bytes, wanted: bytes, after: bytes, until: float) -> list[LockInfo]:
    """`prefix`: what the store's own begins with, which is not shown."""
    (found,) = await port.ask(Query(_LINES, after, len(wanted), wanted), until)
    lines = [(name, list(rows)) for name, rows in groupby(found, lambda one: one[0] or b"")]
    if len(found) > ledger.PAGE and len(lines) > 1:
        lines.pop()  # which may go on behind this page
    return [_info(name[len(prefix) :].decode(errors="replace"), rows) for name, rows in lines]


async def revoke(port: MysqlExecutor, key: bytes, token: int, until: float) -> bool:
    await port.ask(Query(_REVOKE, key, token), until)
    (found,) = await port.ask(Query(_REVOKED, key, token), until)
    return number(found[0][0]) > 0


async def evict(port: MysqlExecutor, key: bytes, token: int, until: float) -> bool:
    sets, is_repeated = await port.ask_often(Call("end", (key, token)), until)
    return words(sets, 2)[1] == b"1" or is_repeated


def kind_of(claim: Claim) -> str:
    """As it stands in a row."""
    return claim.kind if claim.capacity == 1 else f"{claim.kind}:{claim.capacity}"


def sized(kind: str) -> tuple[str, int]:
    """The same, read."""
    name, _, capacity = kind.partition(":")
    return name, int(capacity) if capacity.isdigit() else 1


def about_of(claim: Claim) -> bytes:
    """What fits there: without the info, if that is too much."""
    about = claim.about.encode()
    if len(about) > LONGEST:
        about = json.dumps({**json.loads(claim.about), "info": {}}).encode()
    return about if len(about) <= LONGEST else b"{}"


def _info(name: str, rows: Iterable[Row]) -> LockInfo:
    holders: list[Participant] = []
    waiters: list[Participant] = []
    kind, capacity = "mutex", 1
    for _, ticket, what, waits, ago, lease, about in rows:
        if not (holders or waiters):
            kind, capacity = sized((what or b"").decode(errors="replace"))
        since = datetime.now(UTC) - timedelta(microseconds=min(max(number(ago), 0), 10**17))
        (waiters if number(waits) else holders).append(
            Participant(
                since=since,
                remaining=number(lease) / MICROSECONDS,
                token=number(ticket),
                **read_about((about or b"").decode(errors="replace")),
            )
        )
    if not (holders or waiters):
        return LockInfo(name=name)
    return LockInfo(name=name, kind=kind, capacity=capacity, holders=tuple(holders), waiters=tuple(waiters))
