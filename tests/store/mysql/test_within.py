"""Locks inside a transaction of the caller's own, as MySQL has them: what stays locked, what is left as it was, other
servers and databases. What both databases share is in tests/sql/test_within.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from typing import Any

import pymysql
import pytest

import dibs
import dibs.aio
from lab.servers import shared_mariadb
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server, until
from sql.openers import mysql_options
from store.mysql.rows import Raw

pytestmark = pytest.mark.gate

TIME_OUT = 60.0
Connect = Callable[[], Any]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """A connection as an application has it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(pymysql.connect(**mysql_options(server.url()))))


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    with closing(Raw(server.port)) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[dibs.Client]:
    with dibs.connect(server.url()) as made:
        yield made


def locked(raw: Raw, name: str) -> bool:
    raw.connection.begin()
    found = raw.ask("SELECT 1 FROM dibs_within WHERE name = %s FOR UPDATE SKIP LOCKED", f"dibs:{name}")
    raw.connection.rollback()
    return not found


def test_two_names_never_block_each_other(client: dibs.Client, connect: Connect, name: str) -> None:
    """Neighbours in the index, and names that nobody used before, while others are locked."""
    for number in range(3):
        assert client.within(connect()).lock(f"{name}-{number}", timeout=0).acquire(timeout=0)
    assert client.within(connect()).lock(f"{name}-15").acquire(timeout=0)
    for number in range(3):
        assert client.within(connect()).lock(f"{name}-{number}").acquire(timeout=0.05) is None
    for number in range(3):  # whatever those tried in vain have locked, it is none of these
        assert client.within(connect()).lock(f"{name}-{number}0").acquire(timeout=0)


def raw_limit(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout")
        return int(cursor.fetchone()[0])


def test_a_wait_in_vain_leaves_the_limit_as_it_was(client: dibs.Client, connect: Connect, name: str) -> None:
    mine, theirs = connect(), connect()
    client.within(mine).lock(name).acquire()
    for timeout in (0.2, 1.3):
        assert client.within(theirs).lock(name).acquire(timeout=timeout) is None
        assert raw_limit(theirs) == 50


def test_another_server_is_refused_though_it_has_the_same_tables(
    client: dibs.Client, connect: Connect, name: str
) -> None:
    other = shared_mariadb.mariadb().url()
    with dibs.connect(other) as there, closing(pymysql.connect(**mysql_options(other))) as own:
        assert there.within(own).lock(name).acquire(timeout=0)
        own.rollback()
        client.within(connect()).lock(name).acquire()  # which is locked here, too
        with pytest.raises(dibs.StoreError, match="to another server"):
            client.within(own).lock(name).acquire(timeout=0)


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


def test_a_row_that_was_removed_is_made_anew(client: dibs.Client, connect: Connect, raw: Raw, name: str) -> None:
    mine = connect()
    assert client.within(mine).lock(name).acquire(timeout=0)
    mine.rollback()
    raw.ask("DELETE FROM dibs_within")
    assert client.within(mine).lock(name).acquire(timeout=0)
    assert client.within(connect()).lock(name).acquire(timeout=0) is None


def test_what_was_refused_for_another_mode_stays_locked_until_the_transaction_ends(
    client: dibs.Client, connect: Connect, raw: Raw, name: str
) -> None:
    own = connect()
    hold = client.lock(name).acquire()
    with pytest.raises(dibs.Mismatch):
        client.within(own).lock(name).acquire(timeout=0)
    hold.release()
    assert locked(raw, name)
    own.rollback()
    assert not locked(raw, name)
    assert client.lock(name).acquire(timeout=0)


def test_a_connection_that_breaks_while_it_waits_says_so(
    client: dibs.Client, connect: Connect, raw: Raw, name: str
) -> None:
    """And not that nothing can be said on it any more, which is what the next statement would get to hear."""
    mine, theirs = connect(), connect()
    client.within(mine).lock(name).acquire()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(client.within(theirs).lock(name).acquire, timeout=30)
        until(lambda: [info for _, info in raw.others() if info and "dibs_within" in info])
        raw.ask(f"KILL CONNECTION {theirs.thread_id()}")
        with pytest.raises(pymysql.err.OperationalError):
            pending.result(TIME_OUT)


def test_who_is_refused_for_a_deadlock_waits_as_long_as_before_again(
    client: dibs.Client, connect: Connect, raw: Raw, name: str
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
