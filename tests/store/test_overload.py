"""Overload of one client: holders lose nothing, and waiters that give up are gone soon.

The short runs show that a crowd does no harm; in the soak it is as large as that of a busy service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
import dibs.aio
from lab.servers.programs import require
from lab.servers.shared import fresh, fresh_mariadb, fresh_postgresql, fresh_redis
from process.children import clock, until

pytestmark = pytest.mark.gate
LEASE = 12.0
"""Renewed every 4 s, with 8 s to spare on a machine that stands still."""
PATIENCE = 60.0
STORES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "redis": ("redis", fresh_redis),
    "postgresql": ("postgresql", fresh_postgresql),
    "mysql": ("mariadb", fresh_mariadb),
    "zookeeper": ("zookeeper", fresh),
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    program, make = STORES[request.param]
    require(program)
    return make(tmp_path)


async def give_up(client: dibs.aio.Client, end: float, how: str) -> None:
    """Ask for the name that somebody holds, again and again, for a tenth of a second each time."""
    while time.monotonic() < end:
        try:
            if how == "cancelled":
                async with asyncio.timeout(0.1):
                    await client.lock("busy").acquire()
            else:
                await client.lock("busy", timeout=0.1).__aenter__()
        except (TimeoutError, dibs.AcquireTimeout):
            continue
        pytest.fail("somebody else has it")


@pytest.mark.parametrize(
    ("tasks", "seconds"), [(60, 2), pytest.param(600, 60, marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_a_crowd_that_gives_up_costs_nobody_a_lock(url: str, how: str, tasks: int, seconds: int) -> None:
    async def scene() -> None:
        async with dibs.aio.connect(url, lease=LEASE) as client, dibs.aio.connect(url, lease=LEASE) as other:
            kept = await client.lock("kept").acquire()
            busy = await other.lock("busy").acquire()
            end = time.monotonic() + seconds
            await asyncio.gather(*(give_up(client, end, how) for _ in range(tasks)))
            kept.check()
            busy.check()
            await busy.release()
            async with other.lock("busy", timeout=PATIENCE):
                pass

    asyncio.run(scene())


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_many_holds_of_one_client_are_kept_and_given_back(url: str, count: int) -> None:
    with dibs.connect(url, lease=4 * LEASE) as client, dibs.connect(url) as other:
        holds = [client.lock(f"many-{number}").acquire(timeout=PATIENCE) for number in range(count)]
        first = min((hold for hold in holds if hold is not None), key=lambda hold: hold.remaining)
        before = clock() + first.remaining
        until(lambda: clock() + first.remaining > before + 0.1, what="the first one is renewed")
        assert [hold for hold in holds if hold is None or hold.lost.is_set()] == []
        client.close()
        until(lambda: not any(info.holders for info in other.locks(prefix="many-")), what="all are given back")
