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
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.worlds import on
from security.cases import ROOT
from security.planting import Connect
from store.sqlite.places import Taking, beside, names_in, rows, until, url_of

CROWD = 200


@pytest.mark.slow
@on("aio")
async def test_a_crowd_waits_for_one_name(world: World) -> None:
    """Each is served once and in the order of the queue."""
    client, tokens = world.client(), list[int]()
    hold = await client.lock("a").acquire()

    async def wait() -> None:
        async with client.lock("a") as mine:
            tokens.append(mine.token)

    tasks = [asyncio.create_task(wait()) for _ in range(CROWD)]
    await world.in_queue(client, "a", CROWD)
    await hold.release()
    await asyncio.gather(*tasks)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == CROWD
    assert not await world.locks(client)


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


def test_waiters_that_die_again_and_again_are_pruned(path: Path, connect: Connect) -> None:
    """What one of them leaves the next newcomer sweeps: neither line nor files nor database grow."""
    client = connect()
    hold = client.lock("a").acquire(timeout=5)
    assert hold is not None
    dies_in_queue(path)
    first = sizes(path)
    for _ in range(25):
        dies_in_queue(path)
    last = sizes(path)
    assert last[0] <= first[0] + 1
    assert last[1] <= first[1] + 2
    assert last[2] <= first[2] + 1_000_000
    waiter = Taking(connect().lock("a"), 20)
    until(lambda: client.inspect("a").waiters, what="the waiter")
    hold.release()
    waiter.got().release()
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


async def test_a_lease_of_1e9_s_can_be_broken(world: World) -> None:
    """A lock that nobody releases is broken by its token, whatever its lease."""
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a", lease=1e9, renew=False).acquire())
    await bob(lambda: other.break_("a", token=hold.token))
    after = await bob(lambda: other.lock("a").acquire(timeout=5))
    assert after.token > hold.token


async def test_the_wall_clock_of_a_client_decides_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's wall clock steps by an hour, forward and back, during a hold; tests/lab steps whole processes."""
    client, other = world.client(lease=world.lasting), world.client(lease=world.lasting)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    wall, wall_ns = time.time, time.time_ns
    for step in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda step=step: wall() + step)
        monkeypatch.setattr(time, "time_ns", lambda step=step: wall_ns() + step * 10**9)
        seen = [hold.remaining]

        def renewed(seen: list[float] = seen) -> bool:
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
