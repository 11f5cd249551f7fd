"""What the store says of itself: the server is asked what it is and how it is set, which of the tables and routines
are there, what this role may do with them; a message is sent and heard. No claim is touched, and nothing is made.

A server that is asked for the first time may have none of the tables yet: that is said, with who may make them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dibs.backends.postgresql.connection import MICROSECONDS, RoutineCall
from dibs.backends.postgresql.errors import strange
from dibs.backends.postgresql.executor import PostgresqlExecutor
from dibs.backends.postgresql.routines import ROUTINES, SEQUENCE, TABLES, TEXT, statement
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.runtime import Runtime
from dibs.info import Finding, printable

OLDEST = 110_000
"""PostgreSQL 11 has the first hash of 64 bits for a text."""
IDLE_TIMEOUT = 140_000
"""PostgreSQL 14 ends sessions that say nothing."""
ADRIFT = 2.0
_LONG = 3600
_MOST_USED = 0.9
_LEVELS = ("promise", "note", "danger")
_DDL = "have what `dibs doctor --ddl` prints run by somebody who may"
_FACTS = """
SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint, jsonb_build_object(
  'version', current_setting('server_version'), 'number', current_setting('server_version_num')::int,
  'recovers', pg_is_in_recovery(), 'read_only', current_setting('default_transaction_read_only'),
  'isolation', current_setting('default_transaction_isolation'), 'commits', current_setting('synchronous_commit'),
  'fsync', current_setting('fsync'), 'encoding', current_setting('server_encoding'),
  'standbys', current_setting('synchronous_standby_names'), 'replicas', (SELECT count(*) FROM pg_stat_replication),
  'timeout', (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'),
  'connections', (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  'most', current_setting('max_connections')::int, 'role', current_user, 'queue', pg_notification_queue_usage(),
  'old', (SELECT coalesce(max(date_part('epoch', clock_timestamp() - xact_start)), 0) FROM pg_stat_activity
          WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()),
  'encrypted', (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), 'local', inet_server_addr() IS NULL,
  'loopback', inet_server_addr() <<= '127.0.0.0/8' OR inet_server_addr() = '::1',
  'schema', EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
  'enters', (SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = $1),
  'makes', coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = $1),
                    has_database_privilege(current_database(), 'CREATE')),
  'tables', (SELECT jsonb_object_agg(relname, CASE relkind
               WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'UPDATE')
                    AND has_sequence_privilege(c.oid, 'SELECT')
               ELSE has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
                    AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') END)
             FROM pg_class c JOIN pg_namespace s ON s.oid = relnamespace
             WHERE nspname = $1 AND relkind IN ('r', 'S') AND relname LIKE 'dibs\\_%'),
  'routines', (SELECT jsonb_object_agg(proname, has_function_privilege(p.oid, 'EXECUTE'))
               FROM pg_proc p JOIN pg_namespace s ON s.oid = pronamespace
               WHERE nspname = $1 AND proname LIKE 'dibs\\_%'))
"""
_ASKED = statement("dibs_doctor", _FACTS, TEXT)


async def examine(
    executor: PostgresqlExecutor,
    subscriber: PostgresqlSubscriber | None,
    runtime: Runtime,
    wall: float,
    until: float,
    session: float | None = None,
) -> list[Finding]:
    """`wall`: what the clock on the wall of this machine shows; `session`: the lease of connections in session mode."""
    began = runtime.now()
    result, _ = await executor.ask_often(RoutineCall(_ASKED, (executor.routines.schema.encode(),)), until)
    took = runtime.now() - began
    try:
        there = int(result.get_value(0, 0) or b"") / MICROSECONDS
        facts = json.loads(result.get_value(0, 1) or b"")
    except ValueError:
        raise strange() from None
    hears = await executor.hears(subscriber, until, touching=False)
    found = [
        *_state(facts, executor.routines.schema), *_rights(facts, executor.routines.schema), *_server(facts),
        *_copies(facts), *_role(facts), *_waking(facts, hears, subscriber is not None), *_way(executor, facts),
        *_clock(there, wall, took),
    ]  # fmt: skip
    if session is not None:
        found += _by_connections(session, facts, is_direct=executor.is_direct())
    promised = () if any(finding.level == "danger" for finding in found) else _promises(facts, session)
    found = sorted([*promised, *found], key=lambda finding: _LEVELS.index(finding.level))
    return [Finding("about", f"PostgreSQL {printable(str(facts['version']))}"), *found]


def _promises(facts: dict[str, Any], session: float | None) -> Iterator[Finding]:
    over = "also over a crash and restart of the server" if session is None else "while its connection lasts"
    yield Finding("promise", f"one valid holder, first come first served, {over}")
    yield Finding("promise", "tokens rise for ever, also when the tables are created anew")
    if facts["standbys"]:
        yield Finding(
            "promise", "a grant is answered once a synchronous replica has it: a fail-over to that replica loses none"
        )


def _by_connections(lease: float, facts: dict[str, Any], *, is_direct: bool) -> Iterator[Finding]:
    if not is_direct:
        yield Finding(
            "danger", 'mode="session" needs a direct connection, and a pooler answers: no lock can be taken',
            'use a URL that reaches the server directly, or mode="lease"',
        )  # fmt: skip
    ends = f"the server ends one that is silent for {lease:g} s, and its lock is free"
    if facts["number"] < IDLE_TIMEOUT:
        ends = "this server ends one only when TCP finds nobody there: a process that stands still keeps its lock"
    yield Finding("note", f'mode="session": each lock uses its own connection; {ends}')


def _state(facts: dict[str, Any], schema: str) -> Iterator[Finding]:
    missing = [name for name in (*TABLES, SEQUENCE) if name not in (facts["tables"] or {})]
    missing += [name for name in ROUTINES if name not in (facts["routines"] or {})]
    if not missing:
        yield Finding("promise", f"all tables and routines exist in the schema {schema}")
    elif facts["makes"]:
        yield Finding(
            "note", f"{len(missing)} tables and routines are not in the schema {schema} yet: the first use creates them"
        )
    else:
        yield Finding(
            "danger", f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''} missing in the schema {schema}, "
            f"and the role {printable(facts['role'])} may not create them", _DDL,
        )  # fmt: skip


def _rights(facts: dict[str, Any], schema: str) -> Iterator[Finding]:
    denied = [name for part in ("tables", "routines") for name, may in (facts[part] or {}).items() if not may]
    ours = {*TABLES, SEQUENCE, *ROUTINES}
    denied = sorted(name for name in denied if name in ours)
    if facts["schema"] and not facts["enters"]:
        denied = [f"the schema {schema}"]
    if denied:
        yield Finding(
            "danger", f"the role {printable(facts['role'])} lacks rights on {', '.join(denied)}",
            "GRANT as `dibs doctor --ddl` says at its end",
        )  # fmt: skip


def _server(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["number"] < OLDEST:
        yield Finding("danger", "this PostgreSQL is too old: no lock can be taken", "use PostgreSQL 11 or later")
    if facts["recovers"] or facts["read_only"] == "on":
        yield Finding("danger", "this server is read-only: no lock can be taken", "give the primary in the URL")
    if facts["fsync"] != "on":
        yield Finding("danger", "fsync is off: a power cut may lose grants, and then two hold", "set fsync = on")
    if facts["connections"] > facts["most"] * _MOST_USED:
        yield Finding("danger", "nearly all connections are in use: renewals may get none", "raise max_connections")
    if facts["encoding"] != "UTF8":
        yield Finding(
            "note",
            f"the database is {facts['encoding']}: names with other characters are refused",
            "use a database with encoding UTF8",
        )
    if facts["old"] > _LONG:
        yield Finding(
            "note",
            "a transaction has been open for more than an hour: tables cannot be vacuumed",
            "end that transaction",
        )


def _copies(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["standbys"] and facts["commits"] in ("local", "off"):
        yield Finding(
            "note", f"there is a synchronous replica, but synchronous_commit is {facts['commits']} here: grants "
            f"do not wait for it", "set synchronous_commit = on for this role",
        )  # fmt: skip
    elif facts["replicas"] and not facts["standbys"]:
        yield Finding(
            "note", "replication is asynchronous: a fail-over may lose the last grants, and then two hold; a "
            "fence refuses the older one", "set synchronous_standby_names",
        )  # fmt: skip


def _role(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["isolation"] != "read committed":
        yield Finding(
            "note", f"transactions are {facts['isolation']} by default: each request sets READ COMMITTED "
            f"itself, which costs a little time", "default_transaction_isolation = 'read committed' for this role",
        )  # fmt: skip
    if 0 < facts["timeout"] < 2000:
        yield Finding(
            "note", "statement_timeout is shorter than a request may take", "set it to at least 2 s for this role"
        )


def _waking(facts: dict[str, Any], hears: bool, wanted: bool) -> Iterator[Finding]:
    if facts["queue"] >= 0.5:
        yield Finding(
            "note", f"the server's queue of notifications is {facts['queue']:.0%} full: waiters are not told, and poll",
            "end the listening session that stays in a transaction: pg_stat_activity",
        )  # fmt: skip
    elif hears:
        yield Finding("promise", "waiters are told at once: notifications arrive")
    elif wanted:
        yield Finding(
            "note", "notifications do not arrive (perhaps a pooler shares connections by transaction): waiters "
            "poll, at most 0.75 s apart", "use a URL that reaches the server directly",
        )  # fmt: skip
    else:
        yield Finding("note", 'wake="looks": waiters poll, at most 0.75 s apart')


def _way(executor: PostgresqlExecutor, facts: dict[str, Any]) -> Iterator[Finding]:
    if not executor.is_direct():
        yield Finding("note", "a pooler is in between: statements are not prepared, which costs a little time")
    if not (facts["encrypted"] or facts["local"] or facts["loopback"]):
        yield Finding("note", "the connection is not encrypted", "use sslmode=verify-full")


def _clock(there: float, wall: float, took: float) -> Iterator[Finding]:
    if abs(there - wall) > took + ADRIFT:
        yield Finding(
            "note", "the server's clock and this machine's differ: if the server's clock is stepped forward, "
            "leases end early and two hold", "slew the clock, do not step it",
        )  # fmt: skip
