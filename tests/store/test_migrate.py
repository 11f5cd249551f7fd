"""On one name, locks of other libraries and ours behave as docs/migrate says."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
import redis
from kazoo.client import KazooClient

import dibs
from docs.test_docs import ROOT, blocks_of
from lab.servers import ports, shared
from sql.openers import mysql_options


def test_a_lock_of_redis_py_in_our_key_is_an_error(name: str) -> None:
    url = shared.redis().url()
    with closing(redis.Redis.from_url(url)) as driver, dibs.connect(url) as client:
        key = f"dibs:{name}|line"
        with driver.lock(key, timeout=30), pytest.raises(dibs.StoreError, match=re.escape(key)):
            client.lock(name).acquire(timeout=0)


def by_hand(store: str, name: str) -> tuple[str, Any, Callable[[str, str], bool]]:
    """A URL, a connection of somebody, and how that takes its own advisory lock or user lock on a key of ours, by the
    functions that docs/migrate/sql-locks.md gives to its readers."""
    (code,) = [block.code for block in blocks_of(ROOT / "docs/migrate/sql-locks.md") if "def mysql_name" in block.code]
    keys: dict[str, Any] = {}
    exec(code, keys)
    if store == "mysql":
        url = shared.mariadb().url()
        options = mysql_options(url)
        key, connection = keys["mysql_name"](name, options["database"]), pymysql.connect(**options)
    else:
        url = shared.postgresql().url()
        key, connection = keys["postgresql_key"](name), psycopg.connect(url, autocommit=True)

    def ask(mysql: str, postgresql: str) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {mysql if store == 'mysql' else postgresql}", (key,))
            return bool(cursor.fetchone()[0])

    return url, connection, ask


@pytest.mark.gate
@pytest.mark.parametrize("store", ["postgresql", "mysql"])
def test_old_code_that_takes_our_key_shares_the_lock_in_session_mode_only(store: str, name: str) -> None:
    url, connection, ask = by_hand(store, name)

    def take() -> bool:
        return ask("GET_LOCK(%s, 0)", "pg_try_advisory_lock(%s)")

    def give() -> None:
        assert ask("RELEASE_LOCK(%s)", "pg_advisory_unlock(%s)")

    with closing(connection), dibs.connect(url, mode="session") as client, dibs.connect(url) as leased:
        assert take()
        assert client.lock(name).acquire(timeout=0) is None
        with pytest.raises(dibs.Mismatch):
            leased.lock(name).acquire(timeout=0)
        give()
        with client.lock(name, timeout=30):
            assert not take()
        with leased.lock(name, timeout=30):
            assert take()
            give()


@pytest.mark.gate
def test_kazoo_takes_what_we_hold_and_we_refuse_its_nodes(name: str) -> None:
    path, kazoo = f"/{name}", KazooClient(f"{ports.HOST}:{shared.zookeeper().port}", timeout=20)
    kazoo.start()
    try:
        with dibs.connect(shared.zookeeper().url(), namespace="") as client:
            theirs = kazoo.Lock(path)
            with client.lock(path, timeout=30):
                assert theirs.acquire(blocking=False)
            with pytest.raises(dibs.Mismatch, match="__lock__"):
                client.lock(path).acquire(timeout=30)
            theirs.release()
            careful = kazoo.Lock(path, extra_lock_patterns=["-lock-"])
            with client.lock(path, timeout=30):
                assert not careful.acquire(blocking=False)
            assert careful.acquire(timeout=30)
            careful.release()
    finally:
        kazoo.stop()
        kazoo.close()
