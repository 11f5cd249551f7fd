"""Questions on a connection that is somebody's own: asked by threads here, by an event loop in looptalk.py.

A connection is used by one thread at a time: whoever uses it has its `busy`. An answer that does not come in time
leaves the connection in doubt, and closes it, except where it may be waited for again (`arrived`).
"""

from __future__ import annotations

from _thread import LockType
from collections.abc import Callable
from typing import Protocol

from psycopg.pq.abc import PGresult

from dibs.backends.postgresql.connection import Call, PostgresqlConnection


class Talk(Protocol):
    async def exchange(self, link: PostgresqlConnection, call: Call, until: float) -> PGresult:
        """Ask, and wait for the answer; a refusal leaves the link as good as it was."""

    async def arrived(self, link: PostgresqlConnection, until: float) -> PGresult | None:
        """What was begun on it, once it has come; None: not by then, and it may be waited for again."""

    async def have(self, busy: LockType, until: float) -> bool:
        """False: somebody else had it until then."""


class ThreadTalk:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    async def exchange(self, link: PostgresqlConnection, call: Call, until: float) -> PGresult:
        return link.exchange(call, until)

    async def arrived(self, link: PostgresqlConnection, until: float) -> PGresult | None:
        return link.arrived(until)

    async def have(self, busy: LockType, until: float) -> bool:
        return busy.acquire(timeout=max(until - self._now(), 0.0))
