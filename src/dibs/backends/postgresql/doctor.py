"""The checks of `dibs doctor`: the server and its settings, the tables and routines, the rights of this role, and
whether notifications arrive. They touch no claim and create nothing: the tables may not exist yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dibs.backends.postgresql.connection import MICROSECONDS
from dibs.backends.postgresql.errors import strange
from dibs.backends.postgresql.executor import PostgresqlExecutor
from dibs.backends.postgresql.routines import SEQUENCE, TABLES, TEXT, routine_names, statement
from dibs.info import Finding, printable

IDLE_TIMEOUT = 140_000
"""PostgreSQL 14 ends idle sessions."""
_OLDEST = 110_000
"""PostgreSQL 11 has the first 64-bit hash of a text."""
_ADRIFT = 2.0
"""Seconds by which the clocks may differ."""
_ASYNCHRONOUS = (
    "replication is asynchronous: a fail-over may lose the last grants, and then two hold; "
    "a fence refuses the older one"
)
_ISOLATION = "transactions are {} by default: each request sets READ COMMITTED itself, which costs a little time"
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
Facts = dict[str, Any]


async def examine(
    executor: PostgresqlExecutor, wall: float, until: float, session: float | None = None
) -> list[Finding]:
    """`wall`: the time by this machine's clock. `session`: the lease of connections in session mode."""
    began, schema = executor.now(), executor.routines.schema
    found = await executor.rows(_ASKED, (schema,), until)
    took = executor.now() - began
    try:
        server_time, facts = int(found[0][0]) / MICROSECONDS, json.loads(found[0][1])
    except (ValueError, TypeError, IndexError):
        raise strange() from None
    facts["role"] = printable(facts["role"])
    hears = await executor.hears(until, touching=False)
    findings = [
        *_state(facts, schema),
        *_rights(facts, schema),
        *_server(facts),
        _waking(facts["queue"], hears, executor.subscriber is not None),
    ]
    if not executor.is_direct():
        findings.append(
            Finding("note", "a pooler is in between: statements are not prepared, which costs a little time")
        )
    if abs(server_time - wall) > took + _ADRIFT:
        findings.append(Finding(
            "note", "the server's clock and this machine's differ: if the server's clock is stepped forward, "
            "leases end early and two hold", "slew the clock, do not step it",
        ))  # fmt: skip
    if session is not None:
        findings += _by_connections(session, facts, is_direct=executor.is_direct())
    promised = () if any(finding.level == "danger" for finding in findings) else _promises(facts, session)
    return [Finding("about", f"PostgreSQL {printable(str(facts['version']))}"), *promised, *findings]


def _promises(facts: Facts, session: float | None) -> Iterator[Finding]:
    over = "also over a crash and restart of the server" if session is None else "while its connection lasts"
    yield Finding("promise", f"one valid holder, first come first served, {over}")
    yield Finding("promise", "tokens rise for ever, also when the tables are created anew")
    if facts["standbys"]:
        yield Finding(
            "promise", "a grant is answered once a synchronous replica has it: a fail-over to that replica loses none"
        )


def _by_connections(lease: float, facts: Facts, *, is_direct: bool) -> Iterator[Finding]:
    if not is_direct:
        yield Finding(
            "danger", 'mode="session" needs a direct connection, and a pooler answers: no lock can be taken',
            'use a URL that reaches the server directly, or mode="lease"',
        )  # fmt: skip
    ends = f"the server ends one that is silent for {lease:g} s, and its lock is free"
    if facts["number"] < IDLE_TIMEOUT:
        ends = "this server ends one only when TCP finds nobody there: a process that stands still keeps its lock"
    yield Finding("note", f'mode="session": each lock uses its own connection; {ends}')


def _state(facts: Facts, schema: str) -> Iterator[Finding]:
    missing = [name for name in (*TABLES, SEQUENCE) if name not in (facts["tables"] or {})]
    missing += [name for name in routine_names() if name not in (facts["routines"] or {})]
    if not missing:
        yield Finding("promise", f"all tables and routines exist in the schema {schema}")
    elif facts["makes"]:
        yield Finding(
            "note", f"{len(missing)} tables and routines are not in the schema {schema} yet: the first use creates them"
        )
    else:
        yield Finding(
            "danger", f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''} missing in the schema {schema}, "
            f"and the role {facts['role']} may not create them",
            "have what `dibs doctor --ddl` prints run by somebody who may",
        )  # fmt: skip


def _rights(facts: Facts, schema: str) -> Iterator[Finding]:
    denied = [name for part in ("tables", "routines") for name, may in (facts[part] or {}).items() if not may]
    ours = {*TABLES, SEQUENCE, *routine_names()}
    denied = sorted(name for name in denied if name in ours)
    if facts["schema"] and not facts["enters"]:
        denied = [f"the schema {schema}"]
    if denied:
        yield Finding(
            "danger", f"the role {facts['role']} lacks rights on {', '.join(denied)}",
            "GRANT as `dibs doctor --ddl` says at its end",
        )  # fmt: skip


def _server(facts: Facts) -> list[Finding]:
    isolation, commits, encoding = facts["isolation"], facts["commits"], facts["encoding"]
    checks = (
        (facts["number"] < _OLDEST, "danger", "this PostgreSQL is too old: no lock can be taken",
         "use PostgreSQL 11 or later"),
        (facts["recovers"] or facts["read_only"] == "on", "danger", "this server is read-only: no lock can be taken",
         "give the primary in the URL"),
        (facts["fsync"] != "on", "danger", "fsync is off: a power cut may lose grants, and then two hold",
         "set fsync = on"),
        (facts["connections"] > facts["most"] * 0.9, "danger",
         "nearly all connections are in use: renewals may get none", "raise max_connections"),
        (encoding != "UTF8", "note", f"the database is {encoding}: names with other characters are refused",
         "use a database with encoding UTF8"),
        (facts["old"] > 3600, "note", "a transaction has been open for more than an hour: tables cannot be vacuumed",
         "end that transaction"),
        (facts["standbys"] and commits in ("local", "off"), "note",
         f"there is a synchronous replica, but synchronous_commit is {commits} here: grants do not wait for it",
         "set synchronous_commit = on for this role"),
        (facts["replicas"] and not facts["standbys"], "note", _ASYNCHRONOUS, "set synchronous_standby_names"),
        (isolation != "read committed", "note", _ISOLATION.format(isolation),
         "default_transaction_isolation = 'read committed' for this role"),
        (0 < facts["timeout"] < 2000, "note", "statement_timeout is shorter than a request may take",
         "set it to at least 2 s for this role"),
        (not (facts["encrypted"] or facts["local"] or facts["loopback"]), "note", "the connection is not encrypted",
         "use sslmode=verify-full"),
    )  # fmt: skip
    return [Finding(level, what, fix) for applies, level, what, fix in checks if applies]  # type: ignore[arg-type]


def _waking(queue: float, hears: bool, is_wanted: bool) -> Finding:
    if queue >= 0.5:
        return Finding(
            "note", f"the server's queue of notifications is {queue:.0%} full: waiters are not told, and poll",
            "end the listening session that stays in a transaction: pg_stat_activity",
        )  # fmt: skip
    if hears:
        return Finding("promise", "waiters are told at once: notifications arrive")
    if is_wanted:
        return Finding(
            "note", "notifications do not arrive (perhaps a pooler shares connections by transaction): waiters poll, "
            "at most 0.75 s apart", "use a URL that reaches the server directly",
        )  # fmt: skip
    return Finding("note", 'wake="looks": waiters poll, at most 0.75 s apart')
