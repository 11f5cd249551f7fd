"""Tokens rise over everything: another boot, a used-up reservation. And what a client leaves: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
import dibs.aio
from store.sqlite.places import PATIENCE, Taking, beside, change, names_in, rows, standstill, until, url_of

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
    token = token_of(connect())
    assert token > last
    assert reserved(path) > token
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("used", [False, True], ids=["first-use", "settled"])
@pytest.mark.parametrize("again", [1, 2], ids=["once", "twice"])
def test_a_join_that_was_cancelled_leaves_nothing(path: Path, connect: Connect, used: bool, again: int) -> None:
    """The statement waits in the client's own thread while the task is cancelled: it must not come true later."""
    onlooker = connect()
    token_of(onlooker)

    async def main() -> None:
        async with dibs.aio.connect(url_of(path), retry=3) as client:
            if used:
                async with client.lock("warm"):
                    pass
            with standstill(path):
                tasks = [asyncio.ensure_future(client.lock("a").acquire(timeout=3)) for _ in range(3)]
                await asyncio.sleep(0.05)
                for _ in range(again):
                    for task in tasks:
                        task.cancel()
                    await asyncio.sleep(0)
                for task in tasks:
                    with pytest.raises(asyncio.CancelledError):
                        await task
            hold = await client.lock("a").acquire(timeout=5)
            assert hold is not None
            await hold.release()
            await asyncio.to_thread(until, lambda: onlooker.inspect("a").holders == ())
            await asyncio.sleep(0.3)
            info = onlooker.inspect("a")
            assert (info.holders, info.waiters) == ((), ())

    asyncio.run(main())
    assert count(path)["claims"] == 0


def test_nothing_of_a_closed_client_stays(path: Path, connect: Connect) -> None:
    client, other = connect(), connect()
    hold = client.lock("a").acquire(timeout=5)
    assert hold is not None
    assert other.lock("a").acquire(timeout=0.1) is None
    assert other.lock("a", fair=False).acquire(timeout=0.1) is None
    waiter = Taking(other.lock("a"), PATIENCE)
    barger = Taking(other.lock("a", fair=False), PATIENCE)
    until(lambda: client.inspect("a").waiters, what="the waiter")
    other.close()
    waiter.join(PATIENCE)
    barger.join(PATIENCE)
    assert isinstance(waiter.error, dibs.Closed)
    assert isinstance(barger.error, dibs.Closed)
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


def test_forgotten_clients_leak_nothing(path: Path) -> None:
    """A program that connects for each use and never closes must not run out of descriptors. SQLite itself keeps some
    of the database open, for re-use, while another connection of the process has locks: so the second ten count."""
    done = subprocess.run(
        [sys.executable, "-c", _FORGETFUL, url_of(path)], capture_output=True, text=True, timeout=55, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def come_and_go(path: Path) -> int:
    """A forked child that connects, takes, gives back and closes, again and again; its pid."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for _ in range(25):
                with dibs.connect(url_of(path)) as client:
                    token_of(client, "x")
            status = 0
        finally:
            os._exit(status)
    return pid


def test_clients_that_come_and_go(path: Path, connect: Connect) -> None:
    """Whoever closes the last connection locks the file for a moment: others wait that out, and nobody hangs."""
    token_of(connect())
    pids, statuses = {come_and_go(path), come_and_go(path)}, []
    end = time.monotonic() + PATIENCE
    try:
        while pids and time.monotonic() < end:
            with dibs.connect(url_of(path)) as onlooker:
                onlooker.inspect("x")
            for pid in list(pids):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    pids.remove(pid)
                    statuses.append(os.waitstatus_to_exitcode(status))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert not pids, "a process hangs"
    assert statuses == [0, 0]
