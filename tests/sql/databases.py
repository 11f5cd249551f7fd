"""A database for the tests of this process alone, on each SQL server of a run: its tables, sessions and locks belong to
no other process."""

from __future__ import annotations

import atexit
import functools
import secrets
from contextlib import closing, suppress
from typing import Any

import psycopg
import pymysql

from lab.servers import shared_mariadb, shared_postgresql


@functools.cache
def own_database(store: str) -> str:
    """Its URL."""
    name = f"own_{secrets.token_hex(4)}"
    _run(store, f"CREATE DATABASE {name}")
    atexit.register(_drop, store, name)
    server = shared_mariadb.mariadb() if store == "mysql" else shared_postgresql.postgresql()
    return server.url(database=name)


def _drop(store: str, name: str) -> None:
    with suppress(OSError, psycopg.Error, pymysql.Error):  # the server may have ended first
        _run(store, f"DROP DATABASE {name}{' WITH (FORCE)' if store == 'postgresql' else ''}")


def _run(store: str, statement: str) -> None:
    if store == "mysql":
        made: Any = pymysql.connect(host="127.0.0.1", port=shared_mariadb.mariadb().port, user="dibs", password="dibs")
    else:
        made = psycopg.connect(shared_postgresql.postgresql().url(), autocommit=True)
    with closing(made), made.cursor() as cursor:
        cursor.execute(statement)
