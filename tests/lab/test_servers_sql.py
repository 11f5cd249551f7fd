"""MariaDB, PostgreSQL and PgBouncer: what they keep, whom they let in, and a replica that takes over."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import dibs
from lab.faults import BlackHole
from lab.proxy import DOWN
from lab.servers import certificates, guard, ports, shared_postgresql
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PgBouncer, PostgreSQL, promote, psql, replicated
from lab.servers.programs import Refused, Silent, require
from lab.servers.schemas import Schemas
from lab.servers.supervisor import Kind, Server, until
from lab.servers.ways import Ways

TABLE = "CREATE TABLE notes (word VARCHAR(10) PRIMARY KEY)"
WRITE = "INSERT INTO notes VALUES ('kept')"
READ = "SELECT word FROM notes"


@pytest.mark.parametrize("make", [MariaDB, PostgreSQL])
def test_life(make: type[MariaDB | PostgreSQL]) -> None:
    require(make.name)
    kind: Kind = make()
    with Server(kind) as server:
        first = server.pid
        server.ask(TABLE)
        server.ask(WRITE)
        assert server.ask(READ) == "kept"
        server.stop()
        with pytest.raises(Silent):
            server.ask(READ, within=0.3)
        server.resume()
        assert server.ask(READ) == "kept"
        server.kill()
        assert guard.working_in(server.data) == []
        with pytest.raises(Refused):
            server.ask(READ)
        assert server.restart().ask(READ) == "kept"
        assert server.pid != first
        assert server.url().endswith(f"://dibs:dibs@{ports.HOST}:{server.port}/{server.url().rpartition('/')[2]}")
        with pytest.raises(Refused, match="exist"):
            server.restart(wipe=True).ask(READ)


def state(pid: int) -> str:
    """T: it stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_a_postgresql_forked_stops_and_dies_with_it() -> None:
    require("postgresql")
    with Server(PostgreSQL()) as server:
        server.stop()
        stopped = guard.working_in(server.data)
        assert server.pid in stopped
        assert len(stopped) > 1
        assert {state(pid) for pid in stopped} == {"T"}
        server.resume()
        server.kill()
        assert guard.working_in(server.data) == []


def test_settings_reach_the_servers() -> None:
    require("mariadb", "postgresql")
    with Server(MariaDB("--max-connections=33")) as server:
        assert server.ask("SELECT @@max_connections") == "33"
        assert server.ask("SELECT @@innodb_flush_log_at_trx_commit") == "1"
    with Server(PostgreSQL("max_connections=33")) as server:
        assert server.ask("SHOW max_connections") == "33"
        assert server.ask("SHOW fsync") == "on"


def test_tls(tmp_path: Path) -> None:
    require("mariadb", "postgresql", "openssl")
    tls = certificates.make(tmp_path)
    kind = MariaDB(tls=tls, insist=True)
    with Server(kind) as server:
        assert server.ask("SHOW STATUS LIKE 'Ssl_version'").startswith("Ssl_version\tTLS")
        with pytest.raises(Refused, match="Access denied"):
            kind.cli("--skip-ssl", "SELECT 1")
        with pytest.raises(Refused, match=r"(?i)certificate"):
            kind.cli(f"--ssl-ca={tls.self_signed.certificate}", "--ssl-verify-server-cert", "SELECT 1")
    with Server(PostgreSQL(tls=tls)) as server:
        assert server.ask("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == "t"
        with pytest.raises(Refused, match="no encryption"):
            psql(server.port, "SELECT 1", PGSSLMODE="disable")
        with pytest.raises(Refused, match="certificate verify failed"):
            psql(server.port, "SELECT 1", PGSSLMODE="verify-full", PGSSLROOTCERT=str(tls.self_signed.certificate))


def test_a_wrong_password_is_refused() -> None:
    require("postgresql")
    with Server(PostgreSQL()) as server:
        with pytest.raises(Refused, match="password authentication failed"):
            psql(server.port, "SELECT 1", PGPASSWORD="wrong")
        with Server(PgBouncer(server.port)) as pool, pytest.raises(Refused, match=r"(?i)authentication failed"):
            psql(pool.port, "SELECT 1", PGPASSWORD="wrong")


def test_a_replica_lags_and_takes_over() -> None:
    require("postgresql")
    with Ways() as ways, replicated(link=ways) as (primary, replica):
        primary.ask(TABLE)
        primary.ask(WRITE)
        until(lambda: replica.ask(READ) == "kept", what="the replica has it")
        with pytest.raises(Refused, match="read-only transaction"):
            replica.ask(WRITE)
        way = ways.to(primary.port)
        way.add(BlackHole(), DOWN)
        primary.ask("INSERT INTO notes VALUES ('lost')")
        way.wait_for(lambda: way.total(DOWN, "dropped")[1] > 0, what="something was lost on its way")
        primary.kill()
        promote(replica)
        assert replica.ask("SELECT pg_is_in_recovery()") == "f"
        replica.ask("INSERT INTO notes VALUES ('new')")
        assert replica.ask(f"{READ} ORDER BY 1").split() == ["kept", "new"]


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_pgbouncer(mode: Literal["session", "transaction"]) -> None:
    require("postgresql", "pgbouncer")
    with (
        Server(PostgreSQL()) as server,
        Server(PgBouncer(server.port, "server_login_retry = 1", mode=mode)) as pool,
    ):
        pool.ask(TABLE)
        pool.ask(WRITE)
        assert pool.ask(READ) == server.ask(READ) == "kept"
        assert f"pool_mode|{mode}" in psql(pool.port, "SHOW CONFIG", PGDATABASE="pgbouncer")
        pool.stop()
        with pytest.raises(Silent):
            pool.ask(READ, within=0.3)
        pool.resume()
        assert pool.ask(READ) == "kept"
        assert pool.restart().ask(READ) == "kept"
        server.kill()
        with pytest.raises((Refused, Silent)):
            pool.ask(READ, within=1)
        assert pool.restart().running(), "it serves, whatever is behind it"
        server.restart()
        until(lambda: pool.ask(READ) == "kept", what="it finds the server again")


def test_a_schema_is_used_again_unless_a_test_has_replaced_what_is_in_it(tmp_path: Path) -> None:
    """One test left another answer in place of a routine's, and the next one in that process met it."""
    server = shared_postgresql.postgresql()
    schemas, url = Schemas(server.url()), server.url()

    def of_a_test(name: str) -> str:
        schema = schemas.fresh(tmp_path / name / "store")
        with dibs.connect(f"{url}?schema={schema}") as client:
            assert client.inspect("a").holders == ()
            client.lock("a", lease=30).acquire()
        return schema

    first = of_a_test("one")
    assert of_a_test("two") == first, "it was emptied, and is as it was made"
    server.ask(f'''CREATE OR REPLACE FUNCTION "{first}".dibs_1_sweep() RETURNS text LANGUAGE sql AS $$ SELECT '' $$''')
    assert of_a_test("three") != first
    assert schemas.fresh(tmp_path / "three" / "other") not in {first, schemas.fresh(tmp_path / "four" / "store")}
