"""A store on the MariaDB or PostgreSQL that this process shares: its rows past dibs, and clients of every mode.

place.taker("session")      # or "lease", "within": takes and gives in that mode
place.rows("UPDATE {claims} SET until = 1 WHERE name = %s", place.key(name))
place.blocked()             # whether somebody waits for a lock of the server
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql

import dibs
from lab.servers import shared_mariadb, shared_postgresql
from lab.servers.supervisor import until
from sql.desks import Desk
from sql.openers import mysql_options

MODES = ("lease", "session", "within")


class Place:
    def __init__(self, store: str, directory: Path, stack: ExitStack) -> None:
        self.store, self._stack = store, stack
        self.url = (shared_mariadb if store == "mysql" else shared_postgresql).fresh(directory)
        self.server, _, of_its_own = self.url.partition("?")
        self._prefix = of_its_own.partition("=")[2] if store == "mysql" else ""
        schema = of_its_own.partition("=")[2]
        self._tables = {
            table: f"dibs_{table}" if store == "mysql" else f'"{schema}".dibs_{table}' for table in ("claims", "held")
        }
        self._looking = self.own(autocommit=True)

    def connect(self, mode: str = "session", **options: Any) -> dibs.Client:
        return self._stack.enter_context(dibs.connect(self.url, **{"mode": mode, "lease": 60, **options}))

    def own(self, autocommit: bool = False) -> Any:
        """A connection as an application has it."""
        if self.store == "mysql":
            made: Any = pymysql.connect(**mysql_options(self.server), autocommit=autocommit)
        else:
            made = psycopg.connect(self.server, autocommit=autocommit)
        return self._stack.enter_context(closing(made))

    def taker(self, mode: str) -> Taker:
        return Taker(self, mode)

    def rows(self, text: str, *values: Any, by: Any = None) -> list[Any]:
        now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
        if self.store == "postgresql":
            now = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
        with (by or self._looking).cursor() as cursor:
            cursor.execute(text.format(now=now, **self._tables), values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def key(self, name: str) -> Any:
        """As a name stands in the tables."""
        return f"{self._prefix}dibs:{name}".encode() if self.store == "mysql" else f"dibs:{name}"

    def blocked(self) -> bool:
        return Desk(self.store, "", self.server).blocked()

    def sessions(self) -> set[int]:
        """Numbers of the server's connections that are in session mode, or for MariaDB of all but ours."""
        if self.store == "mysql":
            found = self.rows("SELECT id FROM information_schema.processlist WHERE user = 'dibs'")
            return {int(number) for (number,) in found} - {self._looking.thread_id()}
        found = self.rows("SELECT pid FROM pg_stat_activity WHERE application_name ~ '^dibs [0-9]'")
        return {int(number) for (number,) in found}

    def in_queue(self, client: dibs.Client, name: str, count: int) -> None:
        until(lambda: len(client.inspect(name).waiters) == count, 60, f"{count} in the queue")


class Taker:
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
