"""A store in a database of this process, on MariaDB or PostgreSQL: its rows past dibs, and clients of every mode.

place.taker("session")      # or "lease", "within": takes and gives in that mode
place.rows("UPDATE {claims} SET until = 1 WHERE name = %s", place.key(name))
place.blocked()             # whether somebody waits for a lock of the database
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pymysql

import dibs
from lab.servers.supervisor import until
from sql.databases import own_database
from sql.drivers import Driver
from sql.openers import mysql_options

MODES = ("lease", "session", "within")


class Place:
    def __init__(self, store: str, stack: ExitStack) -> None:
        self.store, self._stack = store, stack
        self.url = own_database(store)
        self._claims = "dibs_queues" if store == "mysql" else "dibs.dibs_claims"
        self._looking = self.own(autocommit=True)

    def connect(self, mode: str = "session", **options: Any) -> dibs.Client:
        return self._stack.enter_context(dibs.connect(self.url, **{"mode": mode, "lease": 60, **options}))

    def own(self, autocommit: bool = False) -> Any:
        """A connection of an application."""
        if self.store == "mysql":
            made: Any = pymysql.connect(**mysql_options(self.url), autocommit=autocommit)
        else:
            made = psycopg.connect(self.url, autocommit=autocommit)
        return self._stack.enter_context(closing(made))

    def caller(self, mode: str) -> Caller:
        return Caller(self, mode)

    def rows(self, text: str, *values: Any, by: Any = None) -> list[Any]:
        now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
        if self.store == "postgresql":
            now = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
        with (by or self._looking).cursor() as cursor:
            cursor.execute(text.format(now=now, claims=self._claims), values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def key(self, name: str) -> Any:
        """The name as the tables spell it."""
        return f"dibs:{name}".encode() if self.store == "mysql" else f"dibs:{name}"

    def blocked(self) -> bool:
        return Driver(self.store, "", self.url).blocked()

    def sessions(self) -> set[int]:
        """Numbers of the database's connections that are in session mode, or for MariaDB of all but ours."""
        if self.store == "mysql":
            where = "id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
        else:
            where = "pid FROM pg_stat_activity WHERE application_name ~ '^dibs [0-9]' AND datname = current_database()"
        return {int(number) for (number,) in self.rows(f"SELECT {where}")}

    def in_queue(self, client: dibs.Client, name: str, count: int) -> None:
        until(lambda: len(client.inspect(name).waiters) == count, 60, f"{count} in the queue")


class Caller:
    """Takes in one mode, by a client of its own."""

    def __init__(self, place: Place, mode: str) -> None:
        self.mode = mode
        self.client = place.connect("session" if mode == "session" else "lease")
        self._own = place.own() if mode == "within" else None
        self._hold: Any = None

    def take(self, name: str, **options: Any) -> int | None:
        lock: Any = self.client.lock(name) if self._own is None else self.client.within(self._own).lock(name)
        try:
            self._hold = lock.acquire(**options)
        except BaseException:
            self.give()
            raise
        return None if self._hold is None else int(self._hold.token)

    def give(self) -> None:
        if self._own is not None:
            self._own.rollback()
        elif self._hold is not None:
            self._hold.release()
        self._hold = None
