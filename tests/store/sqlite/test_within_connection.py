"""A fence inside the caller's own SQLite transaction: the connection stays the caller's, with its ways and errors."""

# ruff: noqa: PT012  (a `with` that is left by an error is what is tested)

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from store.sqlite.owndb import Open, fence, open_, pieces, records, resource

__all__ = ["fence", "open_", "resource"]


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("factory", [sqlite3.Row, as_dict, lambda cursor, row: None], ids=["Row", "dict", "none"])
def test_a_row_factory_is_left_alone(open_: Open, fence: dibs.Fence, factory: Any) -> None:
    connection = open_()
    connection.row_factory = factory
    connection.text_factory = bytes
    fence.admit(9, within=connection)
    with pytest.raises(dibs.StaleToken, match="9 was admitted"):
        fence.admit(8, within=connection)
    assert connection.row_factory is factory
    assert connection.text_factory is bytes


def test_a_subclass_of_a_connection_is_one(open_: Open, resource: Path, fence: dibs.Fence) -> None:
    class Traced(sqlite3.Connection):
        pass

    connection = open_(factory=Traced)
    fence.admit(5, within=connection)
    connection.commit()
    assert list(records(resource).values()) == [5]


def test_a_closed_connection_is_the_callers_own_error(open_: Open, fence: dibs.Fence) -> None:
    connection = open_()
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        fence.admit(5, within=connection)


def test_a_database_that_can_only_be_read_is_the_callers_own_error(resource: Path, fence: dibs.Fence) -> None:
    with (
        closing(sqlite3.connect(f"file:{resource}?mode=ro", uri=True)) as connection,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        fence.admit(5, within=connection)


def test_a_table_of_that_name_that_is_not_ours_admits_nobody(open_: Open, fence: dibs.Fence) -> None:
    connection = open_()
    connection.execute("CREATE TABLE dibs_fence (colour TEXT)")
    with pytest.raises((sqlite3.OperationalError, dibs.StoreError)):
        fence.admit(5, within=connection)


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


def test_within_needs_no_cells_of_the_store_and_no_io(tmp_path: Path, open_: Open) -> None:
    """The record is in the caller's database alone."""
    with dibs.connect(f"sqlite:///{tmp_path / 'never.db'}") as client:
        client.fence("stock").admit(5, within=open_())
    assert not (tmp_path / "never.db").exists()


@pytest.mark.parametrize("within", [object(), "stock.db", 5, sqlite3], ids=["object", "str", "int", "module"])
def test_anything_else_is_no_connection(fence: dibs.Fence, within: Any) -> None:
    with pytest.raises(TypeError, match=r"open connection \(.*sqlite3\.Connection\), not"):
        fence.admit(5, within=within)


def test_a_cursor_is_no_connection(open_: Open, fence: dibs.Fence) -> None:
    with pytest.raises(TypeError, match="open connection"):
        fence.admit(5, within=open_().cursor())


def test_the_asyncio_face(open_: Open, resource: Path) -> None:
    async def main() -> None:
        async with dibs.aio.connect("memory://within") as client:
            fence, connection = client.fence("stock"), open_()
            with connection:
                await fence.admit(9, within=connection)
                connection.execute("UPDATE stock SET pieces = 1")
            with pytest.raises(dibs.StaleToken), connection:
                connection.execute("UPDATE stock SET pieces = 0")
                await fence.admit(8, within=connection)
            with pytest.raises(TypeError):
                await fence.admit(9, within=object())
            with suppress(sqlite3.ProgrammingError):
                connection.close()

    asyncio.run(main())
    assert pieces(resource) == 1
    assert list(records(resource).values()) == [9]


def test_a_hold_and_a_fence_of_ones_own_database(tmp_path: Path, open_: Open, resource: Path) -> None:
    """Two holders, one after the other; the first one writes late."""
    with dibs.connect(f"sqlite:///{tmp_path / 'locks.db'}") as client:
        first = client.lock("stock").acquire(timeout=5)
        assert first is not None
        client.break_("stock", token=first.token)
        with client.lock("stock", timeout=5) as second, open_() as connection:
            client.fence("stock").admit(second.token, within=connection)
            connection.execute("UPDATE stock SET pieces = pieces - 1")
        with pytest.raises(dibs.StaleToken), open_() as connection:
            connection.execute("UPDATE stock SET pieces = 0")
            client.fence("stock").admit(first.token, within=connection)
    assert pieces(resource) == 9
