"""`within` as both APIs have it, where no server is needed; tests/store/postgresql and mysql have the rest."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg.errors
import pymysql.err
import pytest

import dibs
import dibs.aio
from dibs.backends.sql.caller_connection import code_of


@pytest.mark.parametrize("url", ["memory://", "sqlite:///x.db", "redis://localhost", "zookeeper://localhost"])
def test_a_store_that_has_none_says_so_when_it_is_called(url: str) -> None:
    for client in (dibs.connect(url), dibs.aio.connect(url)):
        with (
            closing(sqlite3.connect(":memory:")) as own,
            pytest.raises(dibs.Unsupported, match="no locks inside a transaction of yours"),
        ):
            client.within(own)


class Wrapped(Exception):
    """As SQLAlchemy wraps an error."""

    def __init__(self, orig: BaseException) -> None:
        super().__init__("wrapped")
        self.orig = orig


def caused(error: BaseException) -> BaseException:
    """As Django wraps one."""
    wrapper = Exception("wrapped")
    wrapper.__cause__ = error
    return wrapper


def test_an_errors_code_is_found_below_what_wraps_it() -> None:
    busy, missing = psycopg.errors.LockNotAvailable(), pymysql.err.ProgrammingError(1146, "no such table")
    assert code_of(busy) == code_of(Wrapped(busy)) == code_of(caused(busy)) == code_of(caused(Wrapped(busy))) == "55P03"
    assert code_of(missing) == code_of(Wrapped(missing)) == code_of(caused(missing)) == 1146
    assert code_of(ValueError(1146)) is None
    assert code_of(pymysql.err.InterfaceError("(0, '')")) is None
