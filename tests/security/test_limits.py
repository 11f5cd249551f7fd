"""Limits: crowds, waiters that die again and again, times out of all proportion."""

from __future__ import annotations

import os
import signal
import time
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import dibs
from dibs.backends.sqlite.queue import SqliteQueue
from dibs.testing.contract.harness import World
from security.hostile import Connect
from store.sqlite.places import Stranger, Taking, beside, names_in, rows, until, url_of

ROOT = Path(__file__).parents[2]
FLOOD = 15_000
"""Messages that are accepted; an idle machine sends them in a fifth of a second."""
MOST_LOOKS = 20.0
"""A second, of one waiter."""


def dies_in_queue(path: Path) -> None:
    """A process that stands in the queue and is killed there."""
    if (pid := os.fork()) == 0:
        try:
            taking = Taking(dibs.connect(url_of(path)).lock("a"), 30)
            me = os.getpid()
            until(lambda: rows(path, f"SELECT 1 FROM claims WHERE about LIKE '%\"pid\": {me},%'") or taking.error)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def sizes(path: Path) -> tuple[int, int, int]:
    """Claims in the queue, files beside the database, and bytes of it."""
    side = path.with_name(path.name + "-wal")
    size = path.stat().st_size + (side.stat().st_size if side.exists() else 0)
    return rows(path, "SELECT count(*) FROM claims")[0][0], len(names_in(beside(path))), size


@pytest.mark.gate
def test_waiters_that_die_again_and_again_are_pruned(path: Path, connect: Connect) -> None:
    """The next newcomer sweeps what a dead waiter left: neither queue nor files nor database grow."""
    client = connect()
    hold = client.lock("a").acquire(timeout=60)
    assert hold is not None
    dies_in_queue(path)
    first = sizes(path)
    for _ in range(25):
        dies_in_queue(path)
    assert all(now <= then + more for now, then, more in zip(sizes(path), first, (1, 2, 1_000_000), strict=True))
    waiter = Taking(connect().lock("a"), 20)
    until(lambda: client.inspect("a").waiters, what="the waiter")
    hold.release()
    waiter.got().release()
    assert rows(path, "SELECT count(*) FROM claims") == [(0,)]


@pytest.mark.gate
def test_forged_messages_to_a_waiter_cause_few_looks(path: Path, connect: Connect) -> None:
    """Datagrams for claims that nobody has, as fast as they go: the waiter polls as often as before, once a second."""
    holder, client = connect(), connect()
    hold = holder.lock("a").acquire(timeout=60)
    assert hold is not None
    mine = set(beside(path).glob("*.sock"))
    with patch.object(SqliteQueue, "renew", autospec=True, side_effect=SqliteQueue.renew) as looks:
        waiter = Taking(client.lock("a"), 60)
        until(lambda: holder.inspect("a").waiters, what="the waiter")
        (theirs,) = set(beside(path).glob("*.sock")) - mine
        before, begun, sent = looks.call_count, time.monotonic(), 0
        with Stranger(beside(path)) as stranger:
            while waiter.is_alive() and (sent < FLOOD or time.monotonic() - begun < 1):
                assert time.monotonic() - begun < 60, "the machine is too busy"
                sent += stranger.send(theirs.name, os.urandom(16) + b"y")
        asked = looks.call_count - before
        assert asked <= MOST_LOOKS * (time.monotonic() - begun + 1), f"{asked} looks for {sent} forged messages"
    assert waiter.is_alive(), "a forged message granted"
    hold.release()
    waiter.got().release()


LONG: dict[str, dict[str, Any]] = {
    "a lease of 1e9 s": {"lease": 1e9},
    "a lease of 1e9 s, not renewed": {"lease": 10**9, "renew": False},
    "a lease of 1e300 s": {"lease": 1e300},
    "the greatest lease": {"lease": 1.7e308},
    "a maximum of 1e300 s": {"max_hold": 1e300},
    "a time-out of 1e300 s": {"timeout": 1e300},
    "a time-out of 2**63 s": {"timeout": 2**63},
}


async def test_times_out_of_proportion(world: World) -> None:
    """Refused when the lock is made, or kept to: taken, waited for, inspected, handed over and released."""
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    for case, options in LONG.items():
        try:
            lock, waits = client.lock(case, **options), other.lock(case, **options)
        except ValueError:
            continue
        hold = await ana(lock.acquire)
        pending = bob.start(waits.acquire)
        await world.in_queue(client, case, 1)
        (holder,) = (await world.inspect(other, case)).holders
        assert holder.token == hold.token, case
        assert "token" in repr(hold)
        hold.check()
        plain = client.lock(case, timeout=0.05)
        assert await ana(lambda plain=plain: plain.acquire(timeout=0)) is None, case
        with pytest.raises(dibs.AcquireTimeout):
            await ana.enter(plain)
        await ana(hold.release)
        after = await pending
        after.check()
        await bob(after.release)
    assert not await world.locks(client)


def test_nothing_is_required_at_run_time() -> None:
    """By what is declared and by what is installed: extras only."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert declared["dependencies"] == []
    assert "dependencies" not in declared["dynamic"]
    assert [need for need in requires("dibs") or [] if "extra ==" not in need] == []
