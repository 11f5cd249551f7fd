"""Session mode on PostgreSQL, where it is refused, and how it treats idle connections. What befalls sessions of every
server is in tests/store/faults.
"""

from __future__ import annotations

import pytest

import dibs
from lab.servers.postgresql import PgBouncer, replicated
from lab.servers.programs import require
from lab.servers.supervisor import Server, until

TIMEOUT = 50.0
_HOLDERS = "application_name ~ '^dibs [1-9]'"


def session(server: Server) -> str:
    return f"{server.url()}?mode=session"


def test_idle_connections_are_closed_before_the_server_has_to(server: Server, name: str) -> None:
    said = server.log().count("idle-session timeout")
    with dibs.connect(session(server), lease=10) as client:
        with client.lock(name):
            pass
        idle = f"SELECT count(*) FROM pg_stat_activity WHERE {_HOLDERS}"
        assert server.ask(idle) == "1"
        until(lambda: server.ask(idle) == "0")
        assert client.lock(name).acquire(timeout=TIMEOUT)
    assert server.log().count("idle-session timeout") == said


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_refused_with_the_reason(server: Server, name: str, mode: str) -> None:
    require("pgbouncer")
    with (
        Server(PgBouncer(server.port, mode=mode)) as pool,
        dibs.connect(f"{pool.url()}?mode=session") as client,
        pytest.raises(dibs.StoreError, match=r'a pooler answers.*mode="lease"') as caught,
    ):
        client.lock(name).acquire(timeout=TIMEOUT)
    assert not isinstance(caught.value, dibs.StoreUnavailable)


def test_a_role_without_rights_is_told_so(server: Server, name: str) -> None:
    with dibs.connect(session(server)) as client:
        client.lock(name).acquire(timeout=TIMEOUT)
    server.ask("CREATE ROLE plain LOGIN PASSWORD 'plain'")
    with (
        dibs.connect(f"{server.url(user='plain', password='plain')}?mode=session") as client,
        pytest.raises(dibs.StoreError, match=r"permission denied.*--ddl"),
    ):
        client.lock(name).acquire(timeout=TIMEOUT)


def test_a_standby_is_refused_with_the_reason(name: str) -> None:
    with replicated() as (primary, replica):
        with dibs.connect(f"{primary.url()}?mode=session") as client:
            client.lock(name).acquire(timeout=TIMEOUT)
        with (
            dibs.connect(f"{replica.url()}?mode=session") as client,
            pytest.raises(dibs.StoreError, match="a standby"),
        ):
            client.lock(name).acquire(timeout=TIMEOUT)
