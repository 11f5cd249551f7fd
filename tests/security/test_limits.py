"""Limits (cases 53 to 55, 59, 60): crowds, waiters that die again and again, times out of all proportion."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.core.line import DDL, LEASES
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.worlds import on
from lab.stopwatch import Stopwatch
from security.cases import ROOT
from security.planting import Connect
from store.sqlite.places import Taking, beside, names_in, rows, until, url_of

CROWD, LESS, FEWER = 2000, 1000, 400
"""In tables each of them is a commit. Those who come to a store of sessions are each shown all who came before: that is
the recipe there."""


@pytest.mark.slow
@on("aio")
async def test_a_crowd_waits_for_one_name(world: World) -> None:
    """Each is served once and in the order of the line; a hundred thousand were not tried."""
    client, tokens = world.client(), list[int]()
    able = client._core.store.capabilities
    crowd = FEWER if LEASES not in able else LESS if DDL in able else CROWD
    hold = await client.lock("a").acquire()

    async def wait() -> None:
        async with client.lock("a", timeout=35) as mine:
            tokens.append(mine.token)

    began = time.monotonic()
    tasks = [asyncio.create_task(wait()) for _ in range(crowd)]
    await eventually(lambda: repr(client).endswith(f"{crowd + 1} held or asked for>"))
    await world.in_line(client, "a", crowd)
    joined = time.monotonic()
    await hold.release()
    await asyncio.gather(*tasks)
    served = time.monotonic()
    print(f"figure: {crowd} waiters: in line after {joined - began:.2f} s, all served {served - joined:.2f} s later")
    assert tokens == sorted(set(tokens))
    assert len(tokens) == crowd
    assert not await world.locks(client)


def dies_in_line(path: Path) -> None:
    """A process that stands in line and is killed there."""
    if (pid := os.fork()) == 0:
        try:
            taking = Taking(dibs.connect(url_of(path)).lock("a"), 30)
            me = os.getpid()
            until(lambda: rows(path, f"SELECT 1 FROM claims WHERE about LIKE '%\"pid\": {me},%'") or taking.error)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def sizes(path: Path) -> tuple[int, int, int]:
    """Claims in line, files beside the database, and bytes of it."""
    side = path.with_name(path.name + "-wal")
    size = path.stat().st_size + (side.stat().st_size if side.exists() else 0)
    return rows(path, "SELECT count(*) FROM claims")[0][0], len(names_in(beside(path))), size


def test_waiters_that_die_again_and_again_are_pruned(path: Path, connect: Connect) -> None:
    """What one of them leaves the next newcomer sweeps: neither line nor files nor database grow."""
    client = connect()
    hold = client.lock("a").acquire(timeout=5)
    assert hold is not None
    dies_in_line(path)
    first = sizes(path)
    for _ in range(25):
        dies_in_line(path)
    last = sizes(path)
    assert last[0] <= first[0] + 1
    assert last[1] <= first[1] + 2
    assert last[2] <= first[2] + 1_000_000
    waiter = Taking(connect().lock("a"), 20)
    until(lambda: client.inspect("a").waiters, what="the waiter")
    with Stopwatch() as watch:
        hold.release()
        waiter.got().release()
        assert watch.seconds() < 3
    assert rows(path, "SELECT count(*) FROM claims") == [(0,)]


LONG: dict[str, dict[str, Any]] = {
    "a lease of 1e9 s": {"lease": 1e9},
    "a lease of 1e9 s, not renewed": {"lease": 10**9, "renew": False},
    "a lease of 1e300 s": {"lease": 1e300},
    "the greatest lease": {"lease": 1.7e308},
    "a maximum of 1e300 s": {"max_hold": 1e300},
    "a time-out of 1e300 s": {"timeout": 1e300},
    "a time-out of 2**63 s": {"timeout": 2**63},
}


@pytest.mark.parametrize("case", LONG)
async def test_times_out_of_proportion(world: World, case: str) -> None:
    """Refused when the lock is made, or kept to: taken, waited for, looked at, handed over and given back."""
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    try:
        lock, waits = client.lock("a", **LONG[case]), other.lock("a", **LONG[case])
    except ValueError:
        return
    hold = await ana(lock.acquire)
    pending = bob.start(waits.acquire)
    await world.in_line(client, "a", 1)
    (holder,) = (await world.inspect(other, "a")).holders
    assert holder.token == hold.token
    assert "token" in repr(hold)
    hold.check()
    assert await ana(lambda: client.lock("a").acquire(timeout=0)) is None
    with pytest.raises(dibs.AcquireTimeout):
        await ana.enter(client.lock("a", timeout=0.05))
    await ana(hold.release)
    after = await pending
    after.check()
    await bob(after.release)
    assert not await world.locks(client)


async def test_a_lease_of_1e9_s_ends_with_its_holder(world: World) -> None:
    """What nobody releases is broken by its token, whatever its lease; the holder is told."""
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a", lease=1e9, renew=False).acquire())
    await bob(lambda: other.break_("a", token=hold.token))
    after = await bob(lambda: other.lock("a").acquire(timeout=5))
    assert after.token > hold.token


@pytest.mark.parametrize("step", [3600, -3600], ids=["forward", "back"])
async def test_the_wall_clock_of_a_client_decides_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """All that Python tells of it steps by an hour while something is held; tests/lab does so to whole processes."""
    client, other = world.client(lease=world.lasting), world.client(lease=world.lasting)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + step)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + step * 10**9)
    seen = [hold.remaining]

    def renewed() -> bool:
        seen.append(hold.remaining)
        return seen[-1] > seen[-2]

    assert await bob(lambda: other.lock("a").acquire(timeout=0)) is None
    await eventually(renewed)
    hold.check()
    assert 0 < hold.remaining <= world.lasting
    assert await bob(lambda: other.lock("a").acquire(timeout=0)) is None
    await ana(hold.release)
    after = await bob(lambda: other.lock("a").acquire(timeout=5))
    assert after.token > hold.token


def test_nothing_is_required_at_run_time() -> None:
    """By what is declared and by what is installed: extras only."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert declared["dependencies"] == []
    assert "dependencies" not in declared["dynamic"]
    assert [need for need in requires("dibs") or [] if "extra ==" not in need] == []
