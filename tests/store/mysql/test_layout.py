"""The version of the layout: clients of an older one are refused where this one is, and its tables are refused here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pymysql
import pytest

import dibs
from dibs.backends.mysql import calls, connection, wire
from dibs.backends.mysql.session import connection as sessions
from lab.servers.programs import require
from sql.databases import own_database
from sql.openers import mysql_options

LAYOUT_1 = (
    "CREATE TABLE dibs_names (name VARBINARY(2048) NOT NULL PRIMARY KEY, floor BIGINT UNSIGNED NOT NULL,"
    " outside BIGINT NOT NULL, tombs BIGINT NOT NULL, apart TINYINT NOT NULL)"
)
THERE = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() UNION ALL"
    " SELECT routine_name FROM information_schema.routines WHERE routine_schema = DATABASE()"
)
Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def url() -> str:
    require("mariadb")
    return own_database.__wrapped__("mysql")  # one for each test


@pytest.fixture
def own(url: str) -> Iterator[Any]:
    with closing(pymysql.connect(**mysql_options(url))) as made:
        yield made


@pytest.fixture
def ask(own: Any) -> Ask:
    def asked(text: str) -> list[tuple[Any, ...]]:
        with own.cursor() as cursor:
            cursor.execute(text)
            rows = list(cursor.fetchall())
        own.commit()
        return rows

    return asked


@pytest.fixture
def older(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dibs.Client]]:
    """Makes clients that ask as those of layout 1 did: by other routines, and without the free path."""
    with ExitStack() as stack:

        def call(routine: str, arguments: Sequence[wire.Argument]) -> bytes:
            return wire.call(routine, arguments).replace(b"CALL dibs_2_", b"CALL dibs_1_", 1)

        def made(mode: str) -> dibs.Client:
            monkeypatch.setattr(calls, "call", call)
            monkeypatch.setattr(connection, "TAKE", "refused")
            monkeypatch.setattr(sessions, "TAKE", sessions.TAKE.replace("dibs_sessions", "dibs_held"))
            return stack.enter_context(dibs.connect(url, mode=mode))

        yield made


@pytest.mark.parametrize("mode", ["lease", "session"])
def test_tables_of_an_older_layout_are_refused_and_left_alone(url: str, ask: Ask, mode: str) -> None:
    ask(LAYOUT_1)
    with dibs.connect(url, mode=mode) as client:
        for timeout in (0, 5):
            with pytest.raises(dibs.Mismatch, match=r"created by dibs 0\.1.*DROP TABLE dibs_names"):
                client.lock("a").acquire(timeout=timeout)
        assert ask(THERE) == [("dibs_names",)]
        ask("DROP TABLE dibs_names")
        with client.lock("a", timeout=10):
            assert ("dibs_queues",) in ask(THERE)


@pytest.mark.parametrize("mode", ["lease", "session", "within"])
def test_clients_of_an_older_layout_are_refused(
    url: str, own: Any, ask: Ask, older: Callable[[str], dibs.Client], mode: str
) -> None:
    """Also where its routines were left behind, and after a name was free again; what they did changes nothing."""
    ask("CREATE PROCEDURE dibs_1_join() SELECT 'of layout 1'")
    with dibs.connect(url) as newer:
        newer.lock("a").acquire().release()
        rows = ask("SELECT * FROM dibs_queues")
        old = older("session" if mode == "session" else "lease")
        lock: Any = old.within(own).lock("a") if mode == "within" else old.lock("a")
        with pytest.raises(dibs.Mismatch, match=None if mode == "within" else "a queue of a newer version of dibs"):
            lock.acquire(timeout=0)
        own.rollback()
    assert ask("SELECT * FROM dibs_queues") == rows
    assert not ask("SELECT * FROM dibs_claims")
    assert not ask("SELECT * FROM dibs_held")
