"""Databases whose default character set is another: names, user locks and numbers mean the same in all of them."""

from __future__ import annotations

import re
from contextlib import closing

import pymysql
import pytest

import dibs
from dibs.backends.mysql import schema
from lab.servers.supervisor import Server
from sql.openers import mysql_options
from store.mysql.rows import Raw

CHARACTER_SETS = ["ucs2", "utf16", "utf16le", "utf32", "binary", "sjis"]


@pytest.mark.parametrize("characters", CHARACTER_SETS)
def test_modes_exclude_each_other(server: Server, characters: str) -> None:
    database = f"in_{characters}"
    with closing(Raw(server.port)) as raw:
        raw.ask(f"CREATE DATABASE {database} CHARACTER SET {characters}")
    url = server.url(database=database)
    own = pymysql.connect(**mysql_options(url))
    with closing(own), dibs.connect(url, lease=60) as leases, dibs.connect(f"{url}?mode=session", lease=60) as session:
        with leases.lock("näme") as hold, leases.semaphore("s", 2) as first, leases.semaphore("s", 2) as second:
            for other in (session, session.within(own)):
                with pytest.raises(dibs.Mismatch):
                    other.lock("näme").acquire(timeout=0)
            own.rollback()
            assert leases.lock("näme").acquire(timeout=0.1) is None
            assert first.token < second.token
            before = hold.token
        with session.lock("näme") as hold:
            assert hold.token > before
            assert [one.token for one in leases.inspect("näme").holders] == []
            assert [one.token for one in session.inspect("näme").holders] == [hold.token]
            for other in (leases, leases.within(own)):
                with pytest.raises(dibs.Mismatch):
                    other.lock("näme").acquire(timeout=0)
            own.rollback()
            before = hold.token
        with leases.within(own).lock("näme") as hold:
            assert hold.token > before
            for other in (leases, session):
                with pytest.raises(dibs.Mismatch):
                    other.lock("näme").acquire(timeout=0)
            own.rollback()
        assert leases.cell("c").set("ä".encode(), 0) == 1
        leases.fence("f").admit(before)


def test_no_routine_takes_the_character_set_of_its_database() -> None:
    texts = (*schema.tables(), *map(schema.routine, schema.ROUTINES))
    for text in texts:
        assert not re.search(
            r"\b(?<!AS )(CHAR|VARCHAR|MEDIUMTEXT|TEXT)\b(\(\d+\))?(?! CHARACTER SET)(?!_)", text, re.ASCII
        ), text
