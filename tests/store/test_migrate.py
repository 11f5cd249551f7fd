"""docs/migrate is true: the programs that readers come from run, and on one name their locks and ours do what the pages
say of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import redis
import redis_lock
from kazoo.client import KazooClient
from pottery import Redlock
from tooz import coordination

import dibs
from docs.test_docs import ROOT, blocks_of
from lab.servers import ports, shared
from lab.witness import fresh_name
from sql.openers import mysql_options

PAGES = sorted((ROOT / "docs" / "migrate").glob("*.md"))
_PROGRAM = re.compile(r"^```py\n((?:import|from) .+?)^```$", re.MULTILINE | re.DOTALL)
_UNTESTED = "aioredlock"
"""It needs a driver that Python 3.11 does not run."""
PROGRAMS = 12


def programs() -> list[str]:
    found = [code for page in PAGES for code in _PROGRAM.findall(page.read_text(encoding="utf-8"))]
    return [code for code in found if _UNTESTED not in code]


@pytest.mark.timeout(150)
def test_the_programs_that_readers_come_from_run(tmp_path: Path) -> None:
    """One after the other, in one process."""
    here = {
        "redis://localhost/": f"redis://{ports.HOST}:{shared.redis().port}/",
        "ana:secret@localhost/app": f"dibs:dibs@{ports.HOST}:{shared.postgresql().port}/postgres",
        'host="localhost"': f'host="{ports.HOST}", port={shared.mariadb().port}',
        "localhost:2181": f"{ports.HOST}:{shared.zookeeper().port}",
    }
    texts = programs()
    assert len(texts) == PROGRAMS
    for number, text in enumerate(texts):
        for written, there in here.items():
            texts[number] = texts[number].replace(written, there)
        assert texts[number] != text or "open(" in text or "FileLock" in text, "it does not say where the server is"
    ended = subprocess.run(
        [sys.executable, "-c", "\n".join(f"exec({text!r}, {{}})" for text in texts)],
        check=False, timeout=140, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("writing the report") == PROGRAMS


@pytest.fixture
def name() -> str:
    return fresh_name()


@contextmanager
def _python_redis_lock(driver: redis.Redis, name: str) -> Iterator[None]:
    with redis_lock.Lock(driver, name, expire=30):
        yield


REDIS_LOCKS: dict[str, Callable[[redis.Redis, str], AbstractContextManager[Any]]] = {
    "redis-py": lambda driver, name: driver.lock(name, timeout=30, blocking=False),
    "python-redis-lock": _python_redis_lock,
    "pottery": lambda driver, name: Redlock(key=name, masters={driver}, auto_release_time=30),
}


@pytest.mark.parametrize("peer", REDIS_LOCKS)
def test_other_locks_on_redis_and_ours_do_not_exclude_each_other(peer: str, name: str) -> None:
    url = shared.redis().url()
    with closing(redis.Redis.from_url(url)) as driver, dibs.connect(url) as client:
        with REDIS_LOCKS[peer](driver, name), client.lock(name, timeout=0):
            pass
        with client.lock(name, timeout=0), REDIS_LOCKS[peer](driver, name):
            pass


def test_a_lock_of_redis_py_in_our_key_is_an_error(name: str) -> None:
    url = shared.redis().url()
    with closing(redis.Redis.from_url(url)) as driver, dibs.connect(url) as client:
        key = f"dibs:{name}|line"
        with driver.lock(key, timeout=30), pytest.raises(dibs.StoreError, match=re.escape(key)):
            client.lock(name).acquire(timeout=0)


def keys() -> dict[str, Any]:
    """The functions that docs/migrate/sql-locks.md gives to its readers."""
    (code,) = [block.code for block in blocks_of(ROOT / "docs/migrate/sql-locks.md") if "def mysql_name" in block.code]
    made: dict[str, Any] = {}
    exec(code, made)
    return made


class ByHand:
    """Somebody's own advisory lock or user lock, on a key of ours."""

    def __init__(self, store: str, name: str) -> None:
        self._mysql = store == "mysql"
        if self._mysql:
            self.url = shared.mariadb().url()
            options = mysql_options(self.url)
            self._key = keys()["mysql_name"](name, options["database"])
            self._connection: Any = pymysql.connect(**options)
        else:
            self.url = shared.postgresql().url()
            self._key = keys()["postgresql_key"](name)
            self._connection = psycopg.connect(self.url, autocommit=True)

    def ask(self, mysql: str, postgresql: str) -> bool:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {mysql if self._mysql else postgresql}", (self._key,))
            return bool(cursor.fetchone()[0])

    def take(self) -> bool:
        return self.ask("GET_LOCK(%s, 0)", "pg_try_advisory_lock(%s)")

    def give(self) -> None:
        assert self.ask("RELEASE_LOCK(%s)", "pg_advisory_unlock(%s)")

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize("store", ["postgresql", "mysql"])
def test_old_code_that_takes_our_key_shares_the_lock_in_session_mode(store: str, name: str) -> None:
    with closing(ByHand(store, name)) as old, dibs.connect(old.url, mode="session") as client:
        assert old.take()
        assert client.lock(name).acquire(timeout=0) is None
        with dibs.connect(old.url) as leased, pytest.raises(dibs.Mismatch):
            leased.lock(name).acquire(timeout=0)
        old.give()
        with client.lock(name, timeout=5):
            assert not old.take()
        assert old.take()
        old.give()


@pytest.mark.parametrize("store", ["postgresql", "mysql"])
def test_a_lease_does_not_keep_old_code_out(store: str, name: str) -> None:
    with closing(ByHand(store, name)) as old, dibs.connect(old.url) as leased, leased.lock(name, timeout=5):
        assert old.take()
        old.give()


@pytest.fixture
def kazoo() -> Iterator[KazooClient]:
    client = KazooClient(f"{ports.HOST}:{shared.zookeeper().port}", timeout=20)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_kazoo_takes_what_we_hold_and_we_refuse_its_nodes(kazoo: KazooClient, name: str) -> None:
    path = f"/{name}"
    with dibs.connect(shared.zookeeper().url(), namespace="") as client:
        theirs = kazoo.Lock(path)
        with client.lock(path, timeout=5):
            assert theirs.acquire(blocking=False)
        with pytest.raises(dibs.Mismatch, match="__lock__"):
            client.lock(path).acquire(timeout=2)
        theirs.release()
        careful = kazoo.Lock(path, extra_lock_patterns=["-lock-"])
        with client.lock(path, timeout=5):
            assert not careful.acquire(blocking=False)
        assert careful.acquire(timeout=10)
        careful.release()


@pytest.mark.filterwarnings("ignore:PostgreSQL driver is deprecated:DeprecationWarning")
def test_two_names_of_tooz_are_one_lock_on_postgresql() -> None:
    coordinator = coordination.get_coordinator(shared.postgresql().url(), b"me")
    assert coordinator.get_lock(b"job-181").key == coordinator.get_lock(b"job-492").key
