"""Locks inside a transaction of the caller's own: the key of session mode, locked by that transaction.

The key is taken behind a savepoint on the caller's connection; then one of ours looks whether that is so, and whether
nothing else stands in the way. That it sees the key taken by that very session also proves that the caller's connection
is to this database. Whatever goes wrong, the savepoint is rolled back, which gives the key back. `lock_timeout` is
set for the wait, and back.
"""

from __future__ import annotations

from contextlib import suppress

from dibs.backends.postgresql.connection import RoutineCall
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
                said = await self._seen(name, pid, description, self._executor.now() + patience)
                if said[1] == b"m":
                    raise leased()
                if has:
                    token = _token(said)
            finally:
                if token is None:
                    with suppress(Exception):  # a connection that broke has no transaction any more
                        await caller.run(_UNDO, ())
                        await caller.run(_END, ())
            if token is not None:
                await caller.run(_END, ())
                return token
            if said[1] == b"b" or spent > patience:
                return None
            await self._executor.pause(FIRST_PAUSE)  # a join had it for a moment

    async def _locked(self, caller: CallerConnection, key: int, wait: float | None) -> tuple[int, bool]:
        """The number of the caller's session, and whether it has the key."""
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

    async def _seen(self, name: str, pid: int, description: str, until: float) -> list[bytes]:
        key = b"%d" % self._executor.routines.key_of(name)
        return await self._executor.words(
            RoutineCall(self._executor.routines.within, (name.encode(), key, b"%d" % pid, description.encode())), until
        )

    def close(self) -> None:
        self._executor.close()


def _token(said: list[bytes]) -> int:
    if said[1] != b"s" or len(said) != 3 or not said[2].isdigit():
        raise StoreError(
            "this connection is to another database than the locks of this client",
            step="pass a connection to the same database, or connect dibs to that one",
        )
    return int(said[2])
