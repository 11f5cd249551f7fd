"""Existing drivers: their settings are taken, their connections are not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

import dibs
import dibs.aio
from dibs.backends.postgresql.address import Address

SECRET = "s3cret-word"


def pool(kind: Any, place: str, **more: Any) -> Any:
    return kind(place, open=False, min_size=1, max_size=5, **more)


def engine(make: Any, place: str, **more: Any) -> Any:
    return make(place.replace("postgresql://", "postgresql+psycopg://"), pool_size=5, **more)


MADE = {
    "pool": lambda place, **more: pool(ConnectionPool, place, **more),
    "async pool": lambda place, **more: pool(AsyncConnectionPool, place, **more),
    "engine": lambda place, **more: engine(create_engine, place, **more),
    "async engine": lambda place, **more: engine(create_async_engine, place, **more),
}


@pytest.mark.parametrize("which", MADE)
def test_it_is_taken_by_both_faces(url: str, which: str) -> None:
    place, _, schema = url.partition("?schema=")
    driver = MADE[which](place)
    with dibs.connect(driver, schema=schema) as client, client.lock("a", timeout=10) as hold:
        hold.check()
        with dibs.connect(url) as other:
            assert other.lock("a").acquire(timeout=0) is None

    async def again() -> None:
        async with dibs.aio.connect(driver, schema=schema) as client, client.lock("a", timeout=10) as hold:
            hold.check()

    asyncio.run(again())


@pytest.mark.parametrize("which", MADE)
def test_what_it_says_is_kept_to_and_not_shown(which: str) -> None:
    address = Address.of_driver(MADE[which](f"postgresql://ana:{SECRET}@h:5433/app"))
    assert repr(address) == "<Address postgresql://h:5433/app>"
    assert address.connections == 5
    (attempt,) = address.attempts()
    assert SECRET in attempt.conninfo.decode()
    assert SECRET not in repr(attempt)


def test_arguments_of_an_engine() -> None:
    made = create_engine("postgresql+psycopg://h/app", connect_args={"sslmode": "require", "autocommit": True})
    assert b"sslmode=require" in Address.of_driver(made).attempts()[0].conninfo


def test_arguments_of_a_pool() -> None:
    made = ConnectionPool("host=h", kwargs={"dbname": "app", "autocommit": True, "sslmode": "require"}, open=False)
    conninfo = Address.of_driver(made).attempts()[0].conninfo
    assert b"sslmode=require" in conninfo
    assert b"autocommit" not in conninfo


def test_an_engine_on_something_else() -> None:
    with pytest.raises(TypeError, match="no store is known for an engine of sqlite"):
        dibs.connect(create_engine("sqlite://"))


def test_an_engine_with_a_creator() -> None:
    with pytest.raises(TypeError, match="creator"):
        dibs.connect(create_engine("postgresql+psycopg://h/app", creator=lambda: None))
