"""What a URL, an option or an engine says; and what makes no sense, said without a secret."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

import dibs
from dibs.backends.mysql.address import Address
from dibs.url import parse
from lab.servers import ports, shared_mariadb
from lab.servers.mariadb import NAME

SECRET = "s3cret"
WHERE = f"mysql://ana:{SECRET}@db/shop"


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("mysql://db", {}, "names one database"),
        ("mysql://db/a/b", {}, "names one database"),
        ("mysql:///shop", {}, "names no server"),
        ("mysql://h1,h2/shop", {}, "one server"),
        (f"{WHERE}?password={SECRET}", {}, "does not go into the query"),
        (f"{WHERE}?colour=red", {}, "no option colour="),
        (WHERE, {"connections": 0}, "at least 1"),
        (WHERE, {"tls": "maybe"}, "tls="),
        (WHERE, {"tls": "off", "ca": "/ca.pem"}, "means nothing with tls=off"),
        (WHERE, {"key": "/key.pem"}, "certificate="),
        (WHERE, {"socket": "/run/socket"}, "exclude each other"),
        (f"mysql://db/{'x' * 65}", {}, "no name of a database"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_io(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        dibs.connect(url, **options)
    assert SECRET not in str(caught.value)


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="colour"):
        dibs.connect(WHERE, colour="red")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_what_is_shown(scheme: str) -> None:
    client = dibs.connect(f"{scheme}://ana:{SECRET}@db:3307/shop?prefix=a:")
    assert f"{scheme}://db:3307/shop" in repr(client)
    assert SECRET not in repr(client)
    assert SECRET not in repr(Address.of(parse(WHERE)))


def engine_url(driver: str) -> str:
    port = shared_mariadb.mariadb().port
    return f"{driver}://{NAME}:{NAME}@{ports.HOST}:{port}/{NAME}"


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_an_engine_is_taken_by_its_settings(dialect: str) -> None:
    engine = sqlalchemy.create_engine(engine_url(f"{dialect}+pymysql"))
    with closing(dibs.connect(engine, prefix="engine:")) as client, client.lock("a") as hold:
        assert hold.token
        assert client._core.shown.startswith(f"{dialect}://{ports.HOST}:")


def test_what_an_engine_was_given_beside_its_url_counts() -> None:
    port = shared_mariadb.mariadb().port
    engine = sqlalchemy.create_engine(
        f"mysql+pymysql://{NAME}@{ports.HOST}:{port}/{NAME}", connect_args={"password": NAME}, poolclass=NullPool
    )
    with closing(dibs.connect(engine)) as client, client.lock("beside"):
        pass


def test_an_engine_of_the_other_face() -> None:
    made = create_async_engine(engine_url("mysql+asyncmy"))
    with closing(dibs.connect(made, prefix="async:")) as client, client.lock("a"):
        pass


def test_engines_that_cannot_be_taken() -> None:
    with pytest.raises(TypeError, match="no store is known for an engine of sqlite"):
        dibs.connect(sqlalchemy.create_engine("sqlite://"))
    with pytest.raises(TypeError, match="creator="):
        dibs.connect(sqlalchemy.create_engine("mysql+pymysql://db/shop", creator=lambda: None))
    with pytest.raises(ValueError, match="names no database"):
        dibs.connect(sqlalchemy.create_engine("mysql+pymysql://db"))


def test_a_name_that_is_too_long_with_its_prefix(url: str) -> None:
    with closing(dibs.connect(f"{url}{'p' * 2048}")) as client, pytest.raises(dibs.BadName, match="2048"):
        client.lock("a").acquire()
