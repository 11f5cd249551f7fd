"""Errors of SQLite as errors of dibs, and the errors that several modules of this store raise."""

from __future__ import annotations

import sqlite3

from dibs.core.queue import Replaced
from dibs.errors import Mismatch, StoreError, StoreUnavailable

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The exceptions of a statement; sqlite3 raises the second one for a damaged text."""
_BUSY_CODES = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))


class OtherFormat(Mismatch, StoreError):
    """Another version of dibs created the file. Also a StoreError, which the watchdog handles when a file was
    replaced."""


def code_of(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: Exception) -> bool:
    return code_of(error) in _BUSY_CODES


def translated(error: Exception) -> StoreError:
    """The error of dibs for an error of SQLite. Texts of SQLite quote no values, except for text that is not UTF-8."""
    code = code_of(error)
    if isinstance(error, UnicodeDecodeError) or (not code and "decode" in str(error)):
        return damaged("a text in it is no UTF-8")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(str(error))
    if code == sqlite3.SQLITE_FULL:
        return StoreError("the disk of the database is full", step="make room")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError("the database is read-only", step="make the file and its directory writable")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, *_BUSY_CODES):
        return StoreUnavailable(f"the database does not answer: {error}", step="check the disk and its directory")
    return StoreError(f"the database refused: {error}", step="please report this")


def damaged(what: str) -> StoreError:
    return StoreError(
        f"the database is damaged, or not a database: {what}", step="move it away; nothing was changed in it"
    )


def foreign() -> StoreError:
    return StoreError("the file is the database of another program", step="use another path")


def removed() -> Replaced:
    return Replaced(
        "the database was removed or replaced: all locks are lost", step="find the program that did that, and stop it"
    )
