"""Locks inside a transaction of the caller's own, as PostgreSQL has them: databases, looking, the end. What both
databases share is in tests/sql/test_within.py and tests/store/test_modes.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

import dibs
import dibs.aio
from lab.servers.supervisor import until

Connection = psycopg.Connection[Any]


@pytest.fixture
def place(url: str) -> str:
    return url.partition("?")[0]


@pytest.fixture
def own(place: str) -> Iterator[Connection]:
    with closing(psycopg.connect(place)) as connection:
        yield connection


@pytest.fixture
def client(url: str) -> Iterator[dibs.Client]:
    with dibs.connect(url) as made:
        yield made


def test_a_connection_to_another_database_is_refused(client: dibs.Client, own: Connection, name: str) -> None:
    own.autocommit = True
    other = f"other_{own.info.backend_pid}"
    own.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(other)))
    there = psycopg.connect(own.info.dsn, password=own.info.password, dbname=other)
    with closing(there), pytest.raises(dibs.StoreError, match="another database"):
        client.within(there).lock(name).acquire(timeout=0)
    assert not client.inspect(name).holders


def test_after_a_mismatch_the_transaction_goes_on(client: dibs.Client, own: Connection, name: str) -> None:
    with client.lock(name):
        for timeout in (0, 0.2, None):
            with pytest.raises(dibs.Mismatch, match="by a lease"):
                client.within(own).lock(name).acquire(timeout=timeout)
        assert own.execute("SELECT 1").fetchone() == (1,)
    assert client.lock(name).acquire(timeout=0).release() is None, "nothing of it stays in the transaction"
    assert client.within(own).lock(name).acquire(timeout=0), "it is free once the lease was given back"


def test_lock_timeout_is_as_it_was(client: dibs.Client, own: Connection, name: str) -> None:
    own.execute("SET lock_timeout = '7s'")
    own.commit()
    assert client.within(own).lock(name).acquire(timeout=30)
    assert own.execute("SHOW lock_timeout").fetchone() == ("7s",)
    own.execute("SET LOCAL lock_timeout = '9s'")
    assert client.within(own).lock(f"{name}-2").acquire()
    assert own.execute("SHOW lock_timeout").fetchone() == ("9s",)


def test_it_is_shown_with_all_it_says_of_itself(client: dibs.Client, own: Connection, name: str) -> None:
    lock = client.within(own).lock(name, owner="ana", info={"job": 7})
    with lock as hold:
        (holder,) = client.inspect(name).holders
        assert (holder.owner, holder.token, dict(holder.info)) == ("ana", hold.token, {"job": 7})
        with (
            closing(psycopg.connect(own.info.dsn, password=own.info.password)) as other,
            pytest.raises(dibs.AcquireTimeout, match=rf"held by ana@.*token {hold.token}"),
            client.within(other).lock(name, timeout=0),
        ):
            pass
    own.commit()
    assert client.inspect(name).holders == ()


def test_the_end_of_its_connection_frees_it(client: dibs.Client, own: Connection, place: str, name: str) -> None:
    assert client.within(own).lock(name).acquire()
    with closing(psycopg.connect(place)) as other:
        own.close()
        assert client.within(other).lock(name).acquire(timeout=20)


def test_break_ends_the_callers_session(client: dibs.Client, own: Connection, name: str) -> None:
    hold = client.within(own).lock(name).acquire()
    assert hold is not None
    client.break_(name, token=hold.token)
    with pytest.raises(psycopg.OperationalError):
        own.execute("SELECT 1")
    until(lambda: not client.inspect(name).holders)


def test_a_savepoint_that_is_rolled_back_gives_it_back(client: dibs.Client, own: Connection, name: str) -> None:
    own.execute("SELECT 1")
    with own.transaction():
        assert client.within(own).lock(name).acquire()
        raise psycopg.Rollback
    assert not client.inspect(name).holders
