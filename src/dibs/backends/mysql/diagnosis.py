"""What it means that a server is as it was seen to be: promises, notes and dangers, with fixes. No I/O; who looks is
doctor.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dibs.backends.mysql import schema
from dibs.backends.mysql.connection import make_of
from dibs.info import Finding, duration, printable

SETTINGS = (
    "'version', 'innodb_flush_log_at_trx_commit', 'read_only', 'super_read_only', 'binlog_format', 'log_bin',"
    " 'max_connections', 'wsrep_on', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'wait_timeout'"
)
SLOW = 10
"""A way there and back that takes more than this part of a lease costs locks in the next bad minute."""
ADRIFT = 1.0
"""Seconds that a server's wall clock may differ from this machine's before it is worth a word."""
NEARLY = 0.9
"""Of max_connections."""
LOOK_THERE = "check the server's log"
RIGHTS = "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON the database to this user; CREATE and CREATE ROUTINE once"


class Clock(NamedTuple):
    """How far the server's wall clock is ahead of our boot clock, at least and at most; and the way there and back."""

    least: float
    most: float
    took: float


def about(settings: Mapping[str, str]) -> Iterator[Finding]:
    make, numbers = make_of(settings.get("version", ""))
    yield Finding("about", f"{make} {'.'.join(map(str, numbers))}")


def promises(settings: Mapping[str, str], mode: str, *, sound: bool) -> Iterator[Finding]:
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


def laid(missing: Sequence[str], tables: Mapping[str, str], routines: Mapping[str, str]) -> Iterator[Finding]:
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


def keeping(settings: Mapping[str, str]) -> Iterator[Finding]:
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


def room(settings: Mapping[str, str], states: Mapping[str, str]) -> Iterator[Finding]:
    most, there = settings.get("max_connections", ""), states.get("threads_connected", "")
    if most.isdigit() and there.isdigit() and int(there) > NEARLY * int(most):
        yield Finding("danger", "the number of connections is close to max_connections", "raise max_connections")


def copies(settings: Mapping[str, str], mode: str) -> Iterator[Finding]:
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


def clock(seen: Clock, ours: float, lease: float) -> Iterator[Finding]:
    """`ours`: how far our wall clock is ahead of our boot clock."""
    away = max(seen.least - ours, ours - seen.most, 0.0)
    if away > ADRIFT:
        what = f"the clocks of the server and this machine differ by {duration(round(away))}; leases use the server's"
        yield Finding("note", what, "synchronise both clocks (NTP)")
    if seen.took > lease / SLOW:
        yield Finding(
            "danger", f"a round trip takes more than a {SLOW}th of the lease ({duration(lease)})",
            "use a longer lease, or a server that is nearer",
        )  # fmt: skip


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "OFF") in ("ON", "1", "YES")
