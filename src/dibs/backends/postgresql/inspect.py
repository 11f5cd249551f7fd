"""Inspecting and breaking locks, in either mode. Claims with a lease are rows; of sessions and transactions the server
itself knows which have a key and which wait for it.

A session of ours says who it is in its application_name, which every role may read: the routine writes the token and
since when, and we write the lease, the owner, the host and the process, in the 63 bytes there are. The rest of a
claim's description is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any

from psycopg.pq.abc import PGresult

from dibs.backends.common import atomic_queue
from dibs.backends.postgresql.connection import MICROSECONDS, RoutineCall, rows
from dibs.backends.postgresql.errors import strange
from dibs.backends.postgresql.executor import PostgresqlExecutor, words_of
from dibs.backends.postgresql.routines import PAGE
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.queue import ClientIdentity
from dibs.core.rule import Entry
from dibs.core.runtime import Runtime
from dibs.info import Finding, LockInfo, Participant, read_description

_ROOM = 63 - len("dibs 1794821716781994 1000 ffff ")
"""Bytes behind the token, its time, and the end of the key."""


@lru_cache(1024)
def label(description: str, lease: float) -> bytes:
    """What stands behind the token in application_name: `30 ana@web-3:4121`."""
    said = read_description(description)
    head, tail = f"{lease:g} ", f":{said['pid']}"
    owner, host = _plain(said["owner"]), _plain(said["host"])
    room = _ROOM - len(head) - len(tail) - len("@")
    host = host[: max(room // 2, room - len(owner))]
    return f"{head}{owner[: room - len(host)]}@{host}{tail}".encode()


def _plain(text: str) -> str:
    """As the server would show it: of what is not ASCII there is nothing to be seen."""
    return "".join(c if " " <= c < "\x7f" else "?" for c in text)


class Onlooker:
    """The operations of a queue that concern any claim, in either mode."""

    session: float | None = None
    """In session mode: the lease of its connections."""

    def __init__(
        self,
        executor: PostgresqlExecutor,
        subscriber: PostgresqlSubscriber | None,
        runtime: Runtime,
        me: ClientIdentity,
    ) -> None:
        self._executor = executor
        self._verbs = executor.routines
        self._subscriber = subscriber
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self.identity, self.round_trip, self.close = executor.identity, executor.round_trip, executor.close

    async def inspect(self, name: str, until: float) -> LockInfo:
        result, _ = await self._executor.ask_often(RoutineCall(self._verbs.queue, (name.encode(),)), until)
        found = _claims(result) or await self._sessions((name, "", ""), until)
        return next(iter(found), LockInfo(name=name))

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        """Sessions are no more than connections: they are on one page, as far as that of the claims reaches."""
        result, _ = await self._executor.ask_often(
            RoutineCall(self._verbs.queues, (prefix.encode(), after.encode())), until
        )
        claims = _claims(result)
        end = claims[-1].name if len(claims) >= PAGE else None
        sessions = await self._sessions(("", prefix, after), until)
        return sorted([*claims, *(one for one in sessions if end is None or one.name <= end)], key=lambda one: one.name)

    async def _sessions(self, which: Sequence[str], until: float) -> list[LockInfo]:
        result, _ = await self._executor.ask_often(
            RoutineCall(self._verbs.seen, [word.encode() for word in which]), until
        )
        try:
            return [_info(list(several)) for _, several in groupby(rows(result), lambda row: row[1])]
        except (TypeError, ValueError, AttributeError, OverflowError):
            raise strange() from None

    async def revoke(self, name: str, token: int, until: float) -> bool:
        verbs = self._verbs
        if (await self._executor.words(RoutineCall(verbs.revoke, self._named(name, token)), until, 3))[2] == b"1":
            return True
        values = (name.encode(), b"%d" % verbs.key_of(name), b"%d" % token)
        return (await self._executor.words(RoutineCall(verbs.ask, values), until))[1] == b"1"

    async def evict(self, name: str, token: int, until: float) -> bool:
        """Remove the claim, or end the session."""
        ask, verbs = self._executor.ask_often, self._verbs
        result, is_repeated = await ask(RoutineCall(verbs.evict, self._named(name, token)), until)
        if words_of(result, 3)[2] == b"1" or is_repeated:
            return True
        result, is_repeated = await ask(RoutineCall(verbs.oust, (name.encode(), b"%d" % token)), until)
        return words_of(result)[1] == b"1" or is_repeated

    def _named(self, name: str, token: int) -> tuple[bytes, ...]:
        floors = self._executor.floors
        return name.encode(), b"%d" % floors.of(name), b"%d" % token, floors.epoch

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.postgresql.doctor import examine  # noqa: PLC0415  (few programs ask)

        wall = datetime.now(UTC).timestamp()
        return await examine(self._executor, self._subscriber, self._runtime, wall, until, self.session)


def _claims(result: PGresult) -> list[LockInfo]:
    """Where it stands now is 0 on the clock of what was told."""
    try:
        return [
            atomic_queue.shown((name or b"").decode(), [_entry(row) for row in several], 0.0, datetime.now(UTC))
            for name, several in groupby(rows(result), lambda row: row[1])
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
    ago = max(int(now) - int(since), 0) if int(since) else 0
    return Participant(
        **known, token=int(token), weight=int(capacity) if exclusive == b"t" else 1,
        since=datetime.now(UTC) - timedelta(microseconds=ago),
        remaining=max(_number(lease) - int(quiet or 0) / MICROSECONDS, 0.0),
    )  # fmt: skip


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
