"""Locks inside a transaction of the caller: the transaction locks a row of the name, in a table for nothing else.

First a connection of ours creates and commits the row: a missing row excludes nobody. Then the caller's connection
locks it, and takes a user lock with a random name. Then a connection of ours checks (within.sql) that it sees this user
lock, so both use the same server, and that no other mode holds the name. If one does, the row stays locked until the
caller's transaction ends: InnoDB releases no row lock earlier.

The server waits whole seconds, by innodb_lock_wait_timeout, which is set back afterwards. The rest of the time is spent
on repeated attempts.
"""

from __future__ import annotations

from contextlib import suppress
from secrets import token_hex

from dibs.backends.mysql.calls import query, routine_call
from dibs.backends.mysql.errors import mode_mismatch, strange
from dibs.backends.mysql.executor import MysqlExecutor, number, ticket_of, words
from dibs.backends.mysql.queue import key_of
from dibs.backends.sql.caller_connection import CallerConnection, code_of
from dibs.core.runtime import Runtime
from dibs.errors import StoreError

_FOR_EVER = 100_000_000
"""Seconds; the longest that the server accepts."""
_PAUSE = 0.01
_TIMES = 3
_NOT_IN_TIME = (1205, 3572)
_THERE = "SELECT EXISTS (SELECT 1 FROM dibs_within WHERE name = {}), @@innodb_rollback_on_timeout"
_MAKE = "INSERT IGNORE INTO dibs_within VALUES ({})"
_LOCK = "SELECT GET_LOCK({{}}, 0) FROM {}.dibs_within WHERE name = {{}} FOR UPDATE"
_LIMIT = "SELECT @@SESSION.innodb_lock_wait_timeout"
_SET_LIMIT = "SET SESSION innodb_lock_wait_timeout = {0}"
_DONE = "DO RELEASE_LOCK({0})"


class Enclosure:
    def __init__(self, executor: MysqlExecutor, runtime: Runtime, database: str, prefix: str) -> None:
        self._executor = executor
        self._runtime = runtime
        self._now = runtime.now
        self._database = database
        self._prefix = prefix
        self._sure = 0
        """Tickets below this are never given again, not even after a crash of the server (sure.sql)."""
        self.close = executor.transport.close

    async def enclose(
        self, caller: CallerConnection, name: str, description: str, wait: float | None, patience: float
    ) -> int | None:
        key, proof = key_of(self._prefix, name), f"dibs:{token_hex(16)}"
        deadline = None if wait is None else self._now() + wait
        for _ in range(_TIMES):
            undoes_all = await self._prepare(key, self._now() + patience)
            if not await self._lock(caller, key, proof, deadline, undoes_all):
                return None
            try:
                found = await self._executor.ask(routine_call("within", key, proof, self._sure), self._now() + patience)
            finally:
                await caller.run(caller.marked(_DONE, 1), (proof,))
            said = words(found, 2)
            if said[1] == b"held" and len(said) > 3:
                self._sure = max(self._sure, number(said[3]))
                return ticket_of(said)
            if said[1] != b"free":
                raise _refusal(said[1])
        raise strange()

    async def _prepare(self, key: bytes, until: float) -> bool:
        """Create the row of the name. Gives whether a lock timeout rolls back the whole transaction."""
        (found,) = await self._executor.ask(query(_THERE, key), until)
        there, undoes_all = map(number, found[0][:2])
        if not there:
            await self._executor.ask(query(_MAKE, key), until)
        return undoes_all == 1

    async def _lock(
        self, caller: CallerConnection, key: bytes, proof: str, deadline: float | None, undoes_all: bool
    ) -> bool:
        """False: the name was not free in time."""
        if deadline is None:
            return await self._wait(caller, key, proof, _FOR_EVER)
        if undoes_all:
            raise StoreError(
                "innodb_rollback_on_timeout is on here: a lock timeout would roll back your whole transaction",
                step="wait without a timeout, or turn it off on the server",
            )
        whole = int(deadline - self._now())
        if whole > 0 and await self._wait(caller, key, proof, whole):
            return True
        # Not by SKIP LOCKED: it would lock the next row that is free, which is another name.
        while not await self._locked(caller, key, proof, " NOWAIT"):
            if self._now() + _PAUSE > deadline:
                return False
            await self._runtime.sleep(_PAUSE)
        return True

    async def _wait(self, caller: CallerConnection, key: bytes, proof: str, seconds: int) -> bool:
        _, rows = await caller.run(_LIMIT, ())
        limit, before = caller.marked(_SET_LIMIT, 1), (int(rows[0][0]),)
        await caller.run(limit, (seconds,))
        try:
            locked = await self._locked(caller, key, proof, "")
        except Exception:
            with suppress(Exception):  # the connection may be gone: the caller gets the first error
                await caller.run(limit, before)
            raise
        # Not in `finally`: after an interrupt in the middle of a reply, nothing can be sent on the connection.
        await caller.run(limit, before)
        return locked

    async def _locked(self, caller: CallerConnection, key: bytes, proof: str, how: str) -> bool:
        text = _LOCK.format(caller.quote(self._database))
        try:
            _, rows = await caller.run(caller.marked(text, 2) + how, (proof, key))
        except Exception as error:
            if code_of(error) not in _NOT_IN_TIME:
                raise
            return False
        if len(rows) != 1:
            raise StoreError("the row of this name was removed meanwhile", step="try again")
        return True


def _refusal(what: bytes) -> StoreError:
    if what == b"elsewhere":
        return StoreError(
            "this connection is to another server than the locks of this client",
            step="pass a connection to the same server, or connect dibs to that one",
        )
    raise mode_mismatch("lease" if what == b"leased" else "session")
