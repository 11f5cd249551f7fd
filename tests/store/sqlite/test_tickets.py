"""Tokens rise over everything: another boot, a used-up reservation. And what a client leaves: nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
import dibs.aio
from store.sqlite.places import PATIENCE, Taking, beside, change, held, names_in, rows, standstill, until, url_of

Connect = Callable[..., dibs.Client]
TABLES = ("claims", "clients", "outsiders")


def token_of(client: dibs.Client, name: str = "a") -> int:
    with client.lock(name, timeout=PATIENCE) as hold:
        return hold.token


def reserved(path: Path) -> int:
    return int(rows(path, "SELECT reserved FROM store")[0][0])


def count(path: Path) -> dict[str, int]:
    return {table: rows(path, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def test_another_boot_throws_claims_away_and_begins_behind_what_was_reserved(path: Path, connect: Connect) -> None:
    client = connect()
    last = token_of(client)
    client.close()
    end = reserved(path)
    assert end > last
    change(path, "INSERT INTO clients VALUES (x'aa', 'aa.live', 1, 1, 'aa.sock')")
    change(path, "INSERT INTO claims VALUES ('dibs/a', 1, x'bb', x'aa', 'mutex', 1, 1, 1e12, 0, 0, 0, '{}')")
    prefixed = connect().inspect("a")
    change(path, "UPDATE store SET boot = 'another'")
    newcomer = connect()
    assert token_of(newcomer) >= end
    assert rows(path, "SELECT count(*) FROM claims") == [(0,)], prefixed
    assert rows(path, "SELECT count(*) FROM clients WHERE id = x'aa'") == [(0,)]
    assert reserved(path) > token_of(newcomer)


def test_a_reservation_that_is_used_up_is_raised(path: Path, connect: Connect) -> None:
    client = connect()
    last = token_of(client)
    client.close()
    change(path, "UPDATE store SET reserved = 1")
    assert last < token_of(connect()) < reserved(path)


@pytest.mark.parametrize("used", [False, True], ids=["first-use", "settled"])
def test_a_join_that_was_cancelled_leaves_nothing(path: Path, connect: Connect, used: bool) -> None:
    """The statement waits in the client's own thread while the task is cancelled: it must not come true later."""
    onlooker = connect()
    token_of(onlooker)

    async def main() -> None:
        async with dibs.aio.connect(url_of(path), retry=60) as client:
            if used:
                async with client.lock("warm"):
                    pass
            for again in (1, 2):
                with standstill(path):
                    tasks = [asyncio.ensure_future(client.lock("a").acquire(timeout=60)) for _ in range(3)]
                    await asyncio.sleep(0.05)
                    for _ in range(again):
                        for task in tasks:
                            task.cancel()
                        await asyncio.sleep(0)
                    for task in tasks:
                        with pytest.raises(asyncio.CancelledError):
                            await task
                async with client.lock("a", timeout=60):
                    pass
                await asyncio.to_thread(until, lambda: onlooker.inspect("a").holders == ())
                await asyncio.sleep(0.3)
                info = onlooker.inspect("a")
                assert (info.holders, info.waiters) == ((), ())

    asyncio.run(main())
    assert count(path)["claims"] == 0


def test_nothing_of_a_closed_client_stays(path: Path, connect: Connect) -> None:
    client, other = connect(), connect()
    hold = held(client)
    waiting = [Taking(other.lock("a", fair=fair), PATIENCE) for fair in (True, False)]
    until(lambda: client.inspect("a").waiters, what="the waiter")
    other.close()
    for one in waiting:
        one.join(PATIENCE)
        assert isinstance(one.error, dibs.Closed)
    client.close()
    assert hold.lost.is_set()
    assert count(path) == dict.fromkeys(TABLES, 0)
    assert names_in(path.parent) == ["locks.db", "locks.db.d"]
    assert names_in(beside(path)) == ["turn"]


_FORGETFUL = """
import gc, os, sys, time, dibs
from dibs.runtime import threads

threads.LINGER = 0.01
url = sys.argv[1]

def ten():
    for _ in range(10):
        dibs.connect(url).lock("a").acquire().release()

def settled(most):
    end = time.monotonic() + 40
    while True:
        gc.collect()
        found = len(os.listdir("/proc/self/fd"))
        if found <= most:
            return found
        assert time.monotonic() < end, f"{found} descriptors are open, at most {most} were expected"
        time.sleep(0.02)

kept = dibs.connect(url)
kept.lock("a").acquire().release()
first = settled(10**6)
ten()
second = settled(first + 14)
ten()
settled(second + 4)
kept.close()
"""


@pytest.mark.gate
def test_forgotten_clients_leak_nothing(path: Path) -> None:
    """A program that connects for each use and never closes must not run out of descriptors. SQLite itself keeps some
    of the database open, for re-use, while another connection of the process has locks: so the second ten count."""
    done = subprocess.run(
        [sys.executable, "-c", _FORGETFUL, url_of(path)], capture_output=True, text=True, timeout=55, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
