"""Locks inside a transaction of the caller's own: it locks a row of the name, in a table that nothing else uses.

The row is made and committed beforehand, on a connection of ours: one that is not there keeps nobody out. Then the
caller's connection locks it, and takes a user lock of a random name; then one of ours looks (within.sql) whether it
sees that user lock, which it does on the same server only, and whether the name is held in another mode. If it is, the
row stays locked until the caller's transaction ends: InnoDB gives back no lock of a row before.

A wait of whole seconds is the server's, by innodb_lock_wait_timeout, which is set back afterwards; what is left of it
is spent trying again.
"""

from __future__ import annotations

from contextlib import suppress
from secrets import token_hex

from dibs.backends.mysql.calls import Query, RoutineCall
from dibs.backends.mysql.errors import mode_mismatch, strange
from dibs.backends.mysql.executor import MysqlExecutor, number, words
from dibs.backends.mysql.queue import key_of
from dibs.backends.mysql.session.claims import ticket_of
from dibs.backends.sql.caller_connection import CallerConnection, code_of
from dibs.core.runtime import Runtime
from dibs.errors import StoreError

_FOR_EVER = 100_000_000
"""Seconds: what the server takes for the longest."""
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
    """`Encloses` of core/queue.py."""

    def __init__(self, executor: MysqlExecutor, runtime: Runtime, database: str, prefix: str) -> None:
        self._executor = executor
        self._runtime = runtime
        self._now = runtime.now
        self._database = database
        self._prefix = prefix
        self._sure = 0
        """As in session/line.py."""

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
                found = await self._executor.ask(
                    RoutineCall("within", (key, proof, self._sure)), self._now() + patience
                )
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
        """The row is there; whether a time-out undoes more than its own statement."""
        (found,) = await self._executor.ask(Query(_THERE, key), until)
        there, undoes_all = map(number, found[0][:2])
        if not there:
            await self._executor.ask(Query(_MAKE, key), until)
        return undoes_all == 1

    async def _lock(
        self, caller: CallerConnection, key: bytes, proof: str, deadline: float | None, undoes_all: bool
    ) -> bool:
        """False: it was not free in time."""
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
        # Not by SKIP LOCKED: what it finds behind the row that it skips it locks, which is another name.
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
            with suppress(Exception):  # the connection may be gone, which the caller is to hear, and not this
                await caller.run(limit, before)
            raise
        # Who was interrupted, or cancelled, in the middle of an answer has a connection that nothing can be said on.
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

    def close(self) -> None:
        self._executor.close()


def _refusal(what: bytes) -> StoreError:
    if what == b"elsewhere":
        return StoreError(
            "this connection is to another server than the locks of this client",
            step="pass a connection to the same server, or connect dibs to that one",
        )
    raise mode_mismatch("lease" if what == b"leased" else "session")
