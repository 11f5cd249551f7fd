"""Session mode as MySQL has it: user locks, tables that only say who holds, connections that end, proxies. What both
databases share is in tests/store/test_modes.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pymysql
import pytest

import dibs
from dibs.backends.mysql.session import connection
from dibs.backends.mysql.session.connection import unfit
from lab.servers.supervisor import Server, until
from store.mysql.rows import Raw

pytestmark = pytest.mark.gate

LEASE = 60.0
"""A third of it, after which a renewal would find out, is longer than anything here waits."""
LONG = 60.0


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url()}?mode=session"


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    with closing(Raw(server.port)) as made:
        yield made


@pytest.fixture
def clients(url: str) -> Iterator[Callable[..., dibs.Client]]:
    with ExitStack() as stack:
        yield lambda given=url, **options: stack.enter_context(dibs.connect(given, **{"lease": LEASE, **options}))


def test_databases_prefixes_and_letters_of_one_server_do_not_meet(
    clients: Callable[..., dibs.Client], server: Server, url: str, raw: Raw
) -> None:
    raw.ask("CREATE DATABASE IF NOT EXISTS other")
    elsewhere = f"{server.url(database='other')}?mode=session"
    with clients().lock("a") as here, clients(elsewhere).lock("a", timeout=LONG) as there:
        here.check()
        there.check()
        held = raw.ask("SELECT lock_name FROM dibs_sessions") + raw.ask("SELECT lock_name FROM other.dibs_sessions")
    names = {name.decode() for (name,) in held}
    assert len(names) == len(held) > 1
    assert all(len(name) == 64 and name == name.lower() for name in names)
    with clients(f"{url}&prefix=a").lock("ba"), clients(f"{url}&prefix=ab").lock("a", timeout=LONG):
        pass
    with clients().lock("Ab"), clients().lock("aB", timeout=LONG):
        pass


def test_more_about_it_than_fits_is_left_out(clients: Callable[..., dibs.Client], name: str) -> None:
    with clients(owner="ana", info={"why": "x" * 5000}).lock(name):
        (holder,) = clients().inspect(name).holders
    assert (holder.owner, holder.info) == ("ana", {})


def test_a_table_that_is_full_keeps_nobody_out(clients: Callable[..., dibs.Client], raw: Raw, name: str) -> None:
    """It only says who holds; what is free there makes room."""
    clients().lock(name).acquire().release()
    filled = "INSERT INTO dibs_{} SELECT {} FROM seq_1_to_100000"
    try:
        with pytest.raises(pymysql.err.OperationalError, match="full"):
            raw.ask(filled.format("held", "CONCAT('x', seq), 0, 1, seq, 'mutex', 0, 0, 0, 'x', 'x'"))
        with pytest.raises(pymysql.err.OperationalError, match="full"):
            raw.ask(filled.format("waits", "seq + 1000000, seq, 'mutex', 0, 0, 'x', 'x'"))
        hold = clients().lock(f"{name}-more").acquire()
        waits = "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(clients().lock(f"{name}-more").acquire)
            until(lambda: raw.ask(waits), LONG, "somebody waits")
            hold.release()
            assert pending.result(LONG).token > hold.token
    finally:
        raw.ask("DELETE FROM dibs_sessions")
        raw.ask("DELETE FROM dibs_waits")


def test_the_row_of_a_holder_decides_nothing(clients: Callable[..., dibs.Client], raw: Raw, name: str) -> None:
    """The holder is whoever has the user lock: without its row, and with another session in it."""
    client, other = clients(), clients()
    with client.lock(name):
        raw.ask("DELETE FROM dibs_sessions")
        assert other.lock(name).acquire(timeout=0) is None
    with other.lock(name, timeout=0):
        assert client.lock(name).acquire(timeout=0) is None
    with client.lock(name) as hold:
        raw.ask("UPDATE dibs_sessions SET session = %s", raw.id)
        with pytest.raises(dibs.NotHeld):
            clients().break_(name, token=hold.token)
        hold.check()
    assert raw.ask("SELECT 1") == [(1,)]


def test_a_waiter_finds_a_lease_that_came_before_it(clients: Callable[..., dibs.Client], raw: Raw, name: str) -> None:
    """A join has the user lock while it commits: a session that waits for the user lock is told once it has it."""
    session = clients()
    session.lock(name).acquire().release()
    key = f"dibs:{name}"
    ((user_lock,),) = raw.ask("SELECT lock_name FROM dibs_sessions WHERE name = %s", key)
    assert raw.ask("SELECT GET_LOCK(%s, 0)", user_lock) == [(1,)]  # as a join has it
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(session.lock(name).acquire)
        until(lambda: raw.ask("SELECT 1 FROM dibs_waits WHERE name = %s", key), LONG)
        raw.ask("INSERT INTO dibs_claims SELECT %s, NEXTVAL(dibs_tickets), 'i', 'c', 'mutex', 1, 1, 9e6, 9e6,"
                " 6e8 + TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 0, 1, NULL, 0, '{}'",
                key)  # fmt: skip
        raw.ask("DELETE FROM dibs_sessions")
        raw.ask("DO RELEASE_LOCK(%s)", user_lock)
        with pytest.raises(dibs.Mismatch):
            pending.result(LONG)
    raw.ask("DELETE FROM dibs_claims WHERE name = %s", key)


def test_a_name_that_was_swept_is_held_all_the_same(
    clients: Callable[..., dibs.Client], server: Server, raw: Raw
) -> None:
    count = "SELECT COUNT(*) FROM dibs_sessions WHERE name = 'dibs:marked'"
    hold = clients().lock("marked").acquire()
    raw.ask("CALL dibs_2_sweep()")
    assert not raw.ask("SELECT apart FROM dibs_queues WHERE name = 'dibs:marked'")
    assert raw.ask(count) == [(1,)]
    with pytest.raises(dibs.Mismatch):
        clients(server.url()).lock("marked").acquire(timeout=0)
    hold.release()
    raw.ask("CALL dibs_2_sweep()")
    assert raw.ask(count) == [(0,)]


def test_a_proxy_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It greets with a number of its own for the session."""
    with dibs.connect(server.url()) as leases, dibs.connect(server.url(), mode="session") as client:
        monkeypatch.setattr(connection, "unfit", lambda number, *said: unfit(number + 1_000_000, *said))
        leases.lock("behind").acquire().release()
        with pytest.raises(dibs.StoreError, match=r'a proxy answers there.*use mode="lease"') as caught:
            client.lock("behind").acquire()
        assert not isinstance(caught.value, dibs.StoreUnavailable)
    for comment, version in ((b"(ProxySQL)", b"8.0.30"), (b"Source", b"10.6.1-MariaDB-MaxScale")):
        assert "a proxy (" in str(unfit(7, b"7", comment, version))
    assert unfit(7, b"7", b"Debian 12", b"10.11.6-MariaDB") is None
    assert unfit(7, str(2**32 + 7).encode(), b"Debian 12", b"10.11.6-MariaDB") is None


def test_the_tables_are_dropped_meanwhile(clients: Callable[..., dibs.Client], raw: Raw, name: str) -> None:
    """The server keeps the lock, not the tables; those are made anew, and tokens rise."""
    client, other = clients(), clients()
    with client.lock(name) as hold:
        raw.ask("DROP DATABASE dibs")
        raw.ask("CREATE DATABASE dibs")
        assert other.lock(name).acquire(timeout=0) is None
    with other.lock(name, timeout=LONG) as won:
        assert won.token > hold.token
