"""Servers whose settings endanger what is promised: what the store refuses, and what `doctor` says of them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

import dibs
from dibs.backends.mysql import schema
from dibs.backends.mysql.calls import query
from dibs.backends.mysql.executor import MysqlExecutor
from dibs.backends.mysql.wire import Refusal
from dibs.core.queue import Unsent
from dibs.runtime.threads import ThreadRuntime, step
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from sql.databases import own_database
from sql.openers import mysql_options
from store.mysql.rows import Raw

pytestmark = pytest.mark.gate


def test_a_server_that_writes_what_it_cannot_replay() -> None:
    """It refuses READ COMMITTED by itself; the error says what to set."""
    require("mariadb")
    with Server(MariaDB("--log-bin=log", "--binlog-format=STATEMENT")) as server:
        with closing(dibs.connect(server.url())) as client:
            with pytest.raises(dibs.StoreError, match="binlog_format"):
                client.lock("a").acquire(timeout=30)
            dangers = [finding for finding in client.doctor() if finding.level == "danger"]
            assert any("binlog_format" in finding.what for finding in dangers)
        server.ask("SET GLOBAL binlog_format = 'ROW'")
        with closing(dibs.connect(server.url())) as client, client.lock("a"):
            pass


def test_settings_that_endanger_what_is_promised() -> None:
    require("mariadb")
    with Server(MariaDB("--innodb-flush-log-at-trx-commit=2")) as server, closing(dibs.connect(server.url())) as client:
        (note,) = [finding for finding in client.doctor() if "do not exist yet" in finding.what]
        assert "--ddl" in note.fix
        with client.lock("a"):
            pass
        dangers = [finding for finding in client.doctor() if finding.level == "danger"]
        assert [finding for finding in dangers if "innodb_flush_log_at_trx_commit" in finding.fix]
        server.ask("ALTER TABLE dibs_tombs ENGINE = MyISAM")
        (danger,) = [finding for finding in client.doctor() if "MyISAM" in finding.what]
        assert "InnoDB" in danger.fix
        server.ask("DROP PROCEDURE dibs_2_leave")
        assert [finding for finding in client.doctor() if "dibs_2_leave" in finding.what]
        with client.lock("a"):  # made anew when it is missed
            pass


def test_a_server_that_is_read_only(server: Server) -> None:
    """Asked again until the deadline; then the error says where to go. A user with SUPER may write there anyway."""
    server.ask("CREATE USER poor@'%' IDENTIFIED BY 'pw'; GRANT ALL ON dibs.* TO poor@'%'")
    with dibs.connect(server.url(user="poor", password="pw")) as client:
        with client.lock("a", timeout=30):
            pass
        server.ask("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(dibs.StoreUnavailable, match="read-only"):
                client.lock("a").acquire(timeout=5)
            assert any("read-only" in finding.what for finding in client.doctor() if finding.level == "danger")
        finally:
            server.ask("SET GLOBAL read_only = 0")
        with client.lock("a", timeout=60):
            pass


class Refusing:
    """A wire to a server that refuses to write, and after that takes no connection, or is silent until the end."""

    def __init__(self, after: dibs.StoreUnavailable) -> None:
        self.refusals = [Refusal(1290, "running with the --read-only option")]
        self.after, self.runtime = after, ThreadRuntime()

    async def exchange(self, _: object, until: float) -> Any:
        if self.refusals:
            raise self.refusals.pop()
        if not isinstance(self.after, Unsent):
            await self.runtime.sleep(max(until - self.runtime.now(), 0.0))
        raise self.after


@pytest.mark.parametrize("after", [Unsent("no connection"), dibs.StoreUnavailable("silent")], ids=["unsent", "silent"])
def test_a_refusal_is_told_though_there_is_no_time_to_ask_again(after: dibs.StoreUnavailable) -> None:
    wire: Any = Refusing(after)
    executor = MysqlExecutor(wire, wire, ThreadRuntime())
    with pytest.raises(dibs.StoreUnavailable, match="read-only"):
        step(executor.ask(query("SELECT 1"), ThreadRuntime().now() + 0.5))


@pytest.mark.parametrize("mode", ["lease", "session"])
def test_layout_1_is_refused_and_refuses(mode: str) -> None:
    """Its tables are left alone. Its clients are refused by routines of the names that they call."""
    require("mariadb")
    url = own_database.__wrapped__("mysql")  # one for each test
    options = mysql_options(url)
    with dibs.connect(url, mode=mode) as client, closing(Raw(options["port"], database=options["database"])) as raw:
        raw.ask("CREATE TABLE dibs_names (name VARBINARY(2048) NOT NULL PRIMARY KEY)")
        with pytest.raises(dibs.Mismatch, match=r"created by dibs 0\.1.*DROP TABLE dibs_names"):
            client.lock("a").acquire(timeout=5)
        assert raw.ask("SHOW TABLES") == [("dibs_names",)]
        raw.ask("DROP TABLE dibs_names")
        raw.ask("CREATE PROCEDURE dibs_1_join() SELECT 'left behind'")
        client.lock("a").acquire(timeout=30).release()
        routines = "SELECT routine_name, routine_definition FROM information_schema.routines WHERE routine_schema = %s"
        refusing = {name: text for name, text in raw.ask(routines, options["database"]) if name.startswith("dibs_1_")}
        assert sorted(refusing) == sorted(f"dibs_1_{name}" for name in schema.REFUSING)
        assert "a queue of a newer version of dibs" in refusing["dibs_1_join"]
