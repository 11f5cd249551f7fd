"""Hostile rows, messages and routines in PostgreSQL, and cells also in MariaDB. Hostile claims: test_claims.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.servers import shared_mariadb, shared_postgresql
from lab.witness import apis_of
from store.mysql import rows as mysql
from store.postgresql.rows import MICROSECONDS, Raw, opened

both_apis = apis_of("postgresql", "postgresql://127.0.0.1:1/postgres")
pytestmark = pytest.mark.gate
FLOOD = 3000
MOST_LOOKS = 20.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_postgresql.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    with opened(url) as made:
        yield made


@pytest.fixture
def pair(url: str) -> Iterator[tuple[dibs.Client, dibs.Client]]:
    with dibs.connect(url) as one, dibs.connect(url) as other:
        one.lock("a").acquire().release()
        yield one, other


def test_a_row_that_cannot_be_written(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    for columns in ({"weight": -5}, {"capacity": 0}, {"ticket": -1}, {"lease": 0}):
        with pytest.raises(psycopg.errors.CheckViolation):
            raw.plant("dibs:a", **columns)


def test_a_row_below_all_that_were_given(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    """A client that knows the queue ignores the row; a newcomer takes it for the first. The two never hold together."""
    raw.plant("dibs:a", ticket=1)
    hold = pair[0].lock("a").acquire(timeout=1)
    assert pair[1].lock("a").acquire(timeout=0.2) is None
    if hold is not None:
        hold.release()


def test_a_row_whose_end_was_put_off_ends_with_its_lease(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    raw.plant("dibs:a", lease=MICROSECONDS, until=2**62)
    pair[1].lock("a", timeout=20).acquire().release()


def test_hostile_values_of_cells(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    raw("INSERT INTO {s}.dibs_cells VALUES ('fence', 'dibs:f', 'DROP TABLE', 1)")
    with pytest.raises(dibs.StoreError, match="dibs did not write"):
        pair[0].fence("f").admit(5)
    raw("INSERT INTO {s}.dibs_cells VALUES ('cell', 'dibs:c', %s, %s)", bytes(range(256)), 2**63 - 1)
    assert pair[0].cell("c").get() == (bytes(range(256)), 2**63 - 1)
    with pytest.raises(dibs.DibsError):
        pair[0].cell("c").set(b"", 2**63 - 1)


def test_hostile_values_of_cells_in_mariadb(tmp_path: Path) -> None:
    url = shared_mariadb.fresh(tmp_path)
    raw = mysql.Raw(shared_mariadb.mariadb().port, url.partition("prefix=")[2])
    with dibs.connect(url) as client, closing(raw):
        cell = client.cell("a")
        cell.set(b"1", 0)
        raw.ask("UPDATE dibs_cells SET value = NULL WHERE name = %s", raw.key("dibs:a"))
        with pytest.raises(dibs.StoreError, match='"a"'):
            cell.get()
        fence = client.fence("f")
        fence.admit(5)
        for value in (b"-7", b"x", b"9" * 30, b""):
            raw.ask("UPDATE dibs_cells SET value = %s WHERE name = %s", value, raw.key("dibs:f"))
            with pytest.raises(dibs.StoreError):
                fence.admit(6)


FORGED = {
    "nothing": lambda: "",
    "one letter": lambda: "y",
    "somebody who does not wait": lambda: os.urandom(16).hex() + "y",
    "no hexadecimal digits": lambda: "z" * 32 + "y",
    "nobody": lambda: "0" * 32 + "y",
    "as long as it may be": lambda: "f" * 7999,
}


@pytest.mark.parametrize("case", FORGED)
@both_apis
async def test_forged_letters_to_a_client_that_waits(world: World, url: str, raw: Raw, case: str) -> None:
    """Nobody is granted by them, and nobody looks."""
    holding, client = world.client(url), world.client(url)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: holding.lock("a").acquire())
    waiting = bob.start(lambda: client.lock("a").acquire(timeout=40))
    await world.in_queue(holding, "a", 1)
    channel = f"dibs_{client._core.me.id.hex()}"
    renewed = "SELECT until FROM {s}.dibs_claims WHERE name = 'dibs:a' AND held IS NULL"
    seen, begun = set(raw(renewed)), time.monotonic()
    for _ in range(FLOOD // 100):
        raw("SELECT count(pg_notify(%s, %s)) FROM generate_series(1, 100)", channel, FORGED[case]())
        seen.update(raw(renewed))
    assert len(seen) <= MOST_LOOKS * (time.monotonic() - begun + 1)
    assert not waiting.done()
    await ana(hold.release)
    await bob((await waiting).release)
    await eventually(lambda: not raw.claims("dibs:a"))


def test_an_answer_of_another_shape(url: str, raw: Raw) -> None:
    """Anyone with the right to replace a routine decides its reply; a reply is no grant unless it says so."""
    with dibs.connect(url) as client:
        client.lock("a").acquire().release()
        body = "LANGUAGE sql AS $$ SELECT 'nonsense'::text $$"
        arguments = raw("SELECT pg_get_function_arguments('{s}.dibs_2_join'::regproc)")[0][0]
        raw(f"CREATE OR REPLACE FUNCTION {{s}}.dibs_2_join({arguments}) RETURNS text {body}")
        with pytest.raises(dibs.StoreError, match="not one of a dibs routine"):
            client.lock("a").acquire(timeout=30)
