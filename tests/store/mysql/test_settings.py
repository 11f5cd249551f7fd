"""Settings of the server that new sessions begin with: ours set what they rely on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing

import pymysql
import pytest

import dibs
from lab.servers.supervisor import Server, until
from sql.openers import mysql_options
from store.mysql.rows import Raw, setting

pytestmark = pytest.mark.gate

LONG = 60.0


@pytest.mark.parametrize("kind", ["CHAIN", "RELEASE"])
def test_whatever_a_commit_does_to_other_sessions(server: Server, name: str, kind: str) -> None:
    with closing(Raw(server.port)) as raw, setting(raw, "completion_type", kind):
        for mode in ("lease", "session"):
            with dibs.connect(f"{server.url()}?mode={mode}") as client:
                with client.lock(name):
                    assert client.lock(name).acquire(timeout=0) is None
                client.lock(name).acquire(timeout=0).release()
        own = pymysql.connect(**mysql_options(server.url()))
        with closing(own), dibs.connect(server.url()) as client:
            with client.within(own).lock(name):
                own.rollback()
            if kind == "CHAIN":
                assert client.within(own).lock(name).acquire(timeout=0)
                own.rollback()


def test_a_limit_for_statements_ends_no_wait(server: Server, name: str) -> None:
    """One that began anew would stand at the end of the queue."""
    waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND time_ms > 300"
    with closing(Raw(server.port)) as raw:
        raw.ask("SET SESSION max_statement_time = 0")
        with (
            setting(raw, "max_statement_time", 0.1),
            ThreadPoolExecutor(2) as pool,
            dibs.connect(f"{server.url()}?mode=session", lease=LONG) as client,
        ):
            with client.lock(name):
                pending = [pool.submit(client.lock(name).acquire, timeout=LONG) for _ in range(2)]
                until(lambda: raw.ask(waits) == [(2,)], LONG, "both wait for longer than the limit")
            for done in as_completed(pending, LONG):  # whichever of them began to wait first
                done.result().release()
