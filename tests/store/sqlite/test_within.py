"""A fence inside the caller's own SQLite transaction: the record comes and goes with it, and keeps others out. The
connection stays the caller's, with its ways and errors."""

# ruff: noqa: PT012  (a `with` that is left by an error is what is tested)

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio

Open = Callable[..., sqlite3.Connection]
BY_HAND: dict[str, dict[str, Any]] = {"isolation_level=None": {"isolation_level": None}}
"""Where Python begins no transaction by itself."""
BY_ITSELF: dict[str, dict[str, Any]] = {"default": {}, "EXCLUSIVE": {"isolation_level": "EXCLUSIVE"}}
if sys.version_info >= (3, 12):
    BY_HAND["autocommit=True"] = {"autocommit": True}
    BY_ITSELF["autocommit=False"] = {"autocommit": False}
EVERY = pytest.mark.parametrize("options", [*BY_HAND.values(), *BY_ITSELF.values()], ids=[*BY_HAND, *BY_ITSELF])


@pytest.fixture
def resource(tmp_path: Path) -> Path:
    """The caller's own database."""
    path = tmp_path / "stock.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE stock (pieces INTEGER)")
        connection.execute("INSERT INTO stock VALUES (10)")
    return path


@pytest.fixture
def open_(resource: Path) -> Iterator[Open]:
    made: list[sqlite3.Connection] = []

    def connect(**options: Any) -> sqlite3.Connection:
        made.append(sqlite3.connect(resource, **{"timeout": 0, **options}))
        return made[-1]

    yield connect
    for one in made:
        one.close()


@pytest.fixture
def fence() -> Iterator[dibs.Fence]:
    with dibs.connect("memory://within") as client:
        yield client.fence("stock")


def asked(resource: Path, question: str) -> list[Any]:
    with closing(sqlite3.connect(resource)) as connection:
        try:
            return [value for (value,) in connection.execute(question)]
        except sqlite3.OperationalError:
            return []


def records(resource: Path) -> list[int]:
    return asked(resource, "SELECT token FROM dibs_fence")


def pieces(resource: Path) -> int:
    return int(asked(resource, "SELECT pieces FROM stock")[0])


def begin(connection: sqlite3.Connection, options: dict[str, Any]) -> None:
    if options in BY_HAND.values():
        connection.execute("BEGIN")


def end(connection: sqlite3.Connection, how: str) -> None:
    """`commit()` and `rollback()` do nothing where transactions are made by hand."""
    if connection.in_transaction and getattr(connection, "autocommit", None) is True:
        connection.execute(how)
    else:
        getattr(connection, how.lower())()


@EVERY
def test_the_record_is_committed_and_rolled_back_with_the_change(
    open_: Open, resource: Path, fence: dibs.Fence, options: dict[str, Any]
) -> None:
    connection = open_(**options)
    for token, how in ((5, "COMMIT"), (9, "ROLLBACK"), (7, "COMMIT")):
        begin(connection, options)
        fence.admit(token, within=connection)
        assert connection.in_transaction, "nothing may come between the check and the change"
        connection.execute("UPDATE stock SET pieces = ?", (token,))
        end(connection, how)
    assert (pieces(resource), records(resource)) == (7, [7])
    begin(connection, options)
    with pytest.raises(dibs.StaleToken, match="token 6 is stale: 7 was admitted before") as caught:
        fence.admit(6, within=connection)
    assert (caught.value.name, caught.value.store) == ("stock", "your own transaction")
    end(connection, "ROLLBACK")


def test_without_a_transaction_nothing_is_admitted(open_: Open, resource: Path, fence: dibs.Fence) -> None:
    for options in BY_HAND.values():
        with pytest.raises(dibs.StoreError, match=r"not in a transaction.*BEGIN IMMEDIATE") as caught:
            fence.admit(5, within=open_(**options))
        assert caught.value.name == "stock"
        assert not isinstance(caught.value, dibs.StoreUnavailable)
        assert records(resource) == []


def test_readers_are_compared_with_writers_only_and_tokens_to_the_last_digit(
    open_: Open, resource: Path, fence: dibs.Fence
) -> None:
    connection = open_()
    fence.admit(7, shared=True, within=connection)
    fence.admit(4, within=connection)
    fence.admit(9, shared=True, within=connection)
    with pytest.raises(dibs.StaleToken, match="4 was admitted before"):
        fence.admit(3, within=connection)  # a reader has not lowered the mark either
    fence.admit(5, within=connection)
    with pytest.raises(dibs.StaleToken, match="5 was admitted before"):
        fence.admit(4, shared=True, within=connection)
    for token in (2**53 + 1, 2**63 - 1):
        fence.admit(token, within=connection)
        fence.admit(token, within=connection)
        with pytest.raises(dibs.StaleToken, match=f"{token} was admitted"):
            fence.admit(token - 1, within=connection)
    with dibs.connect("memory://within", namespace="elsewhere") as client:
        client.fence("stock").admit(1, within=connection)
    fence.admit(1)  # the store's own record is another one
    connection.commit()
    assert sorted(records(resource)) == [1, 2**63 - 1]


@EVERY
def test_nobody_is_admitted_between_the_check_and_the_commit(
    open_: Open, fence: dibs.Fence, options: dict[str, Any]
) -> None:
    """Checking takes the write lock, also for a reader; the other gets SQLite's own error, as it is."""
    one, other = open_(**options), open_(**options)
    with open_() as connection:
        fence.admit(6, within=connection)
    for token, shared in ((7, False), (10, True)):
        begin(one, options)
        fence.admit(token, within=one, shared=shared)
        with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
            begin(other, options)
            fence.admit(token + 2, within=other)
        assert caught.value.sqlite_errorcode == sqlite3.SQLITE_BUSY
        end(one, "COMMIT")
        if not other.in_transaction:
            begin(other, options)
        fence.admit(token + 2, within=other)
        end(other, "COMMIT")
    begin(one, options)
    with pytest.raises(dibs.StaleToken):
        fence.admit(10, within=one)


def test_somebody_else_makes_the_table_just_before(open_: Open, resource: Path, fence: dibs.Fence) -> None:
    class Late(sqlite3.Cursor):
        def execute(self, sql: str, *given: Any) -> Any:
            if sql.startswith("CREATE TABLE"):
                with closing(sqlite3.connect(resource)) as connection, connection:
                    fence.admit(3, within=connection)
            return super().execute(sql, *given)

    class Unlucky(sqlite3.Connection):
        def cursor(self, factory: Any = Late) -> Any:
            return super().cursor(factory)

    connection = open_(factory=Unlucky)
    fence.admit(5, within=connection)
    connection.commit()
    assert records(resource) == [5]


@pytest.mark.parametrize("begun", [False, True])
def test_a_refusal_keeps_others_out_only_as_long_as_the_caller_does(
    open_: Open, fence: dibs.Fence, begun: bool
) -> None:
    """The check ends a transaction that it began; one of the caller stays open."""
    mine, other = open_(), open_()
    with mine:
        fence.admit(5, within=mine)
    if begun:
        mine.execute("UPDATE stock SET pieces = 9")
    with pytest.raises(dibs.StaleToken):
        fence.admit(4, within=mine)
    assert mine.in_transaction is begun
    if begun:
        assert mine.execute("SELECT pieces FROM stock").fetchone() == (9,)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            fence.admit(6, within=other)
        mine.rollback()
    with other:
        fence.admit(6, within=other)


def test_a_row_factory_is_left_alone(open_: Open, fence: dibs.Fence) -> None:
    for factory in (sqlite3.Row, lambda cursor, row: None):
        connection = open_()
        connection.row_factory, connection.text_factory = factory, bytes
        fence.admit(9, within=connection)
        with pytest.raises(dibs.StaleToken, match="9 was admitted"):
            fence.admit(8, within=connection)
        assert (connection.row_factory, connection.text_factory) == (factory, bytes)
        connection.rollback()


def test_a_record_that_is_no_number_admits_nobody(open_: Open, fence: dibs.Fence) -> None:
    connection = open_()
    with connection:
        fence.admit(5, within=connection)
    for damage in ("'garbage'", "x'00'"):
        with connection:
            connection.execute(f"UPDATE dibs_fence SET token = {damage}")
        for shared in (False, True):
            with pytest.raises(dibs.StoreError) as caught:
                fence.admit(2**62, shared=shared, within=connection)
            assert caught.value.name == "stock"
            connection.rollback()


def test_the_async_api_needs_no_store_either(tmp_path: Path, open_: Open, resource: Path) -> None:
    """The record is in the caller's database alone."""

    async def main() -> None:
        async with dibs.aio.connect(f"sqlite:///{tmp_path / 'never.db'}") as client:
            fence, connection = client.fence("stock"), open_()
            with connection:
                await fence.admit(9, within=connection)
                connection.execute("UPDATE stock SET pieces = 1")
            with pytest.raises(dibs.StaleToken), connection:
                connection.execute("UPDATE stock SET pieces = 0")
                await fence.admit(8, within=connection)
            for wrong in (object(), "stock.db", sqlite3, connection.cursor()):
                with pytest.raises(TypeError, match=r"open connection \(.*sqlite3\.Connection\), not"):
                    await fence.admit(9, within=wrong)

    asyncio.run(main())
    assert (pieces(resource), records(resource)) == (1, [9])
    assert not (tmp_path / "never.db").exists()
