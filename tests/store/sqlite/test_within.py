"""A fence inside the caller's own SQLite transaction: the record comes and goes with it, and keeps others out."""

# ruff: noqa: PT012  (a `with` that is left by an error is what is tested)

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from store.sqlite.owndb import BY_HAND, BY_ITSELF, Open, begin, end, fence, open_, pieces, records, resource

__all__ = ["fence", "open_", "resource"]


@pytest.mark.parametrize("options", [*BY_HAND.values(), *BY_ITSELF.values()], ids=[*BY_HAND, *BY_ITSELF])
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
    assert pieces(resource) == 7
    assert list(records(resource).values()) == [7]
    begin(connection, options)
    with pytest.raises(dibs.StaleToken, match="token 6 is stale: 7 was admitted before"):
        fence.admit(6, within=connection)
    end(connection, "ROLLBACK")


@pytest.mark.parametrize("options", BY_HAND.values(), ids=BY_HAND)
def test_without_a_transaction_nothing_is_admitted(
    open_: Open, resource: Path, fence: dibs.Fence, options: dict[str, Any]
) -> None:
    connection = open_(**options)
    with pytest.raises(dibs.StoreError, match="in no transaction") as caught:
        fence.admit(5, within=connection)
    assert caught.value.name == "stock"
    assert "BEGIN IMMEDIATE" in str(caught.value)
    assert not isinstance(caught.value, dibs.StoreUnavailable)
    assert records(resource) == {}


def test_a_transaction_that_is_open_already_is_joined(open_: Open, resource: Path, fence: dibs.Fence) -> None:
    connection = open_()
    connection.execute("UPDATE stock SET pieces = 1")
    fence.admit(5, within=connection)
    connection.rollback()
    assert pieces(resource) == 10
    assert records(resource) == {}


def test_a_stale_token_leaves_the_transaction_to_its_owner(open_: Open, resource: Path, fence: dibs.Fence) -> None:
    connection = open_()
    with connection:
        fence.admit(9, within=connection)
    connection.execute("UPDATE stock SET pieces = 1")
    with pytest.raises(dibs.StaleToken) as caught:
        fence.admit(8, within=connection)
    assert (caught.value.name, caught.value.store) == ("stock", "your own transaction")
    assert connection.in_transaction
    assert connection.execute("SELECT pieces FROM stock").fetchone() == (1,)
    connection.rollback()
    assert pieces(resource) == 10
    with connection:
        fence.admit(9, within=connection)
        connection.execute("UPDATE stock SET pieces = 3")
    assert pieces(resource) == 3


def test_with_connection_rolls_back_what_a_stale_token_was_to_do(
    open_: Open, resource: Path, fence: dibs.Fence
) -> None:
    """The pattern of the documentation."""
    with open_() as connection:
        fence.admit(9, within=connection)
    with pytest.raises(dibs.StaleToken), open_() as connection:
        connection.execute("UPDATE stock SET pieces = 0")
        fence.admit(8, within=connection)
    assert pieces(resource) == 10


def test_readers_are_compared_with_writers_only(open_: Open, resource: Path, fence: dibs.Fence) -> None:
    connection = open_()
    fence.admit(7, shared=True, within=connection)
    fence.admit(4, within=connection)
    fence.admit(4, shared=True, within=connection)
    fence.admit(9, shared=True, within=connection)
    with pytest.raises(dibs.StaleToken, match="4 was admitted before"):
        fence.admit(3, within=connection)  # a reader has not lowered the mark either
    fence.admit(5, within=connection)
    with pytest.raises(dibs.StaleToken, match="5 was admitted before"):
        fence.admit(4, shared=True, within=connection)
    connection.commit()
    assert list(records(resource).values()) == [5]


def test_fences_and_namespaces_are_apart(open_: Open, fence: dibs.Fence) -> None:
    connection = open_()
    fence.admit(9, within=connection)
    with dibs.connect("memory://within", namespace="elsewhere") as client:
        client.fence("stock").admit(1, within=connection)
        client.fence("b").admit(1, within=connection)
    with pytest.raises(dibs.StaleToken):
        fence.admit(8, within=connection)
    fence.admit(1)  # the store's own record is another one


@pytest.mark.parametrize("token", [1, 2**31, 2**53 + 1, 2**63 - 1])
def test_tokens_are_whole_numbers_to_the_last_digit(open_: Open, fence: dibs.Fence, token: int) -> None:
    connection = open_()
    fence.admit(token, within=connection)
    fence.admit(token, within=connection)
    if token > 1:
        with pytest.raises(dibs.StaleToken, match=f"{token} was admitted"):
            fence.admit(token - 1, within=connection)


def test_bad_tokens_touch_nothing(open_: Open, resource: Path, fence: dibs.Fence) -> None:
    connection = open_()
    bad: list[Any] = [0, -1, True, "5", 5.0, None, 2**63]
    for token in bad:
        with pytest.raises((TypeError, ValueError), match="token must be"):
            fence.admit(token, within=connection)
    assert not connection.in_transaction
    assert records(resource) == {}


# Others.


@pytest.mark.parametrize("first", ["admits", "is shared"])
@pytest.mark.parametrize("options", [*BY_HAND.values(), *BY_ITSELF.values()], ids=[*BY_HAND, *BY_ITSELF])
def test_nobody_is_admitted_between_the_check_and_the_commit(
    open_: Open, fence: dibs.Fence, options: dict[str, Any], first: str
) -> None:
    """Checking takes the write lock; the other gets SQLite's own error, as it is."""
    one, other = open_(**options), open_(**options)
    with open_() as connection:
        fence.admit(6, within=connection)
    begin(one, options)
    fence.admit(7, within=one, shared=first == "is shared")
    with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
        begin(other, options)
        fence.admit(9, within=other)
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_BUSY
    end(one, "COMMIT")
    if not other.in_transaction:
        begin(other, options)
    fence.admit(9, within=other)
    end(other, "COMMIT")
    begin(one, options)
    with pytest.raises(dibs.StaleToken):
        fence.admit(7, within=one)


def test_who_read_before_somebody_else_changed_it_gets_sqlites_error(
    open_: Open, resource: Path, fence: dibs.Fence
) -> None:
    """In WAL mode a transaction that began with a read cannot write once others did: nothing is admitted on it."""
    with open_() as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        fence.admit(5, within=connection)
    one, other = open_(isolation_level=None), open_()
    one.execute("BEGIN")
    one.execute("SELECT pieces FROM stock").fetchone()
    with other:
        fence.admit(9, within=other)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        fence.admit(7, within=one)
    one.execute("ROLLBACK")
    assert list(records(resource).values()) == [9]


_ADMITS = """
import sqlite3, sys, dibs
fence = dibs.connect("memory://").fence("stock")
connection = sqlite3.connect(sys.argv[1], timeout=20)
print("ready", flush=True)
for line in sys.stdin:
    try:
        with connection:
            fence.admit(int(line), within=connection)
        print("ok", flush=True)
    except (dibs.StaleToken, sqlite3.OperationalError) as error:
        print(type(error).__name__, flush=True)
"""


def test_two_processes_that_make_the_table_at_once(resource: Path) -> None:
    """Neither may fail but by SQLite's busy error, and the higher token stands in the end."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _ADMITS, str(resource)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]

    def says(child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        return child.stdout.readline().strip()

    try:
        assert [says(child) for child in children] == ["ready", "ready"]
        last = 0
        for _ in range(10):
            last += 2
            with closing(sqlite3.connect(resource, timeout=20)) as connection, connection:
                connection.execute("DROP TABLE IF EXISTS dibs_fence")
            for number, child in enumerate(children):
                assert child.stdin is not None
                child.stdin.write(f"{last + number}\n")
                child.stdin.flush()
            lower, higher = [says(child) for child in children]
            assert higher == "ok"
            assert lower in ("ok", "StaleToken")
            assert list(records(resource).values()) == [last + 1]
    finally:
        for child in children:
            child.kill()
            child.communicate()


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
    assert list(records(resource).values()) == [5]


@pytest.mark.parametrize("begun", [False, True])
def test_a_refusal_keeps_others_out_only_as_long_as_the_caller_does(
    open_: Open, fence: dibs.Fence, begun: bool
) -> None:
    """What the check began by itself it ends; what the caller began is the caller's to end."""
    mine, other = open_(), open_()
    with mine:
        fence.admit(5, within=mine)
    if begun:
        mine.execute("UPDATE stock SET pieces = 9")
    with pytest.raises(dibs.StaleToken):
        fence.admit(4, within=mine)
    assert mine.in_transaction is begun
    if begun:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            fence.admit(6, within=other)
        mine.rollback()
    with other:
        fence.admit(6, within=other)
