"""Inside a transaction of the caller's own: through every kind of connection, in time, in vain; what stays locked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

import dibs
import dibs.aio
from dibs.runtime.threads import step
from dibs.testing.contract.seats import until
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from sql.openers import OPENERS, django, mysql_options
from store.mysql.rows import Raw

TIME_OUT = 20.0
TESTS = Path(__file__).parents[2]
KINDS = {**OPENERS["mysql"], "django": django("mysql")}
Connect = Callable[[], Any]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """A connection as an application has it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(pymysql.connect(**mysql_options(server.url()))))


@pytest.fixture
def client(server: Server) -> Iterator[dibs.Client]:
    with dibs.connect(server.url()) as made:
        yield made


def locked(raw: Raw, name: str) -> bool:
    raw.connection.begin()
    found = raw.ask("SELECT 1 FROM dibs_within WHERE name = %s FOR UPDATE SKIP LOCKED", f"dibs:{name}")
    raw.connection.rollback()
    return not found


async def through(kind: str, url: str, name: str) -> None:
    """Taken, kept until the transaction ends, and free then; both faces speak by the same steps."""
    opened = await KINDS[kind](url)
    awaits = kind.startswith("async-")
    client: Any = dibs.aio.connect(url) if awaits else dibs.connect(url)
    try:
        lock = client.within(opened.connection).lock(name)
        hold = await lock.acquire(timeout=5) if awaits else lock.acquire(timeout=5)
        again = await lock.acquire(timeout=0) if awaits else lock.acquire(timeout=0)
        assert again.token > hold.token > 0
        with closing(Raw(int(mysql_options(url)["port"]))) as raw:
            assert locked(raw, name)
            await opened.commit()
            assert not locked(raw, name)
            assert raw.ask("SELECT COUNT(*) FROM information_schema.innodb_trx") == [(0,)]
    finally:
        closed = client.close()
        if awaits:
            await closed
        await opened.close()


_BY_DJANGO = """
import sys, pymysql
pymysql.install_as_MySQLdb()
from dibs.runtime.threads import step
from store.mysql.test_within import through
step(through("django", *sys.argv[1:]))
"""


def test_through_djangos_connection(server: Server, name: str) -> None:
    """In a process of its own: its driver is in C, and what stands in for that here is imported under two names."""
    program = [sys.executable, "-c", _BY_DJANGO, server.url(), name]
    ended = subprocess.run(program, cwd=TESTS, check=False, timeout=50, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr


@pytest.mark.parametrize("kind", list(OPENERS["mysql"]))
def test_through_every_kind_of_connection(server: Server, name: str, kind: str) -> None:
    run = asyncio.run if kind.startswith("async-") else step
    run(through(kind, server.url(), name))


def test_two_names_never_block_each_other(client: dibs.Client, connect: Connect, name: str) -> None:
    """Neighbours in the index, and names that nobody used before, while others are locked."""
    for number in range(6):
        assert client.within(connect()).lock(f"{name}-{number}", timeout=0).acquire(timeout=0)
    assert client.within(connect()).lock(f"{name}-25").acquire(timeout=0)
    for number in range(6):
        assert client.within(connect()).lock(f"{name}-{number}").acquire(timeout=0.05) is None
    for number in range(6):  # whatever those tried in vain have locked, it is none of these
        assert client.within(connect()).lock(f"{name}-{number}0").acquire(timeout=0)


def test_one_name_is_had_once(client: dibs.Client, connect: Connect, name: str) -> None:
    mine, theirs = connect(), connect()
    with client.within(mine).lock(name) as hold:
        assert client.within(theirs).lock(name).acquire(timeout=0) is None
    assert client.within(theirs).lock(name).acquire(blocking=False) is None  # leaving the block frees nothing
    with pytest.raises(dibs.AcquireTimeout, match=name), client.within(theirs).lock(name, timeout=0.1):
        pass
    mine.rollback()
    won = client.within(theirs).lock(name).acquire(timeout=0)
    assert won is not None
    assert won.token > hold.token


@pytest.mark.parametrize("timeout", [30.0, None])
def test_a_wait_is_ended_by_the_end_of_the_other_transaction(
    client: dibs.Client, connect: Connect, server: Server, name: str, timeout: float | None
) -> None:
    mine, theirs = connect(), connect()
    client.within(mine).lock(name).acquire()
    with ThreadPoolExecutor(1) as pool, closing(Raw(server.port)) as raw:
        pending = pool.submit(client.within(theirs).lock(name).acquire, timeout=timeout)
        until(lambda: [info for _, info in raw.others() if info and "dibs_within" in info])
        mine.commit()
        assert pending.result(TIME_OUT) is not None
    assert raw_limit(theirs) == 50


@pytest.mark.parametrize("timeout", [0.2, 1.3])
def test_a_wait_in_vain_leaves_the_transaction_as_it_was(
    client: dibs.Client, connect: Connect, server: Server, name: str, timeout: float
) -> None:
    mine, theirs = connect(), connect()
    with theirs.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS work (what VARCHAR(100))")
        cursor.execute("INSERT INTO work VALUES (%s)", (name,))
    client.within(mine).lock(name).acquire()
    assert client.within(theirs).lock(name).acquire(timeout=timeout) is None
    assert raw_limit(theirs) == 50
    theirs.commit()
    with closing(Raw(server.port)) as raw:
        assert raw.ask("SELECT COUNT(*) FROM work WHERE what = %s", name) == [(1,)]


def raw_limit(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout")
        return int(cursor.fetchone()[0])


def test_where_a_time_out_would_roll_everything_back_it_is_refused(name: str) -> None:
    require("mariadb")
    with (
        Server(MariaDB("--innodb-rollback-on-timeout=ON")) as server,
        dibs.connect(server.url()) as client,
        closing(pymysql.connect(**mysql_options(server.url()))) as own,
    ):
        for timeout in (0, 1.5):
            with pytest.raises(dibs.StoreError, match="innodb_rollback_on_timeout"):
                client.within(own).lock(name).acquire(timeout=timeout)
        assert client.within(own).lock(name).acquire()


def test_without_a_transaction_it_is_refused(client: dibs.Client, connect: Connect, name: str) -> None:
    connection = connect()
    connection.autocommit(True)
    with pytest.raises(dibs.StoreError, match="in no transaction"):
        client.within(connection).lock(name).acquire()
    connection.begin()
    assert client.within(connection).lock(name).acquire(timeout=0)


def test_another_server_is_refused_though_it_has_the_same_tables(
    client: dibs.Client, connect: Connect, name: str
) -> None:
    require("mariadb")
    with Server(MariaDB()) as other, dibs.connect(other.url()) as there:
        own = pymysql.connect(**mysql_options(other.url()))
        with closing(own):
            assert there.within(own).lock(name).acquire(timeout=0)
            own.rollback()
            client.within(connect()).lock(name).acquire()  # which is locked here, too
            with pytest.raises(dibs.StoreError, match="on another server"):
                client.within(own).lock(name).acquire(timeout=0)


def test_another_database_of_the_connection_makes_no_difference(
    client: dibs.Client, connect: Connect, server: Server, name: str
) -> None:
    connection = connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS `od``d%s`")
        cursor.execute("USE `od``d%s`")
    assert client.within(connection).lock(name).acquire(timeout=0)
    odd = dibs.connect(server.url(database="od`d%25s"))
    with closing(odd):
        assert odd.within(connect()).lock(name).acquire(timeout=0)


@pytest.mark.parametrize("name", ["'; DROP TABLE dibs_within; --", "%s {0} %(a)s", "\\", "ä" * 200])
def test_hostile_names(client: dibs.Client, connect: Connect, name: str) -> None:
    with client.within(connect()).lock(name):
        assert client.within(connect()).lock(name).acquire(timeout=0) is None
        assert client.within(connect()).lock(name.upper() + "x").acquire(timeout=0)


def test_a_row_that_was_removed_is_made_anew(client: dibs.Client, connect: Connect, server: Server, name: str) -> None:
    mine = connect()
    assert client.within(mine).lock(name).acquire(timeout=0)
    mine.rollback()
    with closing(Raw(server.port)) as raw:
        raw.ask("DELETE FROM dibs_within")
    assert client.within(mine).lock(name).acquire(timeout=0)
    assert client.within(connect()).lock(name).acquire(timeout=0) is None


def test_what_was_refused_for_another_mode_stays_locked_until_the_transaction_ends(
    client: dibs.Client, connect: Connect, server: Server, name: str
) -> None:
    own = connect()
    hold = client.lock(name).acquire()
    with pytest.raises(dibs.Mismatch):
        client.within(own).lock(name).acquire(timeout=0)
    hold.release()
    with closing(Raw(server.port)) as raw:
        assert locked(raw, name)
        own.rollback()
        assert not locked(raw, name)
    assert client.lock(name).acquire(timeout=0)


def test_a_connection_that_breaks_gives_it_back(
    client: dibs.Client, connect: Connect, server: Server, name: str
) -> None:
    own = connect()
    client.within(own).lock(name).acquire()
    with closing(Raw(server.port)) as raw:
        raw.ask(f"KILL CONNECTION {own.thread_id()}")
    assert client.within(connect()).lock(name).acquire(timeout=TIME_OUT)
    with pytest.raises(pymysql.err.OperationalError):
        client.within(own).lock(name).acquire(timeout=0)


def test_a_connection_that_breaks_while_it_waits_says_so(
    client: dibs.Client, connect: Connect, server: Server, name: str
) -> None:
    """And not that nothing can be said on it any more, which is what the next statement would get to hear."""
    mine, theirs = connect(), connect()
    client.within(mine).lock(name).acquire()
    with ThreadPoolExecutor(1) as pool, closing(Raw(server.port)) as raw:
        pending = pool.submit(client.within(theirs).lock(name).acquire, timeout=30)
        until(lambda: [info for _, info in raw.others() if info and "dibs_within" in info])
        raw.ask(f"KILL CONNECTION {theirs.thread_id()}")
        with pytest.raises(pymysql.err.OperationalError):
            pending.result(TIME_OUT)


def test_who_is_refused_for_a_deadlock_waits_as_long_as_before_again(
    client: dibs.Client, connect: Connect, server: Server, name: str
) -> None:
    ours = {connection: name + end for connection, end in zip((connect(), connect()), "ab", strict=True)}
    for own, held in ours.items():
        client.within(own).lock(held).acquire()
    with ThreadPoolExecutor(2) as pool:
        pending = [
            pool.submit(client.within(own).lock(other).acquire, timeout=30)
            for own, other in zip(ours, reversed(ours.values()), strict=True)
        ]
        refused = [error for done in as_completed(pending, TIME_OUT) if (error := done.exception()) is not None]
    assert [error.args[0] for error in refused] == [1213]
    assert [raw_limit(own) for own in ours] == [50, 50]
