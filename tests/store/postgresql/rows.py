"""The tables of a store, read and written past dibs.

raw.claims("dibs:a")                  # what stands in a queue, in order
raw.plant("dibs:a", weight=0)         # one more claim, of nobody's, as ours are but for that
raw("SELECT ... FROM {s}.dibs_claims WHERE name = %s", "dibs:a")
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import psycopg

MICROSECONDS = 1_000_000
Row = tuple[Any, ...]


@contextmanager
def opened(url: str) -> Iterator[Raw]:
    """The store of this URL."""
    place, _, schema = url.partition("?schema=")
    with closing(psycopg.connect(place, autocommit=True)) as connection:
        yield Raw(connection, schema)


class Raw:
    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.connection = connection
        self.schema = schema

    def __call__(self, sql: str, *values: object) -> list[Row]:
        statement = cast("Any", sql.replace("{s}", f'"{self.schema}"'))
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def claims(self, name: str) -> list[bytes]:
        """The ids of those who are not over, in order."""
        now = "date_part('epoch', clock_timestamp()) * 1000000"
        rows = self(f"SELECT id FROM {{s}}.dibs_claims WHERE name = %s AND until > {now} ORDER BY ticket", name)
        return [bytes(row[0]) for row in rows]

    def plant(self, name: str, **changed: object) -> None:
        now = int(time.time() * MICROSECONDS)
        row = {
            "name": name, "ticket": now, "id": os.urandom(16), "client": b"", "kind": "mutex", "capacity": 1,
            "weight": 1, "lease": 30 * MICROSECONDS, "waiting": 5 * MICROSECONDS, "until": now + 30 * MICROSECONDS,
            "asked": now, "held": now, "revoked": False, "about": "{}", **changed,
        }  # fmt: skip
        places = ", ".join(["%s"] * len(row))
        self(f"INSERT INTO {{s}}.dibs_claims ({', '.join(row)}) VALUES ({places})", *row.values())

    def key(self, name: str) -> int:
        """The key of a name's advisory lock."""
        return int(self("SELECT {s}.dibs_2_key('line', %s)", name)[0][0])
