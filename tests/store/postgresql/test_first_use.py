"""What is made in the database, by whom: by whoever comes first, many at once, or by somebody else with `--ddl`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import dibs
from lab.servers import ports, shared_postgresql
from store.postgresql.rows import Raw

MANY = 20
PROGRAM = Path(__file__).with_name("newcomers.py")
PASSWORD = "least-of-all"


def doctor(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dibs.cli", "doctor", "--url", url, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_twenty_processes_at_once(url: str, raw: Raw) -> None:
    """All of them get the lock in the end, each with another token; nobody hears of the others' making."""
    done = subprocess.run(
        [sys.executable, PROGRAM, url, str(MANY)], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr
    tokens = [int(word) for word in done.stdout.split()]
    assert len(set(tokens)) == MANY
    assert raw("SELECT count(*) FROM {s}.dibs_store") == [(1,)]


def test_the_statements_make_all_of_it(url: str, raw: Raw) -> None:
    """As they are printed, and twice, beside a store in use: nothing changes."""
    printed = doctor(url, "--ddl")
    assert printed.returncode == 0, printed.stderr
    raw(printed.stdout)
    with dibs.connect(url) as client, client.lock("a", timeout=10) as hold:
        identity = raw("SELECT id FROM {s}.dibs_store")
        raw(printed.stdout)
        hold.check()
        assert client.inspect("a").holders[0].token == hold.token
        assert raw("SELECT id FROM {s}.dibs_store") == identity


@pytest.fixture
def role(raw: Raw) -> Iterator[str]:
    """Who may log in, and nothing else; gives the URL for it."""
    name = f"least-{raw.schema}"
    raw(f"CREATE ROLE \"{name}\" LOGIN PASSWORD '{PASSWORD}'")
    port = shared_postgresql.postgresql().port
    yield f"postgresql://{name}:{PASSWORD}@{ports.HOST}:{port}/postgres?schema={raw.schema}"
    raw(f'DROP OWNED BY "{name}"')
    raw(f'DROP ROLE "{name}"')


def test_a_role_that_may_not_make_them(role: str) -> None:
    with dibs.connect(role) as client:
        with pytest.raises(dibs.StoreError) as caught:
            client.lock("a").acquire(timeout=5)
        assert not isinstance(caught.value, dibs.StoreUnavailable)
        assert "dibs doctor --ddl" in str(caught.value)
        assert caught.value.name == "a"
        assert PASSWORD not in str(caught.value)
    said = doctor(role)
    assert said.returncode == 1
    assert "DANGER" in said.stdout
    assert "may not make them" in said.stdout
    assert PASSWORD not in said.stdout + said.stderr


def test_the_least_rights_are_enough(role: str, url: str, raw: Raw) -> None:
    """Those that stand at the end of what is printed."""
    printed = doctor(url, "--ddl").stdout
    raw(printed)
    name = f"least-{raw.schema}"
    grants = [line.removeprefix("--   ") for line in printed.splitlines() if line.startswith("--   GRANT")]
    assert len(grants) == 4
    for grant in grants:
        raw(grant.replace(" TO role;", f' TO "{name}"'))
    with dibs.connect(role, lease=2) as client:
        with client.lock("a", timeout=10) as hold, client.semaphore("s", 2).acquire(timeout=5):
            hold.check()
            assert client.lock("a", fair=False).acquire(timeout=0.3) is None
            client.break_("a", token=hold.token)
            hold.lost.wait(5)
            with pytest.raises(dibs.LockLost):
                hold.release()
        client.cell("c").set(b"x", 0)
        client.fence("f").admit(7)
        client.latch("l").arm(1)
        client.latch("l").count_down()
        assert client.latch("l").wait(5)
    said = doctor(role)
    assert said.returncode == 0, said.stdout + said.stderr
    raw(f'REVOKE DELETE ON {{s}}.dibs_claims FROM "{name}"')
    said = doctor(role)
    assert said.returncode == 1
    assert "lacks rights on dibs_claims" in said.stdout
    with dibs.connect(role) as client, pytest.raises(dibs.StoreError, match="permission denied") as caught:
        client.lock("a").acquire(timeout=5).release()  # type: ignore[union-attr]
    assert "doctor --ddl" in str(caught.value)


def test_the_tables_are_dropped_in_use(url: str, raw: Raw) -> None:
    """They are made anew; tokens rise all the same, and who held has lost it."""
    with dibs.connect(url, lease=2) as client:
        hold = client.lock("a").acquire(timeout=10)
        assert hold is not None
        raw("DROP SCHEMA {s} CASCADE")
        assert hold.lost.wait(10)
        again = client.lock("a").acquire(timeout=10)
        assert again is not None
        assert again.token > hold.token
        again.release()


def test_a_connection_that_was_there_before(url: str) -> None:
    """A plain one of psycopg's is no driver that could be taken."""
    with closing(psycopg.connect(url.partition("?")[0])) as connection, pytest.raises(TypeError):
        dibs.connect(connection)  # type: ignore[arg-type]
