"""URLs, options and existing drivers of the two databases: wrong ones are refused before any I/O, and no secret is
shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import dibs
import dibs.aio
from dibs.backends.mysql.address import Address as MysqlAddress
from dibs.backends.postgresql.address import Address as PostgresqlAddress
from dibs.url import parse
from lab.servers import ports, shared_mariadb, shared_postgresql
from sql.openers import alchemy_url

SECRET = "s3cret-word"
SHOP, APP = f"mysql://ana:{SECRET}@db/shop", f"postgresql://ana:{SECRET}@h/app"
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("mysql://db", {}, "names one database"),
    ("mysql://db/a/b", {}, "names one database"),
    ("mysql:///shop", {}, "names no server"),
    ("mysql://h1,h2/shop", {}, "one server"),
    (f"{SHOP}?password={SECRET}", {}, "do not put the login into the query"),
    (f"{SHOP}?lease=5", {}, "lease= does not go into the URL"),
    (f"{SHOP}?colour=red", {}, "no option colour="),
    (SHOP, {"connections": 0}, "at least 1"),
    (SHOP, {"tls": "maybe"}, "tls="),
    (SHOP, {"tls": "off", "ca": "/ca.pem"}, "has no effect with tls=off"),
    (SHOP, {"key": "/key.pem"}, "certificate="),
    (SHOP, {"socket": "/run/socket"}, "exclude each other"),
    (f"mysql://db/{'x' * 65}", {}, "not a database name"),
    (f"{APP}/b", {}, "one database"),
    (f"{APP}?nonsense=1", {}, "no option nonsense="),
    (f"{APP}?host=other", {}, "host= is given twice"),
    (f"{APP}?user=bob", {}, "user= is given twice"),
    (f'{APP}?schema=a"b', {}, "schema= must be"),
    (f"{APP}?schema=1a", {}, "schema= must be"),
    (f"{APP}?wake=never", {}, "wake= must be"),
    (f"{APP}?connections=0", {}, "at least 1"),
    (f"{APP}?client_encoding=latin1", {}, "no option client_encoding="),
]


def test_wrong_urls_and_options_are_refused() -> None:
    for url, options, why in WRONG:
        with pytest.raises(ValueError, match=why) as caught:
            dibs.connect(url, **options)
        assert SECRET not in str(caught.value), url
    for url in (SHOP, APP):
        with pytest.raises(TypeError, match="colour"):
            dibs.connect(url, colour="red")


def test_no_secret_is_shown() -> None:
    for scheme in ("mysql", "mariadb"):
        client = dibs.connect(f"{scheme}://ana:{SECRET}@db:3307/shop?prefix=a:")
        assert f"{scheme}://db:3307/shop" in repr(client)
        assert SECRET not in repr(client)
    assert SECRET not in repr(MysqlAddress.of(parse(SHOP)))


def conninfos(url: str) -> list[str]:
    return [attempt.conninfo.decode() for attempt in PostgresqlAddress.of(parse(url)).attempts]


def test_the_conninfo_for_libpq() -> None:
    (one,) = conninfos(f"postgresql://ana:{SECRET}@h:5433/app?sslmode=verify-full&application_name=my%20app")
    for part in ("user=ana", f"password={SECRET}", "host=h", "port=5433", "dbname=app", "sslmode=verify-full"):
        assert part in one
    assert "application_name='my app'" in one
    assert "host=/run/postgresql" in conninfos("postgresql:///app?host=/run/postgresql")[0]
    assert "host=" not in conninfos("postgresql://")[0]
    (one,) = conninfos("postgresql://ana:a%20b%27c%5C%20host=evil@h/app")
    assert r"password='a b\'c\\ host=evil'" in one
    one, two = conninfos("postgres://h1,h2:5433/app")  # one that can be written to is looked for
    assert "host=h1" in one
    assert "host=h2 port=5433" in two
    assert "target_session_attrs=read-write" in one
    assert "target_session_attrs=any" in conninfos("postgres://h1,h2/app?target_session_attrs=any")[0]


def test_a_secret_in_the_wrong_place_is_not_repeated() -> None:
    """libpq repeats what it does not understand."""
    with dibs.connect(f"postgresql://127.0.0.1:1/app?sslmode={SECRET}") as client:
        with pytest.raises(dibs.StoreError) as caught:
            client.lock("a").acquire(timeout=30)
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(caught.value.__dict__)


def test_a_name_that_is_too_long_with_its_prefix(tmp_path: Path) -> None:
    url = shared_mariadb.fresh(tmp_path)
    with dibs.connect(f"{url}{'p' * 2048}") as client, pytest.raises(dibs.BadName, match="2048"):
        client.lock("a").acquire()


# Existing drivers: their settings are taken, their connections are not

Make = Callable[[str], Any]
DRIVERS: dict[str, Make] = {
    "postgresql pool": lambda url: ConnectionPool(url, open=False, min_size=1, max_size=5),
    "postgresql async pool": lambda url: AsyncConnectionPool(url, open=False, min_size=1, max_size=5),
    "postgresql engine": lambda url: sqlalchemy.create_engine(alchemy_url(url, "psycopg"), pool_size=5),
    "postgresql async engine": lambda url: create_async_engine(alchemy_url(url, "psycopg"), pool_size=5),
    "mysql engine": lambda url: sqlalchemy.create_engine(alchemy_url(url, "pymysql")),
    "mysql async engine": lambda url: create_async_engine(alchemy_url(url, "asyncmy")),
    "mariadb engine": lambda url: sqlalchemy.create_engine(url.replace("mysql://", "mariadb+pymysql://")),
}


FIRST = ("postgresql pool", "mysql async engine")


@pytest.mark.parametrize(
    "which", [pytest.param(which, marks=() if which in FIRST else pytest.mark.gate) for which in DRIVERS]
)
def test_it_is_taken_by_both_apis(tmp_path: Path, which: str) -> None:
    shared = shared_postgresql if which.startswith("postgresql") else shared_mariadb
    url = shared.fresh(tmp_path)
    place, _, more = url.partition("?")
    option, _, value = more.partition("=")
    driver, options = DRIVERS[which](place), {option: value}
    with dibs.connect(driver, **options) as client, client.lock("a", timeout=30) as hold:
        assert client._core.shown.startswith(f"{which.split(maxsplit=1)[0]}://{ports.HOST}:")
        hold.check()
        with dibs.connect(url) as other:
            assert other.lock("a").acquire(timeout=0) is None

    async def again() -> None:
        async with dibs.aio.connect(driver, **options) as client, client.lock("a", timeout=30) as hold:
            hold.check()

    asyncio.run(again())


def test_its_settings_are_kept_to_and_not_shown() -> None:
    for which in (which for which in DRIVERS if which.startswith("postgresql")):
        address = PostgresqlAddress.of_driver(DRIVERS[which](f"postgresql://ana:{SECRET}@h:5433/app"))
        assert repr(address) == "<Address postgresql://h:5433/app>"
        assert address.connections == 5
        (attempt,) = address.attempts
        assert SECRET in attempt.conninfo.decode()
        assert SECRET not in repr(attempt)


def test_arguments_of_a_driver_beside_its_url_count() -> None:
    arguments = {"sslmode": "require", "autocommit": True}
    for made in (
        sqlalchemy.create_engine("postgresql+psycopg://h/app", connect_args=arguments),
        ConnectionPool("host=h", kwargs={"dbname": "app", **arguments}, open=False),
    ):
        conninfo = PostgresqlAddress.of_driver(made).attempts[0].conninfo
        assert b"sslmode=require" in conninfo
        assert b"autocommit" not in conninfo
    without = alchemy_url(shared_mariadb.mariadb().url(), "pymysql").replace(":dibs@", "@")
    engine = sqlalchemy.create_engine(without, connect_args={"password": "dibs"}, poolclass=NullPool)
    with dibs.connect(engine) as client, client.lock("beside", timeout=30):
        pass


def test_drivers_that_cannot_be_taken() -> None:
    with pytest.raises(TypeError, match="no store for an engine of sqlite"):
        dibs.connect(sqlalchemy.create_engine("sqlite://"))
    for url in ("mysql+pymysql://db/shop", "postgresql+psycopg://h/app"):
        with pytest.raises(TypeError, match="creator"):
            dibs.connect(sqlalchemy.create_engine(url, creator=lambda: None))
    with pytest.raises(ValueError, match="has no database"):
        dibs.connect(sqlalchemy.create_engine("mysql+pymysql://db"))
    with closing(psycopg.connect(shared_postgresql.postgresql().url())) as plain, pytest.raises(TypeError):
        dibs.connect(plain)  # type: ignore[arg-type]
