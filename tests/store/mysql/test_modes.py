"""Leases, session mode and transactions on one name: they exclude each other, in whatever order they come."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pymysql
import pytest

import dibs
from dibs.testing.contract.seats import until
from lab.servers.supervisor import Server
from sql.openers import mysql_options
from store.mysql.rows import Raw

MODES = ("lease", "session", "within")
TIME_OUT = 20.0


class Taker:
    """One who takes in one mode."""

    def __init__(self, mode: str, url: str, stack: ExitStack) -> None:
        self.mode = mode
        self.client = stack.enter_context(dibs.connect(url, lease=30, mode="session" if mode == "session" else None))
        self._own: Any = None
        if mode == "within":
            self._own = stack.enter_context(closing(pymysql.connect(**mysql_options(url))))
        self._hold: Any = None

    def take(self, name: str, **options: Any) -> int | None:
        lock: Any = self.client.lock(name) if self._own is None else self.client.within(self._own).lock(name)
        try:
            self._hold = lock.acquire(**options)
        except BaseException:
            self.give()
            raise
        return None if self._hold is None else int(self._hold.token)

    def give(self) -> None:
        if self._own is not None:
            self._own.rollback()
        elif self._hold is not None:
            self._hold.release()
        self._hold = None


@pytest.fixture
def takers(server: Server) -> Iterator[Callable[[str], Taker]]:
    with ExitStack() as stack:
        yield lambda mode: Taker(mode, server.url(), stack)


@pytest.mark.parametrize("timeout", [0, None])
@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("first", MODES)
def test_one_mode_at_a_time(
    takers: Callable[[str], Taker], name: str, first: str, second: str, timeout: float | None
) -> None:
    """Twice: the first time the name is not marked yet, the second time it is; then the other way round."""
    if first == second:
        return
    ana, bob = takers(first), takers(second)
    tokens = []
    for _ in range(2):
        tokens.append(ana.take(name))
        with pytest.raises(dibs.Mismatch) as caught:
            bob.take(name, timeout=timeout)
        assert (caught.value.name, caught.value.store) == (name, bob.client._core.shown)
        assert "use one mode for one name" in str(caught.value)
        ana.give()
        tokens.append(bob.take(name, timeout=0))
        with pytest.raises(dibs.Mismatch):
            ana.take(name, timeout=timeout)
        bob.give()
    assert None not in tokens
    assert tokens == sorted(set(tokens), key=lambda token: token or 0)


def test_a_waiter_in_session_mode_finds_a_lease_that_came_before_it(
    takers: Callable[[str], Taker], server: Server, name: str
) -> None:
    """A join has the user lock while it commits: who waits for that is told once it has it."""
    session, lease = takers("session"), takers("lease")
    session.take(name)
    session.give()
    with closing(Raw(server.port)) as raw:
        ((key,),) = raw.ask("SELECT lock_name FROM dibs_held WHERE name = %s", f"dibs:{name}")
        assert raw.ask("SELECT GET_LOCK(%s, 0)", key) == [(1,)]  # as a join has it
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(session.take, name)
            until(lambda: raw.ask("SELECT 1 FROM dibs_waits WHERE name = %s", f"dibs:{name}"))
            with pytest.raises(dibs.Mismatch):  # to it, somebody holds in session mode
                lease.take(name, timeout=0)
            raw.ask("INSERT INTO dibs_claims SELECT NEXTVAL(dibs_tickets), %s, 'i', 'c', 'mutex', 1, 1, 9e6, 9e6,"
                    " 3e7 + TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 0, 1, NULL, 0, '{}'",
                    f"dibs:{name}")  # fmt: skip
            raw.ask("DELETE FROM dibs_held")
            raw.ask("DO RELEASE_LOCK(%s)", key)
            with pytest.raises(dibs.Mismatch):
                pending.result(TIME_OUT)
        raw.ask("DELETE FROM dibs_claims WHERE name = %s", f"dibs:{name}")


@pytest.mark.parametrize("other", ["session", "within"])
def test_a_lease_that_is_over_is_in_nobodys_way(
    takers: Callable[[str], Taker], server: Server, name: str, other: str
) -> None:
    takers("lease").take(name)
    with closing(Raw(server.port)) as raw:
        raw.ask("UPDATE dibs_claims SET until = 1 WHERE name = %s", f"dibs:{name}")
        taker = takers(other)
        assert taker.take(name, timeout=0)
        assert raw.claims(f"dibs:{name}") == []
        with pytest.raises(dibs.Mismatch):
            takers("lease").take(name, timeout=0)


@pytest.mark.parametrize("other", ["session", "within"])
def test_a_renewal_that_is_on_its_way_is_waited_for(
    takers: Callable[[str], Taker], server: Server, name: str, other: str
) -> None:
    """It extends a lease that looks over to everybody else until it commits."""
    takers("lease").take(name)
    taker = takers(other)
    with closing(Raw(server.port)) as raw, ThreadPoolExecutor(1) as pool:
        raw.ask("UPDATE dibs_claims SET until = 1 WHERE name = %s", f"dibs:{name}")
        raw.connection.begin()
        raw.ask("UPDATE dibs_claims SET until = 3e7 + TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
                " WHERE name = %s", f"dibs:{name}")  # fmt: skip
        pending = pool.submit(taker.take, name, timeout=0)
        until(lambda: [info for _, info in raw.others() if info and "dibs_claims" in info])
        raw.connection.commit()
        with pytest.raises(dibs.Mismatch):
            pending.result(TIME_OUT)


def test_the_mark_of_a_name_outlives_the_sweep(takers: Callable[[str], Taker], server: Server, name: str) -> None:
    session = takers("session")
    session.take(name)
    with closing(Raw(server.port)) as raw:
        raw.ask("CALL dibs_1_sweep()")
        assert raw.ask("SELECT apart FROM dibs_names WHERE name = %s", f"dibs:{name}") == [(1,)]
        assert raw.ask("SELECT COUNT(*) FROM dibs_held WHERE name = %s", f"dibs:{name}") == [(1,)]
        with pytest.raises(dibs.Mismatch):
            takers("lease").take(name, timeout=0)
        session.give()
        raw.ask("CALL dibs_1_sweep()")
        assert raw.ask("SELECT COUNT(*) FROM dibs_held WHERE name = %s", f"dibs:{name}") == [(0,)]


def test_all_at_once(takers: Callable[[str], Taker], name: str) -> None:
    """Six who take in three modes, as often as they can: never two at a time, and tokens rise in their order."""
    inside: list[str] = []
    tokens: list[int] = []
    overlaps: list[list[str]] = []

    def work(taker: Taker, seed: int) -> int:
        dice, taken = random.Random(seed), 0
        for _ in range(60):
            try:
                token = taker.take(name, timeout=dice.choice([0, 0.02]))
            except dibs.Mismatch:
                continue
            if token is None:
                continue
            inside.append(taker.mode)
            tokens.append(token)
            if len(inside) > 1:
                overlaps.append(list(inside))
            taken += 1
            inside.remove(taker.mode)
            taker.give()
        return taken

    everybody = [takers(mode) for mode in MODES * 2]
    with ThreadPoolExecutor(6) as pool:
        counts = list(pool.map(work, everybody, range(6)))
    assert overlaps == []
    assert tokens == sorted(set(tokens))
    assert sum(counts) == len(tokens) > 0
