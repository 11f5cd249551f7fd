"""The server's queue of notifications is full, because a session anywhere on it listens and stays in a transaction: who
leaves leaves all the same, and who waits looks instead of being told.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

import dibs
from lab.servers import shared_postgresql
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.supervisor import Server, until

PATIENCE = 600.0
"""It takes minutes to fill it."""
_FULL = """
ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO pg_notify_before;
ALTER FUNCTION pg_catalog.pg_notification_queue_usage() RENAME TO pg_notification_queue_usage_before;
CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
END $$;
CREATE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS $$ SELECT 1.0::float8 $$;
"""
"""To fill it takes 8 GB before PostgreSQL 17. What a database calls by these names is its own: here they say what they
say of a full one."""


@pytest.fixture
def database() -> Iterator[str]:
    """One of its own: what is done to its catalog concerns nobody else."""
    name, place = f"full_{secrets.token_hex(6)}", shared_postgresql.postgresql().url()
    with closing(psycopg.connect(place, autocommit=True)) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        yield place.rpartition("/")[0] + f"/{name}"
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def handed_over(url: str, fill: Any) -> None:
    """A waiter that was to be told, and one that comes when nobody can be told any more."""
    with dibs.connect(url) as one, dibs.connect(url) as other, dibs.connect(url) as late:
        hold = one.lock("a").acquire(timeout=PATIENCE)
        assert hold is not None
        found: list[dibs.Hold | None] = []
        threads = [threading.Thread(target=lambda: found.append(other.lock("a").acquire(timeout=PATIENCE)))]
        threads[0].start()
        until(lambda: len(one.inspect("a").waiters) == 1, what="one waits")
        fill()
        threads.append(threading.Thread(target=lambda: found.append(late.lock("a").acquire(timeout=PATIENCE))))
        threads[1].start()
        until(lambda: len(one.inspect("a").waiters) == 2, what="both wait")
        hold.release()
        until(lambda: len(found) == 1, what="the first holds")
        assert found[0] is not None
        found[0].release()
        until(lambda: len(found) == 2, what="the second holds")
        assert found[1] is not None
        one.cell("c").set(b"1", 0)
        assert any("queue of notifications" in finding.what for finding in one.doctor())
        for thread in threads:
            thread.join()


def test_who_leaves_leaves_and_who_waits_looks(database: str) -> None:
    with closing(psycopg.connect(database, autocommit=True)) as admin:
        handed_over(database, lambda: admin.execute(_FULL))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_queue_that_is_really_full() -> None:
    """8 GB, before PostgreSQL 17."""
    require("postgresql")
    with (
        Server(PostgreSQL("fsync=off")) as server,
        closing(psycopg.connect(server.url(database="template1"), autocommit=True)) as lazy,
        closing(psycopg.connect(server.url(), autocommit=True)) as writer,
    ):
        lazy.execute("LISTEN anything")
        lazy.execute("BEGIN")
        lazy.execute("SELECT 1")

        def fill() -> None:
            sql = "SELECT count(pg_notify('other', lpad(i::text, 7900, 'x'))) FROM generate_series(1, %s) AS i"
            for count in (5_000, 100, 1):
                with suppress(psycopg.errors.ProgramLimitExceeded):
                    while True:
                        writer.execute(sql, (count,))

        handed_over(server.url(), fill)
