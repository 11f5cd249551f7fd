"""The life of a server, and what keeps its ports and its end sure."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lab.servers import guard, ports, programs
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server


def taken_by_us(port: int) -> bool:
    """Whether somebody who wants this very port for himself is refused."""
    with socket.socket() as stranger:
        try:
            stranger.bind((ports.HOST, port))
        except OSError:
            return True
        return False


def test_a_reserved_port_is_given_to_nobody_else() -> None:
    port = ports.reserve()
    assert taken_by_us(port)
    ports.release(port)
    assert not taken_by_us(port)


def test_a_port_stays_reserved_while_its_server_is_dead() -> None:
    require("redis")
    with Server(Redis()) as server:
        assert ports.listening(server.port)
        server.kill()
        assert not ports.listening(server.port)
        assert taken_by_us(server.port)
        assert server.restart().ask("PING") == "PONG"


def test_nothing_is_left_of_a_server() -> None:
    require("redis")
    with Server(Redis()) as server:
        assert guard.working_in(server.directory) == [server.pid]
        assert server.data.is_dir()
        assert "Ready to accept connections" in server.log()
    assert guard.working_in(server.directory) == []
    assert not server.directory.exists()
    assert not taken_by_us(server.port)
    assert not server.running()


def test_a_server_ends_although_it_stands_still() -> None:
    require("redis")
    others = guard.working_in(guard.root())  # what this process shares with other tests
    with Server(Redis()) as server:
        server.stop()
    assert guard.working_in(guard.root()) == others


def test_a_server_that_cannot_start_shows_its_log() -> None:
    require("redis")
    server = Server(Redis("nonsense yes"))
    with pytest.raises(AssertionError, match="ended by itself") as raised, server:
        pass
    assert "Bad directive" in str(raised.value.__notes__)
    assert not server.directory.exists()
    assert not taken_by_us(server.port)


def test_a_server_that_does_not_serve_shows_its_log() -> None:
    require("redis")
    with Server(Redis()) as server:
        server.stop()
        with pytest.raises(AssertionError, match="not within") as raised:
            server.serve(within=0.1)
    assert "Ready to accept connections" in str(raised.value.__notes__)


def test_a_server_gets_the_environment_it_is_given() -> None:
    require("redis")
    keeps_it_readable = "set-proc-title no"
    with Server(Redis(keeps_it_readable), env={"LAB_WORD": "heard"}) as server:
        assert b"LAB_WORD=heard" in Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")


def test_no_program_is_turned_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGSERVICE", "MYSQL_HOST", "REDISCLI_AUTH", "JAVA_TOOL_OPTIONS"):
        monkeypatch.setenv(name, "elsewhere")
    assert "elsewhere" not in programs.environment().values()
    assert programs.environment()["PATH"] == os.environ["PATH"]


def test_what_is_missing_skips_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.NEEDS, "oracle", ("no-such-server", "/no/such/file.jar"))
    monkeypatch.delenv("DIBS_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no-such-server, /no/such/file\.jar"):
        require("oracle")
    monkeypatch.setenv("DIBS_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-server"):
        require("oracle")
