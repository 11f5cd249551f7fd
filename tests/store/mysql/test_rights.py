"""Who may do what: the least that a user needs, what `dibs doctor --ddl` prints laid by another, first use by many at
once, servers that are refused; and texts that name the next step and no secret.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest

import dibs
from lab.servers import ports, shared_mariadb
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.witness import fresh_name
from store.mysql.rows import Raw

SECRET = "s3cret-and-more"


def connected(server: Server) -> dibs.Client:
    return dibs.connect(server.url())


class Office:
    """A fresh database on the shared server, with a user who has some rights there."""

    def __init__(self, root: Raw, rights: str) -> None:
        self.database = fresh_name().replace("-", "_")
        self._root, self._user = root, self.database
        root.ask(f"CREATE DATABASE {self.database}")
        root.ask(f"CREATE USER {self._user}@'%%' IDENTIFIED BY '{SECRET}'".replace("%%", "%"))
        if rights:
            root.ask(f"GRANT {rights} ON {self.database}.* TO {self._user}@'%'")

    @property
    def url(self) -> str:
        return f"mysql://{self._user}:{SECRET}@{ports.HOST}:{shared_mariadb.mariadb().port}/{self.database}"

    @property
    def of_root(self) -> str:
        return shared_mariadb.mariadb().url(database=self.database)

    def lay(self) -> None:
        """By another, who may, as the program `mariadb` reads it."""
        told = subprocess.run(
            [sys.executable, "-m", "dibs.cli", "doctor", "--ddl", "--url", self.url],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert SECRET not in told.stdout + told.stderr
        shared_mariadb.mariadb().kind.cli(told.stdout)  # type: ignore[attr-defined]  # of MariaDB's

    def close(self) -> None:
        self._root.ask(f"DROP DATABASE {self.database}")
        self._root.ask(f"DROP USER {self._user}@'%'")


@pytest.fixture
def root() -> Iterator[Raw]:
    with closing(Raw(shared_mariadb.mariadb().port)) as made:
        yield made


def use(url: str) -> None:
    """Hold, hand over, look, list."""
    with closing(dibs.connect(url)) as client, closing(dibs.connect(url)) as other:
        with client.lock("a") as hold:
            assert client.inspect("a").holders[0].token == hold.token
            assert other.lock("a").acquire(timeout=0) is None
        with other.rwlock("b").read, client.semaphore("c", 2):
            assert [info.name for info in client.locks()] == ["b", "c"]
        cell = client.cell("d")
        cell.update(lambda _: b"1")
        client.fence("e").admit(5)


def test_the_least_rights_with_what_another_laid(root: Raw) -> None:
    with closing(Office(root, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")) as office:
        office.lay()
        use(office.url)
        office.lay()  # a second time it changes nothing
        use(office.url)
        with closing(dibs.connect(office.url)) as client:
            assert not [finding for finding in client.doctor() if finding.level == "danger"]


def test_with_the_right_to_create_nobody_need_lay_anything(root: Raw) -> None:
    rights = "SELECT, INSERT, UPDATE, DELETE, EXECUTE, CREATE, CREATE ROUTINE"
    with closing(Office(root, rights)) as office:
        use(office.url)


def test_without_the_right_to_create_one_is_told_what_to_do(root: Raw) -> None:
    with closing(Office(root, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")) as office:
        with closing(dibs.connect(office.url)) as client, pytest.raises(dibs.StoreError) as caught:
            client.lock("a").acquire()
        assert not isinstance(caught.value, dibs.StoreUnavailable)
        text = str(caught.value)
        assert '"a"' in text
        assert office.database in text
        assert "dibs doctor --ddl" in text
        assert SECRET not in text


def test_a_user_without_the_rights(root: Raw) -> None:
    """A clear error, at once, and nothing is asked over and over."""
    with closing(Office(root, "EXECUTE")) as office, closing(dibs.connect(office.of_root)) as admin:
        with admin.lock("a"):
            pass
        with closing(dibs.connect(office.url)) as client:
            for act in (lambda: client.lock("a").acquire(), lambda: client.cell("a").get()):
                with pytest.raises(dibs.StoreError) as caught:
                    act()
                assert "denied" in str(caught.value)
                assert SECRET not in str(caught.value)


def test_a_wrong_password(root: Raw) -> None:
    with closing(Office(root, "EXECUTE")) as office:
        wrong = office.url.replace(SECRET, "wr0ng-and-more")
        with closing(dibs.connect(wrong)) as client, pytest.raises(dibs.StoreError) as caught:
            client.lock("a").acquire(timeout=5)
        assert not isinstance(caught.value, dibs.StoreUnavailable)
        assert "denied" in str(caught.value)
        assert "wr0ng" not in repr(caught.value) + str(caught.value)
        assert caught.value.__cause__ is None


def test_no_such_database(root: Raw) -> None:
    url = shared_mariadb.mariadb().url(database="nowhere")
    with closing(dibs.connect(url)) as client, pytest.raises(dibs.StoreError, match="Unknown database"):
        client.lock("a").acquire(timeout=5)


TAKER = """
import sys, dibs
with dibs.connect(sys.argv[1]) as client:
    sys.stdin.readline()
    for _ in range(3):
        with client.lock("a", timeout=60) as hold:
            print(hold.token, flush=True)
"""


def test_first_use_by_twenty_processes_at_once(root: Raw) -> None:
    with closing(Office(root, "ALL")) as office:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", TAKER, office.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(20)
        ]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        said = [child.communicate(timeout=100)[0] for child in children]
        assert [child.returncode for child in children] == [0] * 20
        tokens = [int(word) for text in said for word in text.split()]
        assert len(tokens) == len(set(tokens)) == 60


def test_a_server_that_writes_what_it_cannot_replay() -> None:
    """It refuses READ COMMITTED by itself; the error says what to set."""
    require("mariadb")
    with Server(MariaDB("--log-bin=log", "--binlog-format=STATEMENT")) as server:
        with closing(dibs.connect(server.url())) as client:
            with pytest.raises(dibs.StoreError, match="binlog_format"):
                client.lock("a").acquire(timeout=5)
            dangers = [finding for finding in client.doctor() if finding.level == "danger"]
            assert any("binlog_format" in finding.what for finding in dangers)
        server.ask("SET GLOBAL binlog_format = 'ROW'")
        with closing(dibs.connect(server.url())) as client, client.lock("a"):
            pass


def test_a_server_that_is_read_only(root: Raw) -> None:
    """Asked again until the deadline; then the error says where to go. Who has SUPER may write there all the same."""
    with closing(Office(root, "SELECT, INSERT, UPDATE, DELETE, EXECUTE, CREATE, CREATE ROUTINE")) as office:
        use(office.url)
        root.ask("SET GLOBAL read_only = 1")
        try:
            with closing(dibs.connect(office.url)) as client:
                with pytest.raises(dibs.StoreUnavailable, match="read-only"):
                    client.lock("a").acquire(timeout=1)
                assert any("read-only" in finding.what for finding in client.doctor() if finding.level == "danger")
        finally:
            root.ask("SET GLOBAL read_only = 0")
        use_again = dibs.connect(office.url)
        with closing(use_again), use_again.lock("a", timeout=10):
            pass


def test_settings_that_endanger_what_is_promised() -> None:
    require("mariadb")
    with Server(MariaDB("--innodb-flush-log-at-trx-commit=2")) as server, closing(connected(server)) as client:
        (note,) = [finding for finding in client.doctor() if "not there yet" in finding.what]
        assert "--ddl" in note.cure
        with client.lock("a"):
            pass
        dangers = [finding for finding in client.doctor() if finding.level == "danger"]
        assert [finding for finding in dangers if "innodb_flush_log_at_trx_commit" in finding.cure]
        server.ask("ALTER TABLE dibs_tombs ENGINE = MyISAM")
        (danger,) = [finding for finding in client.doctor() if "MyISAM" in finding.what]
        assert "InnoDB" in danger.cure
        server.ask("DROP PROCEDURE dibs_1_leave")
        assert [finding for finding in client.doctor() if "dibs_1_leave" in finding.what]
        with client.lock("a"):  # made anew when it is missed
            pass


def let_in(server: Server) -> Raw | None:
    try:
        return Raw(server.port)
    except pymysql.OperationalError as error:
        if error.args[0] != 1040:
            raise
        return None


def test_too_many_connections() -> None:
    """Whoever finds no room asks again until the deadline, and is let in when there is some."""
    require("mariadb")
    with Server(MariaDB("--max-connections=10")) as server:
        with closing(dibs.connect(server.url())) as client, client.lock("a"):
            pass
        with closing(Raw(server.port)) as first:
            crowd = [first]
            while (one := let_in(server)) is not None:
                crowd.append(one)
            with closing(dibs.connect(server.url())) as client:
                with pytest.raises(dibs.StoreUnavailable, match=r"[Tt]oo many connections|a moment ago"):
                    client.lock("a").acquire(timeout=1)
                for one in crowd[1:]:
                    one.close()
                with client.lock("a", timeout=20):
                    pass
