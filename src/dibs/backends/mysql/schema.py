"""The tables and routines of this layout, and how to create them.

The first use creates what is missing, under one user lock of the server. Where this user may not create, an
administrator runs the output of `ddl`. The number in the routine names is that of the layout (see tables.sql): clients
of layout 1 are refused by the routines in REFUSING, and its tables are refused here.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from dibs.backends.mysql.calls import packed, query
from dibs.backends.mysql.connection import Dialler, MysqlConnection
from dibs.backends.mysql.errors import DENIED, EXISTS, final
from dibs.backends.mysql.wire import Refusal, statement
from dibs.errors import Mismatch, StoreError, StoreUnavailable

ROUTINES = (
    "wake", "tell", "walk", "move", "look", "enclosed", "apart", "join", "renew", "leave", "leave_all",
    "change", "hear", "watch", "put", "admit", "sweep", "part", "take", "quit", "end", "within",
)  # fmt: skip
"""In the order in which they are created: each exists before another calls it."""
REFUSING = ("join", "take", "within")
"""Routines of layout 1 that are created in this one, to refuse its clients."""
TABLES = (
    "queues", "tickets", "claims", "tombs", "watchers", "cells", "writes", "store", "marks", "sessions", "waits",
    "within",
)  # fmt: skip
IN_MEMORY = ("dibs_sessions", "dibs_waits", "dibs_held")
"""These describe sessions, which end with the server."""
_ALONE = query("SELECT GET_LOCK('dibs:ddl', 1)")
_THERE = query(
    "SELECT table_name FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name IN ('dibs_names', 'dibs_queues')"
)
CHANGE_OVER = "stop the programs that use dibs 0.1 there, then DROP TABLE dibs_names, dibs_claims, dibs_held"
_MAY_NOT = (
    "give this user CREATE and CREATE ROUTINE on the database, or let an administrator run the statements that"
    " `dibs doctor --ddl` prints"
)


@cache
def tables() -> tuple[str, ...]:
    """The statements that create the tables."""
    text = re.sub(r"^--.*\n", "", _read("tables"), flags=re.MULTILINE)
    return tuple(part.strip() for part in text.split(";\n") if part.strip())


@cache
def routine(name: str) -> str:
    """The statement that creates a routine. Its comment goes into the body, where the server keeps it."""
    head, create, rest = _read(name).partition("CREATE PROCEDURE")
    body = re.sub(
        r"^( *)-- \((\w+)\.sql\)\n",
        lambda found: _indented(_read(found[2]), len(found[1]) - 2),
        rest,
        flags=re.MULTILINE,
    )
    declared, begin, steps = body.partition("BEGIN\n")
    return f"{create}{declared}{begin}{_indented(head, 2)}{steps}".strip()


def ddl(database: str) -> str:
    """A script for the program mysql or mariadb, for an administrator."""
    quoted = "`" + database.replace("`", "``") + "`"
    lines = [
        "-- Tables and routines of dibs; those that are there already are left alone.",
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES';",
        f"USE {quoted};",
        "",
    ]
    lines += [f"{text.replace('CREATE TABLE', 'CREATE TABLE IF NOT EXISTS', 1)};\n" for text in tables()]
    lines.append("DELIMITER $$")
    for name in ROUTINES:
        lines += [f"DROP PROCEDURE IF EXISTS dibs_2_{name}$$", f"{routine(name)}$$", ""]
    for name in REFUSING:
        lines += [f"DROP PROCEDURE IF EXISTS dibs_1_{name}$$", f"{routine(f'layout_{name}')}$$", ""]
    lines.append("DELIMITER ;")
    lines += [
        "-- The least that a user needs then; its own sessions it may wake without any right:",
        f"-- GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON {quoted}.* TO ...;",
        "",
    ]
    return "\n".join(lines)


def create(dialler: Dialler, until: float) -> None:
    """Create missing tables and routines; blocks. Raises Mismatch, and creates nothing, if tables have layout 1."""
    connection = dialler.connect(until)
    try:
        while connection.exchange(_ALONE, until)[0][0][0] != b"1":
            if dialler.now() >= until:
                raise StoreUnavailable("another client has been creating the tables for too long")
        there = [row[0] for row in connection.exchange(_THERE, until)[0]]
        if there == [b"dibs_names"]:
            raise Mismatch("the tables here were created by dibs 0.1", step=CHANGE_OVER)
        for name in REFUSING:
            text = routine(f"layout_{name}")
            if not _make(connection, text, until) and not there:  # left behind by a client of layout 1
                _make(connection, f"DROP PROCEDURE dibs_1_{name}", until)
                _make(connection, text, until)
        for text in (*tables(), *map(routine, ROUTINES)):
            _make(connection, text, until)
    except Refusal as refusal:
        raise final(refusal) from None
    finally:
        connection.end()


def _make(connection: MysqlConnection, text: str, until: float) -> bool:
    """False: it exists already."""
    try:
        connection.exchange(packed(statement(text)), until)
    except Refusal as refusal:
        if refusal.code in EXISTS:
            return False
        if refusal.code in DENIED:
            raise StoreError(
                f"the tables are missing and cannot be created: {final(refusal).what}", step=_MAY_NOT
            ) from None
        raise
    return True


def _indented(text: str, by: int) -> str:
    return re.sub(r"^(?=.)", " " * max(by, 0), text, flags=re.MULTILINE)


def _read(name: str) -> str:
    return files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
