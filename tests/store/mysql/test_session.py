"""Session mode: what it is asked with, what it refuses, whom the server lets in and in which order, and what stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial

import pymysql
import pytest

import dibs
from dibs.backends.mysql.session.sessions import unfit
from dibs.testing.contract.seats import Seat, until
from lab.servers import ports
from lab.servers.mariadb import NAME
from lab.servers.supervisor import Server
from lab.stopwatch import Stopwatch
from store.mysql.relays import Greeter
from store.mysql.rows import Raw

LEASE = 60.0
"""A third of it, after which a renewal would find out, is longer than anything here waits."""
TIME_OUT = 20.0


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


def waiting(raw: Raw) -> int:
    return len([1 for (state,) in raw.ask("SELECT state FROM information_schema.processlist") if state == "User lock"])


def stands(raw: Raw, count: int) -> bool:
    return waiting(raw) == count


def test_the_mode_is_one_of_two() -> None:
    assert "semaphore" in dir(dibs.connect("mysql://db/shop", mode="lease"))
    for given in ({"mode": "advisory"}, {"mode": ""}, {"mode": 1}):
        with pytest.raises(ValueError, match="mode="):
            dibs.connect("mysql://db/shop", **given)
    with pytest.raises(ValueError, match="mode="):
        dibs.connect("mysql://db/shop?mode=both")


def test_what_it_cannot_do_is_said_when_the_lock_is_made() -> None:
    client = dibs.connect("mysql://db/shop?mode=session")
    for make in (
        lambda: client.rwlock("a"),
        lambda: client.semaphore("a", 2),
        lambda: client.striped("a", 4),
        lambda: client.lock("a", lease=5),
    ):
        with pytest.raises(dibs.Unsupported) as caught:
            make()
        assert caught.value.store == "mysql://db/shop"


def test_first_come_first_served_by_the_server(clients: Callable[..., dibs.Client], raw: Raw, name: str) -> None:
    """Each has a client of its own, and asks once the one before it stands in the server's line."""
    first = clients().lock(name).acquire()
    served: list[int] = []

    def serve(number: int, lock: dibs.Lock) -> None:
        with lock:
            served.append(number)

    with ThreadPoolExecutor(8) as pool:
        for number in range(8):
            pool.submit(serve, number, clients().lock(name))
            until(partial(stands, raw, number + 1))
        first.release()
    assert served == list(range(8))


def test_a_wait_that_is_over_ends_in_the_server_too(clients: Callable[..., dibs.Client], raw: Raw, name: str) -> None:
    hold = clients().lock(name).acquire()
    other = clients().lock(name)
    assert other.acquire(timeout=0.3) is None
    assert waiting(raw) == 0
    hold.release()
    assert other.acquire(timeout=0)


def test_a_grant_that_meets_the_end_of_the_wait_stays_with_nobody(
    clients: Callable[..., dibs.Client], name: str
) -> None:
    """The holder lets go about when the waiter gives up: either it has the lock, or nobody has."""
    ana, bob = clients().lock(name), clients().lock(name)
    outcomes = set()
    for step in range(40):
        hold = ana.acquire(timeout=TIME_OUT)
        assert hold is not None
        late = threading.Timer(0.05 + (step % 8 - 4) / 1000, hold.release)
        late.start()
        won = bob.acquire(timeout=0.05)
        late.join()
        outcomes.add(won is None)
        if won is not None:
            won.check()
            won.release()
    assert ana.acquire(timeout=TIME_OUT)
    assert outcomes


def test_databases_of_one_server_do_not_meet(clients: Callable[..., dibs.Client], server: Server, raw: Raw) -> None:
    raw.ask("CREATE DATABASE IF NOT EXISTS other")
    elsewhere = f"{server.url(database='other')}?mode=session"
    with clients().lock("a") as here, clients(elsewhere).lock("a") as there:
        here.check()
        there.check()
        held = raw.ask("SELECT lock_name FROM dibs_held") + raw.ask("SELECT lock_name FROM other.dibs_held")
    names = {name.decode() for (name,) in held}
    assert len(names) == len(held) > 1
    assert all(len(name) == 64 and name == name.lower() for name in names)


def test_prefixes_do_not_meet_either(clients: Callable[..., dibs.Client], url: str) -> None:
    with clients(f"{url}&prefix=a").lock("ba"), clients(f"{url}&prefix=ab").lock("a", timeout=TIME_OUT):
        pass


@pytest.mark.parametrize(
    "name", ["'; DROP TABLE dibs_names; --", "x'27", "*/ SELECT 1 /*", "%s {0} {}", "A\\'\"`", "ä" * 100, "a\u202eb"]
)
def test_hostile_names(clients: Callable[..., dibs.Client], name: str) -> None:
    ana, bob = clients(owner=name, info={"n": name}), clients()
    with ana.lock(name) as hold:
        assert bob.lock(name).acquire(timeout=0) is None
        (holder,) = bob.inspect(name).holders
        assert (holder.token, holder.owner, holder.info) == (hold.token, name, {"n": name})
        assert [info.name for info in bob.locks(name)] == [name]
    with ana.lock(name):  # the quick way
        assert bob.lock(name).acquire(timeout=0) is None
        assert bob.lock(name.swapcase() + "x").acquire(timeout=0)


def test_names_that_differ_in_case_are_two(clients: Callable[..., dibs.Client]) -> None:
    with clients().lock("Ab"), clients().lock("aB", timeout=TIME_OUT):
        pass


def test_more_about_it_than_fits_is_left_out(clients: Callable[..., dibs.Client], name: str) -> None:
    ana = clients(owner="ana", info={"why": "x" * 5000})
    with ana.lock(name):
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
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(clients().lock(f"{name}-more").acquire)
            until(lambda: waiting(raw))
            hold.release()
            assert pending.result(TIME_OUT).token > hold.token
    finally:
        raw.ask("DELETE FROM dibs_held")
        raw.ask("DELETE FROM dibs_waits")


def test_what_is_held_is_found_again_after_its_row_is_gone(
    clients: Callable[..., dibs.Client], raw: Raw, name: str
) -> None:
    """The row decides nothing: who holds is whoever has the user lock."""
    client, other = clients(), clients()
    with client.lock(name):
        raw.ask("DELETE FROM dibs_held")
        assert other.lock(name).acquire(timeout=0) is None
    with other.lock(name, timeout=0):
        assert client.lock(name).acquire(timeout=0) is None


def test_a_stranger_in_the_row_breaks_nothing(clients: Callable[..., dibs.Client], raw: Raw, name: str) -> None:
    client = clients()
    with client.lock(name) as hold:
        raw.ask("UPDATE dibs_held SET session = %s", raw.id)
        with pytest.raises(dibs.NotHeld):
            clients().break_(name, token=hold.token)
        hold.check()
    assert raw.ask("SELECT 1") == [(1,)]


def test_breaking_ends_that_holder_only(clients: Callable[..., dibs.Client], name: str) -> None:
    client, other = clients(), clients()
    first, second = client.lock(name).acquire(), client.lock(f"{name}-2").acquire()
    with pytest.raises(dibs.NotHeld):
        other.break_(name, token=second.token)
    other.break_(name, token=first.token)
    until(first.lost.is_set)
    second.check()
    assert other.lock(name).acquire(timeout=TIME_OUT)


def test_connections_are_kept_for_the_next_and_no_more_than_said(
    clients: Callable[..., dibs.Client], url: str, raw: Raw, name: str
) -> None:
    client = clients(f"{url}&connections=2")
    before = len(raw.others())
    holds = [client.lock(f"{name}-{number}").acquire() for number in range(6)]
    assert len(raw.others()) >= before + 6
    for hold in holds:
        hold.release()
    until(lambda: len(raw.others()) <= before + 2 + 3)  # two idle, and those of the ways to the tables
    for _ in range(20):
        client.lock(name).acquire().release()
    assert len(raw.others()) <= before + 2 + 3


def test_a_session_that_nobody_uses_is_ended_by_us(clients: Callable[..., dibs.Client], raw: Raw, name: str) -> None:
    """After half a lease; the server would end it after a lease and a second, and write that into its log."""
    client, before = clients(lease=6.0), {number for number, _ in raw.others()}
    client.lock(name).acquire().release()
    ours = {number for number, _ in raw.others()} - before
    assert ours
    with Stopwatch() as watch:
        until(lambda: not ours & {number for number, _ in raw.others()})
        assert watch.seconds() < 6
    assert client.lock(name).acquire(timeout=0), "the next one gets a new one"


def test_a_proxy_is_refused(server: Server) -> None:
    """It greets with a number of its own for the session."""
    with Greeter((ports.HOST, server.port)) as proxy:
        through = f"mysql://{NAME}:{NAME}@{ports.HOST}:{proxy.port}/{NAME}"
        with closing(dibs.connect(through)) as client, client.lock("behind"):
            pass
        with closing(dibs.connect(through, mode="session")) as client:
            with pytest.raises(dibs.StoreError, match="a proxy answers there") as caught:
                client.lock("behind").acquire()
            assert not isinstance(caught.value, dibs.StoreUnavailable)
            assert 'leave mode="session" away' in str(caught.value)


@pytest.mark.parametrize(("comment", "version"), [(b"(ProxySQL)", b"8.0.30"), (b"Source", b"10.6.1-MariaDB-MaxScale")])
def test_a_proxy_that_says_so_is_refused_by_its_name(comment: bytes, version: bytes) -> None:
    assert "a proxy (" in str(unfit(7, b"7", comment, version))
    assert unfit(7, b"7", b"Debian 12", b"10.11.6-MariaDB") is None
    assert unfit(7, str(2**32 + 7).encode(), b"Debian 12", b"10.11.6-MariaDB") is None


def test_doctor_says_what_it_is(clients: Callable[..., dibs.Client]) -> None:
    client = clients()
    client.lock("a").acquire().release()
    said = client.doctor()
    assert any("held by a connection" in finding.what for finding in said if finding.level == "promise")
    assert not [finding for finding in said if finding.level == "danger"]


def test_a_seat_is_asked_while_it_waits_without_a_word_to_the_server(server: Server, url: str, raw: Raw) -> None:
    with closing(Seat(url)) as ana, closing(Seat(url)) as bob:
        ana.joined()
        claim, standing = bob.joined()
        before = raw.ask("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1]
        for _ in range(5):
            again = bob.look(claim)
            assert again is not None
            assert not again.holds
        after = raw.ask("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1]
        assert int(after) - int(before) <= 2  # ours, and what another may have asked
        assert standing.ticket > 0
