"""The checks of `doctor`: the server's version and settings, its clock, the tables and routines, and whether a message
wakes this client. No claim is touched, and the row of the test message is removed again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dibs.backends.mysql import schema
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.calls import MICROSECONDS, query, routine_call
from dibs.backends.mysql.connection import make_of, pairs
from dibs.backends.mysql.errors import DENIED, MISSING, final
from dibs.backends.mysql.executor import MysqlExecutor, number
from dibs.backends.mysql.subscriber import MysqlSubscriber
from dibs.backends.mysql.wire import Argument, Refusal, Sets
from dibs.core.deadline import LEAST_PATIENCE
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding, duration, printable

_SETTINGS = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ("
    "'version', 'innodb_flush_log_at_trx_commit', 'read_only', 'binlog_format', 'log_bin',"
    " 'max_connections', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')"
)
_SLOW = 10
"""A round trip that takes more than this part of a lease will cost locks when the network gets worse."""
_ADRIFT = 1.0
"""Seconds that the clocks of the server and this machine may differ."""
_NEARLY = 0.9
"""The part of max_connections that may be in use."""
_CHECK_LOG = "check the server's log"
_RIGHTS = "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON the database to this user; CREATE and CREATE ROUTINE once"
_TIMES = 3
_TIME = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_STATES = "SHOW GLOBAL STATUS LIKE 'threads_connected'"
_TABLES = (
    "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = {} AND table_name LIKE 'dibs\\_%'"
)
_ROUTINES = (
    "SELECT routine_name, sql_mode FROM information_schema.routines"
    " WHERE routine_schema = {} AND routine_name LIKE 'dibs\\_2\\_%'"
)
_TOLD = "UPDATE dibs_watchers SET told = 1 WHERE id = {}"
_GONE = "DELETE FROM dibs_watchers WHERE id = {}"


class Clock(NamedTuple):
    """How far the server's clock is ahead of our boot clock, at least and at most; and the round trip, in seconds."""

    least: float
    most: float
    took: float


class Doctor:
    def __init__(
        self, executor: MysqlExecutor, subscriber: MysqlSubscriber, runtime: Runtime, me: ClientIdentity,
        address: Address,
    ) -> None:  # fmt: skip
        self._executor = executor
        self._subscriber = subscriber
        self._runtime = runtime
        self._me = me
        self._address = address

    async def examine(self, until: float) -> list[Finding]:
        database, mode = self._address.database, self._address.mode
        settings = pairs(await self._ask(until, _SETTINGS))
        states = pairs(await self._ask(until, _STATES))
        tables = pairs(await self._ask(until, _TABLES, database))
        routines = pairs(await self._ask(until, _ROUTINES, database))
        seen = await self._clock(until)
        missing = [name for name in schema.TABLES if f"dibs_{name}" not in tables]
        tried = [] if missing else await self._try_a_wake(until)
        return [
            *_about(settings), *_promises(settings, mode, sound=not tried), *tried, *_layout(missing, tables, routines),
            *_durability(settings), *_room(settings, states), *_copies(settings, mode),
            *_clocks(seen, time.time() - self._runtime.now(), self._me.lease),
            Finding("note", "waiters are woken only by programs that log in as the same user; otherwise they poll",
                    "let all programs that share locks log in as one user"),
            Finding("note", "the minimal rights of a user here", _RIGHTS),
        ]  # fmt: skip

    async def _ask(self, until: float, text: str, *values: Argument) -> Sets:
        return await self._executor.ask(query(text, *values), min(until, self._runtime.now() + LEAST_PATIENCE))

    async def _clock(self, until: float) -> Clock:
        """The shortest of some round trips: the first one may have to connect."""
        now = self._runtime.now
        found: list[Clock] = []
        for _ in range(_TIMES):
            sent = now()
            read = number((await self._ask(until, _TIME))[0][0][0]) / MICROSECONDS
            back = now()
            found.append(Clock(read - back, read - sent, back - sent))
        return min(found, key=lambda clock: clock.took)

    async def _try_a_wake(self, until: float) -> list[Finding]:
        """Watch a value that no program changes, and send this client the message of a change."""
        key, inbox, subscriber = self._runtime.fresh_id(), self._me.inbox, self._subscriber
        soon, peek = min(until, self._runtime.now() + 2 * LEAST_PATIENCE), self._executor.transport.exchange
        inbox.expect(key)
        subscriber.listen(key)
        try:
            await peek(routine_call("watch", "doctor", b"dibs:doctor", key, self._me.id, 10 * MICROSECONDS, b""), soon)
            await peek(query(_TOLD, key), soon)
            await peek(routine_call("wake", self._me.id), soon)
            heard = await inbox.wait(key, soon)
            await peek(query(_GONE, key), soon)
            if heard is None:
                raise StoreUnavailable("a message was sent and did not arrive")
        except Refusal as refusal:
            if refusal.code in MISSING:
                return []  # `_layout` reports it
            fix = _RIGHTS if refusal.code in DENIED else _CHECK_LOG
            return [Finding("danger", f"a routine cannot be used: {final(refusal).what}", fix)]
        except StoreError as error:
            what = f"waiters are not told that they hold, and must poll: {error.what}"
            return [Finding("danger", what, error.step or _CHECK_LOG)]
        finally:
            subscriber.ignore(key)
            subscriber.forget(key)
            inbox.forget(key)
        return []


def _about(settings: Mapping[str, str]) -> Iterator[Finding]:
    make, numbers = make_of(settings.get("version", ""))
    yield Finding("about", f"{make} {'.'.join(map(str, numbers))}")


def _promises(settings: Mapping[str, str], mode: str, *, sound: bool) -> Iterator[Finding]:
    if mode == "session":
        yield Finding(
            "promise", 'a lock is held by a connection of its own (mode="session"): at most one has it, first come,'
            " first served, and it ends with the connection, which its holder is told at once",
        )  # fmt: skip
        yield Finding("promise", "tokens keep rising, also after a crash of the server")
        return
    if sound and not _is_on(settings, "read_only"):
        yield Finding(
            "promise",
            "at most one valid holder, while the server keeps what it acknowledged and nobody steps its clock",
        )
        yield Finding("promise", "first come, first served, across machines")
    if settings.get("innodb_flush_log_at_trx_commit") == "1":
        yield Finding("promise", "grants survive a crash of the server, and tokens keep rising after it")


def _layout(missing: Sequence[str], tables: Mapping[str, str], routines: Mapping[str, str]) -> Iterator[Finding]:
    if "dibs_names" in tables and "dibs_queues" not in tables:
        yield Finding("danger", "the tables here were created by dibs 0.1, and are refused", schema.CHANGE_OVER)
        return
    if len(missing) == len(schema.TABLES):
        yield Finding(
            "note", "the tables do not exist yet: the first use creates them", "dibs doctor --ddl prints them"
        )
        return
    lacking = [f"dibs_{name}" for name in missing]
    lacking += [f"dibs_2_{name}" for name in schema.ROUTINES if f"dibs_2_{name}" not in routines]
    if lacking:
        shown = ", ".join(lacking[:5])
        yield Finding(
            "note", f"missing, or not visible to this user: {shown}; the first use creates what is missing",
            "dibs doctor --ddl prints all of it",
        )  # fmt: skip
    for name, engine in sorted(tables.items()):
        if engine.lower() != "innodb" and name not in schema.IN_MEMORY:
            what = f"the table {printable(name)} uses {printable(engine)}, which cannot roll back"
            yield Finding("danger", what, f"ALTER TABLE {printable(name)} ENGINE = InnoDB")
    if any("STRICT" not in mode for mode in routines.values()):
        what = "a routine was created without a strict sql_mode: a name that is too long is cut, and may equal another"
        yield Finding("danger", what, "create the routines again, as `dibs doctor --ddl` prints them")


def _durability(settings: Mapping[str, str]) -> Iterator[Finding]:
    flush = settings.get("innodb_flush_log_at_trx_commit")
    if flush not in (None, "1"):
        yield Finding(
            "danger", f"innodb_flush_log_at_trx_commit is {printable(flush)}: a crash loses the last grants, "
            "and two may hold", "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )  # fmt: skip
    if _is_on(settings, "read_only"):
        yield Finding("danger", "the server is read-only: it grants and renews nothing", "give the primary")
    if _is_on(settings, "log_bin") and settings.get("binlog_format") == "STATEMENT":
        yield Finding(
            "danger", "binlog_format is STATEMENT, with which the server refuses writes at READ COMMITTED",
            "SET GLOBAL binlog_format = 'ROW'",
        )  # fmt: skip


def _room(settings: Mapping[str, str], states: Mapping[str, str]) -> Iterator[Finding]:
    most, there = settings.get("max_connections", ""), states.get("threads_connected", "")
    if most.isdigit() and there.isdigit() and int(there) > _NEARLY * int(most):
        yield Finding("danger", "the number of connections is close to max_connections", "raise max_connections")


def _copies(settings: Mapping[str, str], mode: str) -> Iterator[Finding]:
    if mode == "session":
        yield Finding(
            "note", "holders lose their locks when the server stops, restarts or fails over",
            'use mode="lease" for locks that must survive that',
        )  # fmt: skip
        return
    semi = _is_on(settings, "rpl_semi_sync_master_enabled") or _is_on(settings, "rpl_semi_sync_source_enabled")
    if _is_on(settings, "log_bin") and not semi:
        yield Finding(
            "note", "if a replica takes over, grants that it had not received are lost: two may hold",
            "use semi-synchronous replication, or a fence where it matters",
        )  # fmt: skip


def _clocks(seen: Clock, ours: float, lease: float) -> Iterator[Finding]:
    """`ours`: how far our wall clock is ahead of our boot clock, in seconds."""
    away = max(seen.least - ours, ours - seen.most, 0.0)
    if away > _ADRIFT:
        what = f"the clocks of the server and this machine differ by {duration(round(away))}; leases use the server's"
        yield Finding("note", what, "synchronise both clocks (NTP)")
    if seen.took > lease / _SLOW:
        yield Finding(
            "danger", f"a round trip takes more than a {_SLOW}th of the lease ({duration(lease)})",
            "use a longer lease, or a server that is nearer",
        )  # fmt: skip


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "OFF") in ("ON", "1", "YES")
