"""Schemas of a PostgreSQL server that tests use again: making one costs more than most tests.

A test is known by its directory. A schema is emptied before it is used again; its store id and tickets stay. A schema
whose routines a test replaced is not used again.
"""

from __future__ import annotations

import atexit
import secrets
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

_KEPT = "dibs_store"
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> %s"
_MADE = "SELECT count(DISTINCT xmin::text) FROM pg_proc WHERE pronamespace = to_regnamespace(%s)"
"""In how many transactions: dibs makes all routines in one."""


class Schemas:
    def __init__(self, url: str) -> None:
        self._url = url
        self._made: list[str] = []
        self._used = 0
        self._test: Path | None = None
        self._connection: psycopg.Connection[Any] | None = None

    def fresh(self, place: Path) -> str:
        """An empty one that no other store of this test has. `place`: in the test's directory."""
        if place.parent != self._test:
            self._test, self._used = place.parent, 0
        at, self._used = self._used, self._used + 1
        if at == len(self._made):
            self._made.append(_unused())
        elif not self._emptied(self._made[at]):
            self._made[at] = _unused()
        return self._made[at]

    def _emptied(self, schema: str) -> bool:
        """False: it is not as dibs made it."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
            atexit.register(self._connection.close)
        ((made,),) = self._connection.execute(_MADE, (f'"{schema}"',)).fetchall()
        if made > 1:
            return False
        for (table,) in self._connection.execute(_TABLES, (schema, _KEPT)).fetchall():
            self._connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, table)))
        return True


def _unused() -> str:
    return f"used-{secrets.token_hex(6)}"
