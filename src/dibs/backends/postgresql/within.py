"""Locks inside a transaction of the caller: that transaction takes the key of session mode.

The key is taken after a savepoint on the caller's connection. Then a connection of ours checks that the caller's
session has the key and that no lease conflicts. This also proves that the caller's connection is to this database. On
any failure the savepoint is rolled back, which releases the key. `lock_timeout` is set for the wait and restored.
"""

from __future__ import annotations

from contextlib import suppress

from dibs.backends.postgresql.errors import leased
from dibs.backends.postgresql.executor import PostgresqlExecutor
from dibs.backends.sql.caller_connection import CallerConnection, code_of
from dibs.core.deadline import FIRST_PAUSE
from dibs.errors import StoreError

_BEGIN, _UNDO, _END = "SAVEPOINT dibs_within", "ROLLBACK TO SAVEPOINT dibs_within", "RELEASE SAVEPOINT dibs_within"
_TRY = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_try_advisory_xact_lock(CAST({0} AS bigint))"
_WAIT = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_advisory_xact_lock(CAST({0} AS bigint)) IS NOT NULL"
_LIMIT = "SELECT pg_catalog.current_setting('lock_timeout')"
_SET_LIMIT = "SELECT pg_catalog.set_config('lock_timeout', {0}, true)"
_NOT_IN_TIME = "55P03"


class Enclosure:
    """`Encloses` of core/queue.py."""

    def __init__(self, executor: PostgresqlExecutor) -> None:
        self._executor = executor
        self.close = executor.close

    async def enclose(
        self, caller: CallerConnection, name: str, description: str, wait: float | None, patience: float
    ) -> int | None:
        began = self._executor.now()
        while True:
            spent = self._executor.now() - began
            left = None if wait is None else max(wait - spent, 0.0)
            await caller.run(_BEGIN, ())
            token: int | None = None
            try:
                pid, has = await self._locked(caller, self._executor.routines.key_of(name), left)
                words = await self._check(name, pid, description, self._executor.now() + patience)
                if words[1] == b"m":
                    raise leased()
                if has:
                    token = _token(words)
            finally:
                if token is None:
                    with suppress(Exception):  # a broken connection has no transaction any more
                        await caller.run(_UNDO, ())
                        await caller.run(_END, ())
            if token is not None:
                await caller.run(_END, ())
                return token
            if words[1] == b"b" or spent > patience:
                return None
            await self._executor.pause(FIRST_PAUSE)  # a join of lease mode had the key for a moment

    async def _locked(self, caller: CallerConnection, key: int, wait: float | None) -> tuple[int, bool]:
        """The pid of the caller's session, and whether it has the key."""
        if wait is not None and wait <= 0:
            _, rows = await caller.run(caller.marked(_TRY, 1), (key,))
            return int(rows[0][0]), bool(rows[0][1])
        _, rows = await caller.run(_LIMIT, ())
        before = str(rows[0][0])
        await caller.run(caller.marked(_SET_LIMIT, 1), ("0" if wait is None else f"{max(round(wait * 1000), 1)}ms",))
        try:
            _, rows = await caller.run(caller.marked(_WAIT, 1), (key,))
        except Exception as error:
            if code_of(error) != _NOT_IN_TIME:
                raise
            await caller.run(_UNDO, ())
            _, rows = await caller.run("SELECT pg_catalog.pg_backend_pid(), false", ())
            return int(rows[0][0]), False
        await caller.run(caller.marked(_SET_LIMIT, 1), (before,))
        return int(rows[0][0]), True

    async def _check(self, name: str, pid: int, description: str, until: float) -> list[bytes]:
        routines = self._executor.routines
        return await self._executor.words(routines.within, (name, routines.key_of(name), pid, description), until)


def _token(words: list[bytes]) -> int:
    if words[1] != b"s" or len(words) != 3 or not words[2].isdigit():
        raise StoreError(
            "this connection is to another database than the locks of this client",
            step="pass a connection to the same database, or connect dibs to that one",
        )
    return int(words[2])
