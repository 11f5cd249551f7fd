"""The life of every kind of server, what keeps its port and its end sure, and what the groups form.

Logins, TLS, fail-over, stepped counters and cut networks are used, and so shown, by the tests of the stores.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import dibs
from lab.servers import guard, ports, programs, shared
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PgBouncer, PostgreSQL
from lab.servers.programs import Refused, Silent, require
from lab.servers.redis import Redis
from lab.servers.schemas import Schemas
from lab.servers.supervisor import Kind, Server, joint_url, until
from lab.servers.ways import Ways
from lab.servers.zookeeper import ZooKeeper, ensemble, leader, mode
from lab.servers.zookeeper_session import Session

TABLE = "CREATE TABLE notes (word VARCHAR(10) PRIMARY KEY)"
WRITE = "INSERT INTO notes VALUES ('kept')"
READ = "SELECT word FROM notes"
LIVES: dict[type[Kind], tuple[list[list[str]], list[str]]] = {
    Redis: ([["SET", "a", "kept"]], ["GET", "a"]),
    MariaDB: ([[TABLE], [WRITE]], [READ]),
    PostgreSQL: ([[TABLE], [WRITE]], [READ]),
}
"""How something is written to it, and read."""


def taken_by_us(port: int) -> bool:
    """Whether somebody who wants this very port for himself is refused."""
    with socket.socket() as stranger:
        try:
            stranger.bind((ports.HOST, port))
        except OSError:
            return True
        return False


def empty(server: Server, read: list[str]) -> bool:
    try:
        return server.ask(*read) == ""
    except Refused as refused:
        return "exist" in str(refused)  # the table does not


@pytest.mark.parametrize("make", LIVES, ids=lambda make: make.name)
def test_life(make: type[Kind]) -> None:
    require(make.name)
    kind = Redis(persist="always") if make is Redis else make()
    writes, read = LIVES[make]
    with Server(kind) as server:
        first, port = server.pid, server.port
        for words in writes:
            server.ask(*words)
        assert server.ask(*read) == "kept"
        server.stop()
        stopped = guard.working_in(server.data)
        assert server.pid in stopped
        assert {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in stopped} == {"T"}
        with pytest.raises(Silent):
            server.ask(*read, within=0.3)
        server.resume()
        assert server.ask(*read) == "kept"
        server.kill()
        assert guard.working_in(server.data) == [], "what it forked is dead too"
        assert taken_by_us(port), "the port stays reserved while it is dead"
        with pytest.raises(Refused):
            server.ask(*read)
        assert server.restart().ask(*read) == "kept"
        assert server.pid != first
        assert f":{port}/" in server.url()
        assert empty(server.restart(wipe=True), read)
        server.stop()  # its end comes although it stands still
    assert guard.working_in(server.directory) == []
    assert not server.directory.exists()
    assert port not in ports._reserved


def test_life_of_a_zookeeper() -> None:
    require("zookeeper")
    with Server(ZooKeeper()) as server:
        with Session(server.port) as session:
            session.create("/a", b"kept")
        server.stop()
        with pytest.raises(Silent):
            server.ask("ruok", within=0.3)
        server.resume()
        server.restart()
        with Session(server.port) as session:
            assert session.get("/a") == b"kept"
        server.restart(wipe=True)
        with Session(server.port) as session, pytest.raises(Refused, match="-101"):
            session.get("/a")


def test_an_ensemble_elects_and_its_ways_can_be_cut() -> None:
    require("zookeeper")
    with Ways() as ways, ensemble(ways) as nodes:
        first = leader(nodes)
        ways.cut_off(nodes.index(first) + 1, first.kind.ports)
        others = tuple(node for node in nodes if node is not first)
        second = leader(others)
        until(lambda: mode(first.ask("srvr", within=2)) is None, 60, "the old leader does not serve alone")
        ways.heal()
        until(lambda: mode(first.ask("srvr", within=2)) == "follower", 60, "it follows")
        assert leader(nodes) is second
        assert joint_url("zookeeper", nodes[:1], "/x") == f"zookeeper://{ports.HOST}:{nodes[0].port}/x"


def test_pgbouncer_serves_whatever_is_behind_it() -> None:
    require("postgresql", "pgbouncer")
    with (
        Server(PostgreSQL()) as server,
        Server(PgBouncer(server.port, "server_login_retry = 1", mode="transaction")) as pool,
    ):
        pool.ask(TABLE, WRITE)
        assert pool.ask(READ) == server.ask(READ) == "kept"
        server.kill()
        with pytest.raises((Refused, Silent)):
            pool.ask(READ, within=1)
        assert pool.restart().running()
        server.restart()
        until(lambda: pool.ask(READ) == "kept", 60, "it finds the server again")


def test_a_server_that_cannot_start_or_serve_shows_its_log() -> None:
    require("redis")
    server = Server(Redis("nonsense yes"))
    with pytest.raises(AssertionError, match="ended by itself") as raised, server:
        pass
    assert "Bad directive" in str(raised.value.__notes__)
    assert not server.directory.exists()
    assert not taken_by_us(server.port)
    with Server(Redis()) as server:
        server.stop()
        with pytest.raises(AssertionError, match="not within") as raised:
            server.serve(within=0.1)
    assert "Ready to accept connections" in str(raised.value.__notes__)


def test_a_server_gets_the_environment_and_the_lines_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    require("redis")
    for name in ("PGHOST", "PGSERVICE", "MYSQL_HOST", "REDISCLI_AUTH", "JAVA_TOOL_OPTIONS"):
        monkeypatch.setenv(name, "elsewhere")
    assert "elsewhere" not in programs.environment().values()
    with Server(Redis("set-proc-title no", "maxmemory 50mb"), env={"LAB_WORD": "heard"}) as server:
        assert server.ask("CONFIG", "GET", "maxmemory").split()[1] == str(50 << 20)
        environ = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
    assert b"LAB_WORD=heard" in environ
    assert f"PATH={os.environ['PATH']}".encode() in environ


def test_what_is_missing_skips_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.NEEDS, "oracle", ("no-such-server", "/no/such/file.jar"))
    monkeypatch.delenv("DIBS_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no-such-server, /no/such/file\.jar"):
        require("oracle")
    monkeypatch.setenv("DIBS_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-server"):
        require("oracle")


def test_a_schema_is_used_again_unless_a_test_has_replaced_what_is_in_it(tmp_path: Path) -> None:
    """One test left another answer in place of a routine's, and the next one in that process met it."""
    server = shared.postgresql()
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
