"""A session whose search_path has another schema before pg_catalog, with functions and operators of the same names: as
extensions that imitate other databases ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

import dibs
from dibs.testing.contract.seats import Seat, until
from store.postgresql.rows import Raw
from store.postgresql.test_races import Held, run

pytestmark = pytest.mark.gate

NAME = "dibs:a"


@pytest.fixture
def shadowed(url: str, raw: Raw) -> Iterator[str]:
    """The same place, for sessions in which locking a name and comparing numbers always succeeds."""
    other = f"{raw.schema}-front"
    for lock in ("pg_try_advisory_xact_lock", "pg_try_advisory_xact_lock_shared", "pg_try_advisory_lock"):
        raw(f'CREATE SCHEMA IF NOT EXISTS "{other}"')
        raw(f'CREATE FUNCTION "{other}".{lock}(bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$')
    raw(f'CREATE FUNCTION "{other}".yes(bigint, bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$')
    raw(f'CREATE OPERATOR "{other}".<= (FUNCTION = "{other}".yes, LEFTARG = bigint, RIGHTARG = bigint)')
    raw(f'CREATE FUNCTION "{other}".same(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$')
    raw(f'CREATE OPERATOR "{other}".= (FUNCTION = "{other}".same, LEFTARG = text, RIGHTARG = text)')
    yield f"{url}&options=-csearch_path%3D%22{other}%22,pg_catalog"
    raw(f'DROP SCHEMA "{other}" CASCADE')


@pytest.fixture
def fronted(shadowed: str) -> Iterator[Callable[[], Seat]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Seat(shadowed)))


def test_the_lock_of_a_name_is_the_server_s(raw: Raw, fronted: Callable[[], Seat]) -> None:
    seat = fronted()
    seat.leave(seat.joined(name=NAME)[0])
    with Held(raw, NAME) as held:
        late = run(lambda: seat.joined(name=NAME))
        until(lambda: held.waiting() or not late.is_alive())
        assert held.waiting()
    late.join()


def test_one_holds_and_the_others_wait(fronted: Callable[[], Seat]) -> None:
    one, other = fronted(), fronted()
    mine, standing = one.joined(name=NAME)
    theirs, behind = other.joined(name=NAME)
    looks = [other.look(theirs), one.leave(mine) and other.look(theirs)]
    assert (standing.holds, behind.holds) == (True, False)
    assert [found.holds for found in looks if found] == [False, True]


def test_statements_of_a_session_use_the_server_s_operators(shadowed: str, raw: Raw, name: str) -> None:
    """A holder says the end of its key, by which it is found: `$1 & 65535`."""
    other = f"{raw.schema}-front"
    raw(f'CREATE FUNCTION "{other}".none(bigint, integer) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT 77777 $$')
    raw(f'CREATE OPERATOR "{other}".& (FUNCTION = "{other}".none, LEFTARG = bigint, RIGHTARG = integer)')
    with dibs.connect(f"{shadowed}&mode=session") as client, dibs.connect(f"{shadowed}&mode=session") as other_client:
        client.lock(name).acquire(timeout=30).release()  # the next one is settled without the routine
        with client.lock(name) as hold:
            assert other_client.lock(name).acquire(timeout=0) is None
            assert [holder.token for holder in client.inspect(name).holders] == [hold.token]
