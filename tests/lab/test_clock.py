"""Steps of the wall clock: the shim, and what they do to Python and to Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab import clock as clocks
from lab.clock import Clock
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server

HOUR = 3600
CLOCKS = """
import time
from datetime import UTC, datetime
print(
    time.time(), datetime.now(UTC).timestamp(), time.clock_gettime(time.CLOCK_REALTIME), time.monotonic(),
    time.clock_gettime(time.CLOCK_BOOTTIME),
)
"""


@pytest.fixture
def clock(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path, clocks.shim(tmp_path_factory))


def test_the_shim_is_built_once_by_however_many(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:  # each opens the lock anew, as processes would
        inodes = list(pool.map(lambda _: clocks.build(tmp_path).stat().st_ino, range(6)))
    assert len(set(inodes)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clock_shim.lock", "clock_shim.so"]


@pytest.mark.parametrize("step", [HOUR, -HOUR, None])
def test_a_process_sees_its_own_wall_clock_jump_and_nothing_else(clock: Clock, step: int | None) -> None:
    """None: without the environment of a clock nothing changes."""
    clock.step(3 * (step or HOUR))
    clock.step(-2 * (step or HOUR))
    env = {**os.environ, **(clock.env() if step else {})}
    before = time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    told = subprocess.run([sys.executable, "-S", "-c", CLOCKS], env=env, capture_output=True, check=True, timeout=60)
    after = time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    *walls, monotonic, boot = map(float, told.stdout.split())
    assert all(before[0] <= wall - (step or 0) <= after[0] for wall in walls)
    assert before[1] <= monotonic <= after[1]
    assert before[2] <= boot <= after[2]


def test_a_step_forward_removes_a_key_of_redis_and_a_step_back_makes_it_stay(clock: Clock) -> None:
    """Key TTLs follow the server's wall clock: a lease there promises nothing across a step."""
    require("redis")
    with Server(Redis(), env=clock.env()) as redis:
        assert redis.ask("SET", "lock", "me", "PX", "600000") == "OK"
        clock.step(-HOUR)
        assert int(redis.ask("PTTL", "lock")) > 3_600_000
        clock.step(2 * HOUR)
        assert redis.ask("GET", "lock") == ""
        assert abs(int(redis.ask("TIME").split()[0]) - clock.now()) < 60
