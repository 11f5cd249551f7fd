"""PostgreSQL under attack (cases 23, 24, 56): hostile rows and messages, and servers that are none. Anyone who may
write rows could as well delete the claims of others: what counts here is that nonsense never becomes a grant, a crash,
or an answer without an end. Logins, certificates and rights: test_server_access.py.
"""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.listener import Listener
from lab.servers import shared_postgresql
from lab.witness import apis_of
from security.planted import is_said_well, nothing_comes_of_it, others_are_served
from security.test_access import SECRET, refused
from store.postgresql.rows import MICROSECONDS, Raw

both_apis = apis_of("postgresql", "postgresql://127.0.0.1:1/postgres")
FAR = 2**62
FLOOD = 3000
MOST_LOOKS = 20.0
HOSTILE: dict[str, dict[str, Any]] = {
    "the greatest weight": {"weight": 2**63 - 1},
    "the greatest capacity": {"capacity": 2**63 - 1, "weight": 2**63 - 1},
    "the greatest ticket": {"ticket": 2**63 - 1},
    "a lease of a thousand years": {"lease": FAR, "until": FAR},
    "held since the end of time": {"asked": FAR, "held": FAR},
    "held since before all time": {"asked": -FAR, "held": -FAR},
    "nobody's id": {"id": b""},
    "another kind": {"kind": "nonsense' OR true --"},
    "a kind that steers a terminal": {"kind": "\x1b[2J\x1b]0;x\x07"},
    "no description": {"about": ""},
    "a description that is none": {"about": "[[[["},
    "a huge description": {"about": "x" * 1_000_000},
    "a client of another size": {"client": os.urandom(999)},
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_postgresql.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    place, _, schema = url.partition("?schema=")
    with closing(psycopg.connect(place, autocommit=True)) as connection:
        yield Raw(connection, schema)


@pytest.fixture
def pair(url: str) -> Iterator[tuple[dibs.Client, dibs.Client]]:
    with dibs.connect(url) as one, dibs.connect(url) as other:
        one.lock("a").acquire().release()
        yield one, other


def test_a_hostile_row(pair: tuple[dibs.Client, dibs.Client], url: str, raw: Raw) -> None:
    for case, columns in HOSTILE.items():
        raw.plant("dibs:a", **columns)
        print(f"case: {case}")
        nothing_comes_of_it(pair[0], url)
        others_are_served(*pair)
        raw("DELETE FROM {s}.dibs_claims")


def test_a_row_that_cannot_be_written(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    for columns in ({"weight": -5}, {"capacity": 0}, {"ticket": -1}, {"lease": 0}):
        with pytest.raises(psycopg.errors.CheckViolation):
            raw.plant("dibs:a", **columns)


def test_a_hostile_row_beside_a_holder(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    """It may wait behind her or, with a lower ticket, displace her; nobody else gets in, and nobody crashes."""
    for case, columns in HOSTILE.items():
        print(f"case: {case}")
        hold = pair[0].lock("a", timeout=30).acquire()
        assert hold is not None
        raw.plant("dibs:a", **columns)
        try:
            assert pair[1].lock("a").acquire(timeout=0.1) is None
        except dibs.DibsError as error:
            assert is_said_well(error, "postgresql://nowhere/")
        try:
            hold.release()
        except dibs.DibsError as error:
            assert str(error).isprintable()
        raw("DELETE FROM {s}.dibs_claims")


def test_a_row_below_all_that_were_given(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    """Who has been there does not look at it, who comes new takes it for the first: nobody holds beside the other."""
    raw.plant("dibs:a", ticket=1)
    hold = pair[0].lock("a").acquire(timeout=1)
    assert pair[1].lock("a").acquire(timeout=0.2) is None
    if hold is not None:
        hold.release()


def test_a_row_that_lasts_for_ever_can_be_broken(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    raw.plant("dibs:a", lease=FAR, until=FAR)
    (holder,) = pair[0].inspect("a").holders
    pair[0].break_("a", token=holder.token)
    pair[1].lock("a", timeout=30).acquire().release()


def test_a_row_whose_end_was_put_off_ends_with_its_lease(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    raw.plant("dibs:a", lease=MICROSECONDS, until=FAR)
    pair[1].lock("a", timeout=20).acquire().release()


def test_hostile_values_of_cells(pair: tuple[dibs.Client, dibs.Client], raw: Raw) -> None:
    raw("INSERT INTO {s}.dibs_cells VALUES ('fence', 'dibs:f', 'DROP TABLE', 1)")
    with pytest.raises(dibs.StoreError, match="dibs did not write"):
        pair[0].fence("f").admit(5)
    raw("INSERT INTO {s}.dibs_cells VALUES ('cell', 'dibs:c', %s, %s)", bytes(range(256)), 2**63 - 1)
    assert pair[0].cell("c").get() == (bytes(range(256)), 2**63 - 1)
    with pytest.raises(dibs.DibsError):
        pair[0].cell("c").set(b"", 2**63 - 1)


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


# Who is no PostgreSQL.

NO_SERVER = {
    "silence": b"",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "noise": bytes(range(255, 0, -1)) * 16,
    "a message of a gigabyte": b"R\x3f\xff\xff\xff" + bytes(1000),
    "an error without an end": b"E\x00\x01\x00\x00" + b"x" * 200,
    "no salt": b"R\x00\x00\x00\x08\x00\x00\x00\x05",
}


@pytest.mark.parametrize("case", NO_SERVER)
def test_what_is_no_server(case: str) -> None:
    """Whatever it says, and then nothing more."""

    def manner(line: socket.socket) -> None:
        line.recv(1000)
        line.sendall(NO_SERVER[case])
        while line.recv(1000):
            pass

    with Listener("postgresql", manner) as bad:
        error = refused(f"postgresql://ana:{SECRET}@{bad.host}/app?sslmode=disable")
        assert bad.calls
    assert isinstance(error, dibs.StoreError)


def test_an_answer_of_another_shape(url: str, raw: Raw) -> None:
    """Whoever may replace a routine decides what it answers; it is no grant unless it says so."""
    with dibs.connect(url) as client:
        client.lock("a").acquire().release()
        (signature,) = raw("SELECT oid::regprocedure::text FROM pg_proc WHERE oid = '{s}.dibs_2_join'::regproc")[0]
        body = "LANGUAGE sql AS $$ SELECT 'nonsense'::text $$"
        arguments = raw("SELECT pg_get_function_arguments('{s}.dibs_2_join'::regproc)")[0][0]
        raw(f"CREATE OR REPLACE FUNCTION {{s}}.dibs_2_join({arguments}) RETURNS text {body}")
        assert signature
        with pytest.raises(dibs.StoreError, match="not one of a dibs routine"):
            client.lock("a").acquire(timeout=30)
