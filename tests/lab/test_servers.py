"""The life of every kind of server, what keeps its port and its end sure, and what the groups form.

Logins, TLS, fail-over, stepped counters and cut networks are used, and so shown, by the tests of the stores.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import dibs
from lab.servers import guard, ports, shared
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import Refused, Silent, require
from lab.servers.redis import Redis
from lab.servers.schemas import Schemas
from lab.servers.supervisor import Kind, Server

TABLE = "CREATE TABLE notes (word VARCHAR(10) PRIMARY KEY)"
WRITE = "INSERT INTO notes VALUES ('kept')"
READ = "SELECT word FROM notes"
LIVES: dict[type[Kind], tuple[list[list[str]], list[str]]] = {
    Redis: ([["SET", "a", "kept"]], ["GET", "a"]),
    MariaDB: ([[TABLE], [WRITE]], [READ]),
    PostgreSQL: ([[TABLE], [WRITE]], [READ]),
}


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
