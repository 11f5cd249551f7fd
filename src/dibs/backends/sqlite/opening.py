"""The first look at a file: refuse what is not ours, make what is new.

A file that is in use is only read here. The write lock belongs to those who hold and wait: two hundred clients that
start at once must not keep it from them.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from dibs.backends.sqlite.database import BUSY_CODES, Inode, code_of, existing, inode_of, open_turn, removed, translated
from dibs.backends.sqlite.table import APPLICATION, STATEMENTS, VERSION, damaged
from dibs.errors import Mismatch, StoreError
from dibs.runtime.threads import boottime

_OLDEST_SQLITE = (3, 37, 0)
_BUSY_TIMEOUT = 0.05
_NAP = 0.002


def begin(
    path: Path, looked_at: Inode, directory: Path, create: Callable[[sqlite3.Connection], None],
    look: Callable[[sqlite3.Connection], None],
) -> bool:  # fmt: skip
    """Check the file, and let `create` make its tables if it is new; then `look` may read it. False: busy."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old", step="use a Python with SQLite 3.37 or later")
    try:
        connection = sqlite3.connect(existing(path), timeout=_BUSY_TIMEOUT, isolation_level=None, uri=True)
    except sqlite3.Error as error:
        raise translated(error) from None
    try:
        # From here on only what was opened is asked: what lies at the path may have changed since it was looked at.
        if inode_of(str(path)) != looked_at:
            raise removed()
        _mark(connection)
        if _version(connection) == 0:
            with turn(directory), connection:
                _make_tables(connection, create)
        _check_version(_version(connection))
        check_tables(connection)
        look(connection)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if code_of(error) in BUSY_CODES:
            return False
        raise translated(error) from None
    else:
        return True
    finally:
        connection.close()


def _mark(connection: sqlite3.Connection) -> None:
    """A new file becomes ours, before it becomes a WAL database: so the mark can be read without opening one."""
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        connection.execute("PRAGMA page_size = 1024")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
    elif connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise foreign()
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreError("the file system cannot share memory (WAL)", step="put the database on a local disk")


def _make_tables(connection: sqlite3.Connection, create: Callable[[sqlite3.Connection], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if _version(connection) == 0:
        if _tables(connection):
            raise damaged("its tables are not those of dibs")
        create(connection)


def _check_version(version: int) -> None:
    if version != VERSION:
        step = "upgrade dibs" if version > VERSION else "stop the programs that use it, and move the file away"
        raise Mismatch(f"the database has format {version}, this dibs knows {VERSION}", step=step)


def check_tables(connection: sqlite3.Connection) -> None:
    """They do what we think: no trigger, no view, no row out of order that would lead a search astray."""
    if _tables(connection) != set(STATEMENTS):
        raise damaged("its tables are not those of dibs")
    if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise damaged("SQLite's own check fails")
    if connection.execute("SELECT count(*) FROM store").fetchone() != (1,):
        raise damaged("it has no identity")


def _tables(connection: sqlite3.Connection) -> set[str]:
    """Everything in the schema, but for the statistics that an operator's ANALYZE leaves."""
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\'")
    return {str(text) for (text,) in found}


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def turn(directory: Path) -> Iterator[None]:
    """The turn, waited for, while a file is made; this is politeness only."""
    file = open_turn(directory)
    end = boottime() + _BUSY_TIMEOUT
    try:
        while boottime() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_NAP)
        yield
    finally:
        os.close(file)


def recognise(path: Path) -> None:
    """Look at what is there without touching it: no lock, no journal, no write. An empty file is welcome.

    Only for a file that nobody of ours can be at work on: without locks, one that is being made looks damaged.
    """
    if not path.stat().st_size:
        return
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        try:
            found = connection.execute("PRAGMA application_id").fetchone()[0]
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise translated(error) from None
    if found != APPLICATION:
        raise foreign()


def foreign() -> StoreError:
    return StoreError("the file is the database of another program", step="use another path")
