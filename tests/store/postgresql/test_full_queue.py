"""The server's queue of notifications is full, because a session anywhere on it listens and stays in a transaction: who
leaves leaves all the same, and who waits looks instead of being told.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

import dibs
from lab.servers.supervisor import until
from sql.databases import own_database

pytestmark = pytest.mark.gate

PATIENCE = 60.0
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


def test_who_leaves_leaves_and_who_waits_looks() -> None:
    """A waiter that was to be told, and one that comes when nobody can be told any more."""
    url = own_database.__wrapped__("postgresql")  # what is done to its catalog concerns nobody else
    with (
        dibs.connect(url) as one, dibs.connect(url) as other, dibs.connect(url) as late, ThreadPoolExecutor(2) as pool,
    ):  # fmt: skip
        with one.lock("a", timeout=PATIENCE):
            first = pool.submit(other.lock("a").acquire, timeout=PATIENCE)
            until(lambda: len(one.inspect("a").waiters) == 1, what="one waits")
            with closing(psycopg.connect(url, autocommit=True)) as admin:
                admin.execute(_FULL)
            second = pool.submit(late.lock("a").acquire, timeout=PATIENCE)
            until(lambda: len(one.inspect("a").waiters) == 2, what="both wait")
        for pending in (first, second):
            pending.result(PATIENCE).release()
        one.cell("c").set(b"1", 0)
        assert any("queue of notifications" in finding.what for finding in one.doctor())
