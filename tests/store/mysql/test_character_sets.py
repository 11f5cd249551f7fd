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


@pytest.mark.gate
@pytest.mark.parametrize("characters", CHARACTER_SETS)
def test_modes_exclude_each_other(server: Server, characters: str) -> None:
    database = f"in_{characters}"
    with closing(Raw(server.port)) as raw:
        raw.ask(f"CREATE DATABASE {database} CHARACTER SET {characters}")
    url, tokens = server.url(database=database), []
    own = pymysql.connect(**mysql_options(url))
    with closing(own), dibs.connect(url, lease=60) as leases, dibs.connect(f"{url}?mode=session", lease=60) as session:
        modes = [leases, session, leases.within(own)]
        for mode in modes:
            with mode.lock("näme") as hold:
                tokens.append(hold.token)
                for other in modes:
                    if other is not mode:
                        with pytest.raises(dibs.Mismatch):
                            other.lock("näme").acquire(timeout=0)
                if mode is session:
                    assert [one.token for one in session.inspect("näme").holders] == [hold.token]
                own.rollback()
        with leases.semaphore("s", 2) as first, leases.semaphore("s", 2) as second:
            assert first.token < second.token
        assert leases.cell("c").set("ä".encode(), 0) == 1
        leases.fence("f").admit(1)
    assert tokens == sorted(set(tokens))


def test_no_routine_takes_the_character_set_of_its_database() -> None:
    texts = (*schema.tables(), *map(schema.routine, schema.ROUTINES))
    for text in texts:
        assert not re.search(
            r"\b(?<!AS )(CHAR|VARCHAR|MEDIUMTEXT|TEXT)\b(\(\d+\))?(?! CHARACTER SET)(?!_)", text, re.ASCII
        ), text
