"""Connections of every kind that `dibs.sql` takes, opened as users open them.

The methods of `Opened` are coroutines also for blocking drivers.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import psycopg
import pymysql
import sqlalchemy
from django import setup
from django.conf import settings
from django.db.utils import ConnectionHandler
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool


@dataclass
class Opened:
    connection: Any
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


Opener = Callable[[str], Awaitable[Opened]]
"""Its argument: the URL of a server, or `sqlite:///path`."""


def mysql_options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password,
        "database": parts.path[1:],
        "charset": "utf8mb4",
    }


def opened(connection: Any, *, close: Callable[[], Any] | None = None) -> Opened:
    return Opened(connection, *map(awaited, (connection.commit, connection.rollback, close or connection.close)))


def awaited(function: Callable[[], Any]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        result = function()
        if inspect.isawaitable(result):
            await result

    return call


def alchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://").replace("mysql://", f"mysql+{driver}://")


async def by_sqlite3(url: str) -> Opened:
    return opened(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20, check_same_thread=False))


async def by_psycopg(url: str) -> Opened:
    return opened(psycopg.connect(url, row_factory=psycopg.rows.dict_row))


async def by_async_psycopg(url: str) -> Opened:
    return opened(await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row))


async def by_pymysql(url: str) -> Opened:
    return opened(pymysql.connect(**mysql_options(url), cursorclass=pymysql.cursors.DictCursor))


async def by_asyncmy(url: str) -> Opened:
    connection = await asyncmy.connect(**mysql_options(url))
    return opened(connection, close=connection.ensure_closed)


def alchemy(driver: str, make: Callable[[Any], Any]) -> Opener:
    """`make` gets an engine."""

    async def by_sqlalchemy(url: str) -> Opened:
        return opened(make(sqlalchemy.create_engine(alchemy_url(url, driver), poolclass=NullPool)))

    return by_sqlalchemy


def async_alchemy(driver: str, make: Callable[[Any], Any]) -> Opener:
    async def by_sqlalchemy(url: str) -> Opened:
        made = make(create_async_engine(alchemy_url(url, driver), poolclass=NullPool))
        return opened(await made if isinstance(made, AsyncConnection) else made)

    return by_sqlalchemy


def django_handler(engine: str, url: str) -> ConnectionHandler:
    """It has a connection for each thread."""
    if not settings.configured:
        settings.configure(USE_TZ=True)
        setup()
    parts = urlsplit(url)
    database = {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": url.removeprefix("sqlite:///") if engine == "sqlite3" else parts.path[1:],
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
    return ConnectionHandler({"default": database})


def django(engine: str) -> Opener:
    async def by_django(url: str) -> Opened:
        connection = django_handler(engine, url)["default"]
        connection.set_autocommit(False)
        return opened(connection)

    return by_django


def plain(engine: Any) -> Any:
    return engine.connect()


def scoped(engine: Any) -> Any:
    return scoped_session(sessionmaker(engine))


OPENERS: dict[str, dict[str, Opener]] = {
    "sqlite": {
        "sqlite3": by_sqlite3,
        "sqlalchemy": alchemy("", plain),
        "session": alchemy("", Session),
        "django": django("sqlite3"),
    },
    "postgresql": {
        "psycopg": by_psycopg,
        "async-psycopg": by_async_psycopg,
        "sqlalchemy": alchemy("psycopg", plain),
        "sqlalchemy-psycopg2": alchemy("psycopg2", plain),
        "session": alchemy("psycopg", Session),
        "scoped-session": alchemy("psycopg", scoped),
        "async-sqlalchemy": async_alchemy("psycopg", plain),
        "async-session": async_alchemy("psycopg", AsyncSession),
        "async-asyncpg": async_alchemy("asyncpg", plain),
        "django": django("postgresql"),
    },
    "mysql": {
        "pymysql": by_pymysql,
        "async-asyncmy": by_asyncmy,
        "sqlalchemy": alchemy("pymysql", plain),
        "session": alchemy("pymysql", Session),
        "async-sqlalchemy": async_alchemy("asyncmy", plain),
        "async-session": async_alchemy("asyncmy", AsyncSession),
    },
}
"""By server and kind. The kinds for an event loop begin with `async-`."""
