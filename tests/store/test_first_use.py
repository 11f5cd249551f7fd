"""The tables of the two databases: made by the first client, by many at once, or by another with what
`dibs doctor --ddl` prints; and the least rights that a user needs."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pymysql
import pytest

import dibs
from dibs.cli.main import main
from lab.servers import ports, shared_mariadb, shared_postgresql
from sql.openers import mysql_options

MANY = 6
SECRET = "s3cret-and-more"
Doctor = Callable[..., str]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs `dibs doctor`; returns its output."""

    def run(url: str, *words: str, status: int = 0) -> str:
        capsys.readouterr()
        found, printed = main(["doctor", "--url", url, *words]), capsys.readouterr()
        assert found == status, printed
        assert SECRET not in printed.out + printed.err
        return printed.out

    return run


class Office:
    """A fresh database on MariaDB or a fresh schema on PostgreSQL, and a user who has no rights there yet."""

    def __init__(self, store: str, stack: ExitStack) -> None:
        self.store = store
        self.user = f"user_{secrets.token_hex(6)}"
        if store == "mysql":
            server, self._database = shared_mariadb.mariadb(), self.user
            self.admin = server.url(database=self._database)
            login = {**mysql_options(server.url()), "autocommit": True}
            self._connection: Any = stack.enter_context(closing(pymysql.connect(**login)))
            self.run(f"CREATE DATABASE {self._database}", f"CREATE USER {self.user}@'%' IDENTIFIED BY '{SECRET}'")
            stack.callback(lambda: self.run(f"DROP DATABASE {self._database}", f"DROP USER {self.user}@'%'"))
            self.url = f"mysql://{self.user}:{SECRET}@{ports.HOST}:{server.port}/{self._database}"
        else:
            server, self.schema = shared_postgresql.postgresql(), self.user
            place, port = server.url(), server.port
            self.admin = f"{place}?schema={self.schema}"
            self._connection = stack.enter_context(closing(psycopg.connect(place, autocommit=True)))
            self.run(f"CREATE ROLE {self.user} LOGIN PASSWORD '{SECRET}'")
            drop = (
                f"DROP SCHEMA IF EXISTS {self.schema} CASCADE",
                f"DROP OWNED BY {self.user}",
                f"DROP ROLE {self.user}",
            )
            stack.callback(lambda: self.run(*drop))
            self.url = f"postgresql://{self.user}:{SECRET}@{ports.HOST}:{port}/postgres?schema={self.schema}"

    def run(self, *statements: str) -> list[Any]:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def lay(self, printed: str) -> None:
        """By another, who may, as the database's own program reads it."""
        if self.store == "mysql":
            shared_mariadb.mariadb().kind.cli(printed)  # type: ignore[attr-defined]  # of MariaDB's
        else:
            self.run(printed)

    def grant(self, rights: str, printed: str = "") -> None:
        """On PostgreSQL: the rights that stand at the end of what is printed."""
        if self.store == "mysql":
            self.run(f"GRANT {rights} ON {self._database}.* TO {self.user}@'%'")
            return
        grants = [line.removeprefix("--   ") for line in printed.splitlines() if line.startswith("--   GRANT")]
        assert len(grants) == 4
        self.run(*(grant.replace(" TO role;", f" TO {self.user}") for grant in grants))


LEAST = "SELECT, INSERT, UPDATE, DELETE, EXECUTE"


@pytest.fixture(params=["mysql", "postgresql"])
def office(request: pytest.FixtureRequest) -> Iterator[Office]:
    with ExitStack() as stack:
        yield Office(request.param, stack)


def use(url: str) -> None:
    """Hold, hand over, break, look, list; and the shared primitives."""
    with dibs.connect(url) as client, dibs.connect(url) as other:
        with client.lock("a", timeout=30) as hold:
            assert client.inspect("a").holders[0].token == hold.token
            assert other.lock("a").acquire(timeout=0) is None
            assert other.lock("a", fair=False).acquire(timeout=0.1) is None
        with other.rwlock("b").read, client.semaphore("c", 2):
            assert [info.name for info in client.locks()] == ["b", "c"]
        broken = client.lock("a").acquire(timeout=30)
        assert broken is not None
        other.break_("a", token=broken.token)
        with pytest.raises(dibs.LockLost):
            broken.release()
        client.cell("d").update(lambda _: b"1")
        client.fence("e").admit(5)
        client.latch("f").arm(1)
        client.latch("f").count_down()
        assert client.latch("f").wait(30)


@pytest.mark.gate
@pytest.mark.timeout(150)
def test_many_clients_at_once(office: Office) -> None:
    """Each of them gets the lock, with a token of its own, while others make the tables."""
    together = threading.Barrier(MANY)

    def first(_: int) -> int:
        with dibs.connect(office.admin, retry=100.0) as client:
            together.wait()
            with client.lock("first", timeout=100) as hold:
                return hold.token

    with ThreadPoolExecutor(MANY) as pool:
        assert len(set(pool.map(first, range(MANY)))) == MANY


def test_the_least_rights_are_enough(office: Office, doctor: Doctor) -> None:
    """With tables that another made; made a second time, beside a store in use, nothing changes."""
    printed = doctor(office.admin if office.store == "postgresql" else office.url, "--ddl")
    office.lay(printed)
    office.grant(LEAST, printed)
    use(office.url)
    with dibs.connect(office.admin) as client, client.lock("g", timeout=30) as hold:
        office.lay(printed)
        hold.check()
        assert client.inspect("g").holders[0].token == hold.token
    use(office.url)
    assert "DANGER" not in doctor(office.url)
    if office.store == "postgresql":
        office.run(f'REVOKE DELETE ON "{office.schema}".dibs_claims FROM {office.user}')
        assert "lacks rights on dibs_claims" in doctor(office.url, status=1)
        with dibs.connect(office.url) as client, pytest.raises(dibs.StoreError, match="permission denied") as caught:
            client.lock("a").acquire(timeout=30).release()  # type: ignore[union-attr]
        assert "doctor --ddl" in str(caught.value)


@pytest.mark.gate
def test_without_the_right_to_create_one_is_told_what_to_do(office: Office, doctor: Doctor) -> None:
    if office.store == "mysql":
        office.grant(LEAST)
    with dibs.connect(office.url) as client, pytest.raises(dibs.StoreError, match=r"dibs doctor --ddl") as caught:
        client.lock("a").acquire(timeout=30)
    assert not isinstance(caught.value, dibs.StoreUnavailable)
    assert caught.value.name == "a"
    assert SECRET not in str(caught.value)
    if office.store == "postgresql":
        assert "may not create them" in doctor(office.url, status=1)


@pytest.mark.gate
def test_a_user_without_the_rights(office: Office) -> None:
    """A clear error at once; nothing is asked again."""
    with dibs.connect(office.admin) as admin, admin.lock("a", timeout=30):
        pass
    if office.store == "mysql":
        office.grant("EXECUTE")
    with dibs.connect(office.url) as client:
        for act in (lambda: client.lock("a").acquire(), lambda: client.cell("a").get()):
            with pytest.raises(dibs.StoreError, match="denied") as caught:
                act()
            assert not isinstance(caught.value, dibs.StoreUnavailable)
            assert SECRET not in str(caught.value)


@pytest.mark.gate
def test_with_the_right_to_create_nobody_need_make_anything(office: Office) -> None:
    if office.store == "mysql":
        office.grant(f"{LEAST}, CREATE, CREATE ROUTINE")
    else:
        office.run(f"GRANT CREATE ON DATABASE postgres TO {office.user}")
    use(office.url)
