"""Session mode as PostgreSQL has it: advisory locks, shared ones too, their keys, and where it is refused. What both
databases share is in tests/store/test_modes.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg
import pytest

import dibs
from dibs.backends.postgresql.routines import Routines
from lab.servers.postgresql import PgBouncer, replicated
from lab.servers.programs import require
from lab.servers.supervisor import Server, until
from store.postgresql.rows import Raw

Connect = Callable[..., dibs.Client]
LONG = 60.0


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(dibs.connect(url, **{"mode": "session", **options}))


def keys(raw: Raw) -> list[tuple[int, str]]:
    return [
        (int(key), str(mode))
        for key, mode in raw(
            "SELECT classid::bigint << 32 | objid::bigint, mode FROM pg_locks "
            "WHERE locktype = 'advisory' AND objsubid = 1 AND granted"
        )
    ]


def in_queue(client: dibs.Client, name: str, count: int) -> None:
    until(lambda: len(client.inspect(name).waiters) == count, what=f"{count} in the queue")


def test_a_lock_is_an_advisory_lock_on_the_key_that_the_page_describes(connect: Connect, raw: Raw) -> None:
    client = connect()
    key = Routines(raw.schema).key_of("dibs:a")
    with client.lock("a"):
        assert (key, "ExclusiveLock") in keys(raw)
        with client.rwlock("b").read:
            assert (Routines(raw.schema).key_of("dibs:b"), "ShareLock") in keys(raw)
    assert key not in [one for one, _ in keys(raw)]


def test_the_key_never_changes() -> None:
    """Programs of different versions, and those that lock by hand, must mean the same 64-bit key."""
    assert Routines("dibs").key_of("dibs:invoice:42") == -2913974811169744400
    assert Routines("dibs").key_of("a") != Routines("locks").key_of("a")
    assert Routines("ab").key_of("c:d") != Routines("ab:c").key_of("d")


def test_a_try_does_not_pass_a_writer_that_waits(connect: Connect, name: str) -> None:
    ana, bob, cy = connect(), connect(), connect()
    with ThreadPoolExecutor(1) as pool:
        with ana.rwlock(name).read:
            pending = pool.submit(bob.rwlock(name).write.acquire, timeout=LONG)
            in_queue(cy, name, 1)
            assert cy.rwlock(name).read.acquire(timeout=0) is None
        assert pending.result(LONG)


@pytest.mark.gate
def test_a_holder_hears_that_it_is_asked_to_let_go(connect: Connect, name: str) -> None:
    ana, bob = connect(lease=9), connect()
    with ana.lock(name) as hold:
        bob.lock(name).revoke()
        assert hold.revoke_requested.wait(LONG)
        hold.check()
    with bob.lock(name) as later:
        assert not later.revoke_requested.is_set()


@pytest.mark.gate
def test_two_names_that_meet_in_one_key_are_told_apart(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Routines, "key_of", lambda self, name: 42)
    ana, bob = connect(), connect()
    with ana.lock(f"{name}-1"):
        with pytest.raises(dibs.StoreError, match=rf"same 64-bit key.*dibs:{name}-1") as caught:
            bob.lock(f"{name}-2").acquire(timeout=LONG)
        assert caught.value.name == f"{name}-2"
    with bob.lock(f"{name}-2", timeout=LONG), pytest.raises(dibs.StoreError, match="same 64-bit key"):
        ana.lock(f"{name}-1").acquire(timeout=0)
    with ana.rwlock(f"{name}-3").read, pytest.raises(dibs.StoreError, match="same 64-bit key"):
        bob.rwlock(f"{name}-4").read.acquire()


def test_who_has_the_key_and_no_token_yet_is_not_taken_for_its_predecessor(
    connect: Connect, url: str, raw: Raw, name: str
) -> None:
    """The same connection takes the same name again, and stands still between the key and the token."""
    client = connect()
    with client.lock(name) as before:
        pass
    with closing(psycopg.connect(url.partition("?")[0])) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f'LOCK TABLE "{raw.schema}".dibs_claims IN ACCESS EXCLUSIVE MODE')
        pending = pool.submit(client.lock(name).acquire, timeout=LONG)
        until(lambda: raw("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'")[0][0])
        assert Routines(raw.schema).key_of(f"dibs:{name}") in [key for key, _ in keys(raw)]
        assert raw("SELECT token FROM {s}.dibs_2_seen(%s, '', '')", f"dibs:{name}") == []
        assert raw("SELECT {s}.dibs_2_oust(%s, %s)", f"dibs:{name}", before.token)[0][0].endswith(" 0")
        other.rollback()
        hold = pending.result(LONG)
    assert hold is not None
    assert hold.token > before.token
    hold.release()


@pytest.mark.gate
def test_idle_connections_are_closed_before_the_server_has_to(server: Server, name: str) -> None:
    said = server.log().count("idle-session timeout")
    with dibs.connect(f"{server.url()}?mode=session", lease=10) as client:
        with client.lock(name):
            pass
        idle = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^dibs [1-9]'"
        assert server.ask(idle) == "1"
        until(lambda: server.ask(idle) == "0")
        assert client.lock(name).acquire(timeout=LONG)
    assert server.log().count("idle-session timeout") == said


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_refused_with_the_reason(server: Server, name: str, mode: str) -> None:
    require("pgbouncer")
    with (
        Server(PgBouncer(server.port, mode=mode)) as pool,
        dibs.connect(f"{pool.url()}?mode=session") as client,
        pytest.raises(dibs.StoreError, match=r'a pooler answers.*mode="lease"') as caught,
    ):
        client.lock(name).acquire(timeout=LONG)
    assert not isinstance(caught.value, dibs.StoreUnavailable)


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["lease", "session"])
def test_a_role_without_rights_is_told_so(server: Server, name: str, mode: str) -> None:
    with dibs.connect(f"{server.url()}?mode=session") as client:
        client.lock(name).acquire(timeout=LONG)
    server.ask(f"CREATE ROLE plain{mode} LOGIN PASSWORD 'plain'")
    with (
        dibs.connect(f"{server.url(user=f'plain{mode}', password='plain')}?mode={mode}") as client,
        pytest.raises(dibs.StoreError, match=r"permission denied.*--ddl"),
    ):
        client.lock(name).acquire(timeout=LONG)


@pytest.mark.gate
def test_a_standby_is_refused_with_the_reason(name: str) -> None:
    with replicated() as (primary, replica):
        with dibs.connect(f"{primary.url()}?mode=session") as client:
            client.lock(name).acquire(timeout=LONG)
        with (
            dibs.connect(f"{replica.url()}?mode=session") as client,
            pytest.raises(dibs.StoreError, match="a standby"),
        ):
            client.lock(name).acquire(timeout=LONG)
