"""`doctor` on PostgreSQL: settings, poolers, replicas, missing tables."""

from __future__ import annotations

import pytest

import dibs
from lab.servers.postgresql import PgBouncer, replicated
from lab.servers.programs import require
from lab.servers.supervisor import Server

pytestmark = pytest.mark.gate


def said(url: str, **options: object) -> dict[str, list[str]]:
    with dibs.connect(url, **options) as client:
        found: dict[str, list[str]] = {}
        for finding in client.doctor():
            found.setdefault(finding.level, []).append(finding.what)
    return found


def test_before_anything_was_made(server: Server) -> None:
    """It says so, and makes nothing itself."""
    found = said(f"{server.url()}?schema=untouched")
    assert "danger" not in found
    assert any("first use creates them" in what for what in found["note"])
    assert server.ask("SELECT count(*) FROM pg_namespace WHERE nspname = 'untouched'") == "0"


def test_a_sound_server(server: Server) -> None:
    with dibs.connect(server.url()) as client:
        client.lock("a").acquire().release()
    found = said(server.url())
    assert "danger" not in found
    assert "PostgreSQL 15" in found["about"][0]
    assert any("notifications arrive" in what for what in found["promise"])
    assert any("all tables and routines" in what for what in found["promise"])
    assert any("looks" in what for what in said(server.url(), wake="looks")["note"])


@pytest.mark.parametrize(
    ("setting", "level", "says"),
    [
        ("default_transaction_isolation = 'serializable'", "note", "serializable"),
        ("default_transaction_read_only = on", "danger", "is read-only"),
        ("statement_timeout = '100ms'", "note", "statement_timeout"),
    ],
)
def test_settings_of_the_role(server: Server, setting: str, level: str, says: str) -> None:
    name = setting.partition(" ")[0]
    server.ask(f"ALTER ROLE dibs SET {setting}")
    try:
        assert any(says in what for what in said(server.url())[level])
    finally:
        server.ask("SET default_transaction_read_only = off", f"ALTER ROLE dibs RESET {name}")


def test_behind_a_pooler(server: Server) -> None:
    with Server(PgBouncer(server.port, mode="transaction")) as pool:
        found = said(pool.url())
    assert "danger" not in found
    assert any("notifications do not arrive" in what for what in found["note"])
    assert any("pooler is in between" in what for what in found["note"])


def test_a_server_that_may_forget() -> None:
    require("postgresql")
    with replicated("fsync=off", "hot_standby=on") as (primary, replica):
        found = said(primary.url())
        assert any("fsync" in what for what in found["danger"])
        assert any("replication is asynchronous" in what for what in found["note"])
        assert "promise" not in found or not any("one valid holder" in what for what in found["promise"])
        assert any("is read-only" in what for what in said(replica.url())["danger"])
