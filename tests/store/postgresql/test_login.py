"""A login that is refused: at once for a client that was never let in, and asked again by one that was. Passwords are
rotated, in whichever order, while clients live.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

import dibs
from lab.servers import shared_postgresql
from lab.servers.supervisor import until

pytestmark = pytest.mark.gate

PATIENCE = 60.0


class Role:
    """One whose password changes, and which is cut off then."""

    def __init__(self, admin: psycopg.Connection[Any], place: str) -> None:
        self.name, self.place, self._admin = f"role_{secrets.token_hex(6)}", place, admin
        admin.execute(f"CREATE ROLE {self.name} SUPERUSER LOGIN PASSWORD 'right'")
        self.url = f"postgresql://{self.name}:right@{place.partition('@')[2]}?schema={self.name}"

    def refuse(self) -> None:
        self._admin.execute(f"ALTER ROLE {self.name} PASSWORD 'wrong'")
        # Again and again: a login that was under way when the password changed may still succeed.
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
        until(lambda: self._admin.execute(cut, (self.name,)).fetchall() == [], what="all are cut off")

    def let_in(self) -> None:
        self._admin.execute(f"ALTER ROLE {self.name} PASSWORD 'right'")


@pytest.fixture
def role() -> Iterator[Role]:
    place = shared_postgresql.postgresql().url()
    with closing(psycopg.connect(place, autocommit=True)) as admin:
        role = Role(admin, place)
        yield role
        role.refuse()
        admin.execute(f"DROP SCHEMA IF EXISTS {role.name} CASCADE")
        admin.execute(f"DROP ROLE {role.name}")


def trouble(client: dibs.Client) -> str:
    with pytest.raises(dibs.StoreUnavailable) as caught:
        client.lock("b").acquire(timeout=0)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["lease", "session"])
def test_a_waiter_outlasts_a_password_that_is_refused_for_a_while(role: Role, mode: str) -> None:
    """The holder logs in as somebody else."""
    owner = f"{role.place}?schema={role.name}&mode={mode}"
    with (
        dibs.connect(owner, lease=PATIENCE) as one,
        dibs.connect(f"{role.url}&mode={mode}") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        with one.lock("a", timeout=PATIENCE):
            waiting = pool.submit(other.lock("a").acquire, timeout=PATIENCE)
            until(lambda: len(one.inspect("a").waiters) == 1, what="one waits")
            role.refuse()
            until(lambda: "refuses the login" in trouble(other), what="logins are refused")
            assert not waiting.done()
            role.let_in()
        assert isinstance(waiting.result(PATIENCE), dibs.Hold)


def test_who_was_never_let_in_is_told_at_once(role: Role) -> None:
    role.refuse()
    with dibs.connect(role.url) as client, pytest.raises(dibs.StoreError, match="refuses the login") as caught:
        client.lock("a").acquire(timeout=PATIENCE)
    assert not isinstance(caught.value, dibs.StoreUnavailable)
