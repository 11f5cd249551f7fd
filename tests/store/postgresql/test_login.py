"""A login that is refused: at once for a client that was never let in, and asked again by one that was. Passwords are
rotated, in whichever order, while clients live.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import dibs
from lab.servers import shared_postgresql
from lab.servers.supervisor import until

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

    def drop(self) -> None:
        self._admin.execute(f"DROP SCHEMA IF EXISTS {self.name} CASCADE")
        self._admin.execute(f"DROP ROLE {self.name}")


@pytest.fixture
def role() -> Iterator[Role]:
    place = shared_postgresql.postgresql().url()
    with closing(psycopg.connect(place, autocommit=True)) as admin:
        role = Role(admin, place)
        yield role
        role.refuse()
        role.drop()


def trouble(client: dibs.Client) -> str:
    with pytest.raises(dibs.StoreUnavailable) as caught:
        client.lock("b").acquire(timeout=0)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["lease", "session"])
def test_a_waiter_outlasts_a_password_that_is_refused_for_a_while(role: Role, mode: str) -> None:
    """The holder logs in as somebody else."""
    owner = f"{role.place}?schema={role.name}&mode={mode}"
    with dibs.connect(owner, lease=PATIENCE) as one, dibs.connect(f"{role.url}&mode={mode}") as other:
        hold = one.lock("a").acquire(timeout=PATIENCE)
        assert hold is not None
        found: list[dibs.Hold | Exception | None] = []

        def wait() -> None:
            try:
                found.append(other.lock("a").acquire(timeout=PATIENCE))
            except dibs.DibsError as error:
                found.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: len(one.inspect("a").waiters) == 1, what="one waits")
        role.refuse()
        until(lambda: "refuses the login" in trouble(other), what="logins are refused")
        assert not found
        role.let_in()
        hold.release()
        waiting.join()
        assert isinstance(found[0], dibs.Hold), found


def test_who_was_never_let_in_is_told_at_once(role: Role) -> None:
    role.refuse()
    with dibs.connect(role.url) as client, pytest.raises(dibs.StoreError, match="refuses the login") as caught:
        client.lock("a").acquire(timeout=PATIENCE)
    assert not isinstance(caught.value, dibs.StoreUnavailable)
