"""The tables past dibs: by a connection of the driver's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from lab.servers import ports
from lab.servers.mariadb import NAME


class Raw:
    def __init__(self, port: int, prefix: str = "", **login: Any) -> None:
        self.prefix = prefix
        given = {"user": NAME, "password": NAME, "database": NAME, **login}
        self.connection = pymysql.connect(host=ports.HOST, port=port, autocommit=True, **given)
        self.id = self.connection.thread_id()

    def ask(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(text, values or None)
            return list(cursor.fetchall())

    def key(self, name: str) -> bytes:
        """A name as it stands there."""
        return f"{self.prefix}{name}".encode()

    def claims(self, name: str) -> list[tuple[Any, ...]]:
        """In the head of its queue, or behind it."""
        key = self.key(name)
        return self.ask(
            "SELECT ticket, id FROM dibs_queues WHERE name = %s AND id <> '' UNION ALL"
            " SELECT ticket, id FROM dibs_claims WHERE name = %s ORDER BY ticket",
            key, key,
        )  # fmt: skip

    def over(self, name: str) -> set[bytes]:
        """The expired claims that nobody has removed yet."""
        over = "WHERE name = %s AND until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
        key = self.key(name)
        found = self.ask(f"SELECT id FROM dibs_claims {over} UNION SELECT id FROM dibs_queues {over}", key, key)
        return {id for (id,) in found}

    def lock(self, name: str) -> None:
        """Until `unlock` no verb passes that changes this queue."""
        self.ask("INSERT IGNORE INTO dibs_queues (name, apart) VALUES (%s, 0)", self.key(name))
        self.connection.begin()
        assert self.ask("SELECT 1 FROM dibs_queues WHERE name = %s FOR UPDATE", self.key(name))

    def unlock(self) -> None:
        self.connection.commit()

    def others(self) -> list[tuple[int, str | None]]:
        """Sessions of everybody else: the number, and what it runs."""
        listed = self.ask("SELECT id, info FROM information_schema.processlist WHERE user = %s", NAME)
        return [(number, info) for number, info in listed if number != self.id]

    def blocked(self) -> int:
        """How many verbs wait for the lock of a name."""
        return len([info for _, info in self.others() if info is not None and "FROM dibs_queues" in info])

    def close(self) -> None:
        self.connection.close()


@contextmanager
def setting(raw: Raw, variable: str, value: object) -> Iterator[None]:
    ((before,),) = raw.ask(f"SELECT @@GLOBAL.{variable}")
    raw.ask(f"SET GLOBAL {variable} = %s", value)
    try:
        yield
    finally:
        raw.ask(f"SET GLOBAL {variable} = %s", before)
