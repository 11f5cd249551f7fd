"""Inspecting and breaking locks, in either mode. Claims with a lease are rows. For sessions and transactions, the
server's lock table shows which have a key and which wait for it.

A session of ours identifies itself in its application_name, which every role may read. The routine writes the token
and its time, and the client writes the lease, the owner, the host and the process, in 63 bytes altogether. The rest of
a claim's description is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any

from dibs.backends.common import atomic_queue
from dibs.backends.postgresql.connection import MICROSECONDS, RoutineCall, Value
from dibs.backends.postgresql.errors import strange
from dibs.backends.postgresql.executor import PostgresqlExecutor, words_of
from dibs.backends.postgresql.routines import PAGE
from dibs.core.rule import Entry
from dibs.info import Finding, LockInfo, Participant, bounded, read_description

_ROOM = 63 - len("dibs 1794821716781994 1000 ffff ")
"""Bytes of application_name that follow the token, its time and the end of the key."""


@lru_cache(1024)
def label(description: str, lease: float) -> bytes:
    """The client's part of application_name: `30 ana@web-3:4121`."""
    said = read_description(description)
    head, tail = f"{lease:g} ", f":{said['pid']}"
    owner, host = _plain(said["owner"]), _plain(said["host"])
    room = _ROOM - len(head) - len(tail) - len("@")
    host = host[: max(room // 2, room - len(owner))]
    return f"{head}{owner[: room - len(host)]}@{host}{tail}".encode()


def _plain(text: str) -> str:
    """The server replaces other characters in the same way."""
    return "".join(c if " " <= c < "\x7f" else "?" for c in text)


class Inspection:
    """The operations of a queue that concern any claim, in either mode."""

    session: float | None = None
    """The lease of connections in session mode."""

    def __init__(self, executor: PostgresqlExecutor) -> None:
        self._executor = executor
        self._routines = executor.routines
        self._subscriber = executor.subscriber
        self._now = executor.now
        self._me = executor.me
        self.identity, self.round_trip, self.close = executor.identity, executor.round_trip, executor.close

    async def inspect(self, name: str, until: float) -> LockInfo:
        found = _claims(await self._executor.rows(self._routines.queue, (name,), until))
        found = found or await self._sessions((name, "", ""), until)
        return found[0] if found else LockInfo(name=name)

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        """Merge a page of claims with the sessions in its range. There are few sessions: each is a connection."""
        claims = _claims(await self._executor.rows(self._routines.queues, (prefix, after), until))
        end = claims[-1].name if len(claims) >= PAGE else None
        sessions = await self._sessions(("", prefix, after), until)
        return sorted([*claims, *(one for one in sessions if end is None or one.name <= end)], key=lambda one: one.name)

    async def _sessions(self, which: Sequence[str], until: float) -> list[LockInfo]:
        rows = await self._executor.rows(self._routines.seen, which, until)
        try:
            return [_info(list(several)) for _, several in groupby(rows, lambda row: row[1])]
        except (TypeError, ValueError, AttributeError, OverflowError):
            raise strange() from None

    async def revoke(self, name: str, token: int, until: float) -> bool:
        ask, routines = self._executor.words, self._routines
        if (await ask(routines.revoke, self._named(name, token), until, 3))[2] == b"1":
            return True
        return (await ask(routines.ask, (name, routines.key_of(name), token), until))[1] == b"1"

    async def evict(self, name: str, token: int, until: float) -> bool:
        """Remove the claim, or end the session."""
        ask, routines = self._executor.ask_often, self._routines
        result, is_repeated = await ask(RoutineCall.of(routines.evict, *self._named(name, token)), until)
        if words_of(result, 3)[2] == b"1" or is_repeated:
            return True
        result, is_repeated = await ask(RoutineCall.of(routines.oust, name, token), until)
        return words_of(result)[1] == b"1" or is_repeated

    def _named(self, name: str, token: int) -> tuple[Value, ...]:
        floors = self._executor.floors
        return name, floors.of(name), token, floors.epoch

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.postgresql.doctor import examine  # noqa: PLC0415  (few programs ask)

        return await examine(self._executor, datetime.now(UTC).timestamp(), until, self.session)


def _claims(rows: Iterable[Sequence[Any]]) -> list[LockInfo]:
    """The times in the rows are relative to the server's clock, so "now" is 0."""
    try:
        return [
            atomic_queue.shown((name or b"").decode(), [_entry(row) for row in several], 0.0, datetime.now(UTC))
            for name, several in groupby(rows, lambda row: row[1])
        ]
    except (TypeError, ValueError, AttributeError):
        raise strange() from None


def _entry(row: Sequence[Any]) -> Entry:
    _, _, ticket, weight, left, asked, held, kind, capacity, description = row
    return Entry(
        int(ticket), b"", b"", kind.decode(errors="replace"), int(capacity), int(weight), int(left) / MICROSECONDS,
        -int(asked) / MICROSECONDS, None if held is None else -int(held) / MICROSECONDS, False,
        description.decode(errors="replace"),
    )  # fmt: skip


def _info(several: list[list[Any]]) -> LockInfo:
    _, name, kind, capacity, *_ = several[0]
    holders = tuple(_participant(row) for row in several if row[4] == b"t")
    waiters = tuple(_participant(row) for row in several if row[4] != b"t")
    return LockInfo(
        name=name.decode(), kind=kind.decode(errors="replace"), capacity=int(capacity), holders=holders, waiters=waiters
    )


def _participant(row: list[Any]) -> Participant:
    now, _, _, capacity, _, exclusive, _, token, said, since, description, login, quiet = row
    lease, _, who = (said or b"").decode(errors="replace").partition(" ")
    place, _, process = who.rpartition(":")
    owner, _, host = place.rpartition("@")
    if description:
        known = read_description(description.decode(errors="replace"))
    elif owner:
        known = {"owner": owner, "host": host, "pid": int(process) if process.isdigit() else 0}
    else:
        known = {"owner": (login or b"?").decode(errors="replace")}
    remaining = 0.0
    with suppress(ValueError):  # it is not a session of ours
        remaining = float(lease) - int(quiet or 0) / MICROSECONDS
    ago = max(int(now) - int(since), 0) if int(since) else 0
    return Participant(
        **known, token=int(token), weight=int(capacity) if exclusive == b"t" else 1,
        since=datetime.now(UTC) - timedelta(microseconds=ago),
        remaining=bounded(remaining),
    )  # fmt: skip
