"""Servers whose settings endanger what is promised: what the store refuses, and what `doctor` says of them."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any

import pymysql
import pytest

import dibs
from dibs.backends.mysql.calls import query
from dibs.backends.mysql.executor import MysqlExecutor
from dibs.backends.mysql.wire import Refusal
from dibs.core.queue import Unsent
from dibs.runtime.threads import ThreadRuntime, step
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server, until
from store.mysql.rows import Raw

MOST = 10


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


def let_in(server: Server) -> Raw | None:
    try:
        return Raw(server.port)
    except pymysql.OperationalError as error:
        if error.args[0] != 1040:
            raise
        return None


def is_full(server: Server, raw: Raw, crowd: ExitStack) -> bool:
    """Whether all sessions are ours after as many as possible were added; the server lets one more in than it says."""
    while (one := let_in(server)) is not None:
        crowd.enter_context(closing(one))
    return len([raw, *raw.others()]) == MOST + 1


def test_too_many_connections(server: Server) -> None:
    """A caller that finds no room asks again until the deadline, and is let in when there is some."""
    with dibs.connect(server.url()) as client, client.lock("a", timeout=30):
        pass
    server.ask(f"SET GLOBAL max_connections = {MOST}")
    try:
        with ExitStack() as crowd, dibs.connect(server.url()) as client:
            raw = crowd.enter_context(closing(Raw(server.port)))
            until(lambda: not raw.others(), what="the server has ended all earlier sessions")  # which would leave room
            until(lambda: is_full(server, raw, crowd), what="no session that is just ending leaves room")
            with pytest.raises(dibs.StoreUnavailable, match=r"[Tt]oo many connections|a moment ago"):
                client.lock("a").acquire(timeout=1)
            crowd.close()
            with client.lock("a", timeout=60):
                pass
    finally:
        server.ask("SET GLOBAL max_connections = 150")
