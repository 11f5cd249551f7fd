"""Steps of the wall clock: the shim itself, what they do to Redis, and that they do nothing to dibs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dibs
from lab import clock as clocks
from lab.clock import Clock
from lab.peers import ask
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from process.children import Child, until
from process.children import clock as boottime

HOUR = 3600
LEASE = 2.0
STEPS = pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clocks.shim(tmp_path_factory)


@pytest.fixture
def clock(tmp_path: Path, shim: Path) -> Clock:
    return Clock(tmp_path, shim)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


Start = Callable[..., Child]


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """A process that uses locks; on a clock of its own if it is given one."""
    children: list[Child] = []

    def timekeeper(clock: Clock | None = None) -> Child:
        env = clock.env() if clock else None
        child = Child("../lab/timekeeper", url, LEASE, flags=("-P",), env=env)
        children.append(child)
        child.hear("ready")
        return child

    try:
        yield timekeeper
    finally:
        for child in children:
            child.discard()


def test_the_shim_is_built_once_by_however_many(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:  # each opens the lock anew, as processes would
        inodes = list(pool.map(lambda _: clocks.build(tmp_path).stat().st_ino, range(6)))
    assert len(set(inodes)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clock_shim.lock", "clock_shim.so"]


def test_a_clock_reads_back_its_steps(clock: Clock) -> None:
    assert clock.offset == 0
    clock.step(HOUR)
    clock.step(-3 * HOUR)
    assert clock.offset == -2 * HOUR
    before = time.time()
    assert before <= clock.now() + 2 * HOUR <= time.time()


@STEPS
def test_a_python_process_sees_its_own_wall_clock_jump_and_nothing_else(
    clock: Clock, start: Start, tmp_path: Path, shim: Path, step: int
) -> None:
    stepped, other = start(clock), start(Clock(tmp_path, shim))
    for offset in (0, step):
        clock.step(offset)
        for child, expected in ((stepped, offset), (other, 0)):
            before = time.time(), time.monotonic(), boottime()
            *walls, monotonic, boot = map(float, child.ask("clocks", hear="clocks"))
            after = time.time(), time.monotonic(), boottime()
            assert all(before[0] <= wall - expected <= after[0] for wall in walls)
            assert before[1] <= monotonic <= after[1]
            assert before[2] <= boot <= after[2]


def test_a_step_forward_removes_a_key_of_redis_and_a_step_back_makes_it_stay(clock: Clock) -> None:
    """Key TTLs follow the server's wall clock: a lease there promises nothing across a step."""
    require("redis")
    with Server(Redis(), env=clock.env()) as redis:
        assert ask(redis.port, "SET", "lock", "me", "PX", 30_000) == b"+OK\r\n"
        assert 0 < int(ask(redis.port, "PTTL", "lock")[1:]) <= 30_000
        clock.step(-HOUR)
        assert 3_600_000 < int(ask(redis.port, "PTTL", "lock")[1:]) <= 3_630_000
        clock.step(2 * HOUR)
        assert ask(redis.port, "GET", "lock") == b"$-1\r\n"
        seconds = int(ask(redis.port, "TIME").split(b"\r\n")[2])
        assert abs(seconds - clock.now()) < 10


@pytest.mark.slow
def test_a_hold_stays_valid_and_renewed_and_exclusive(clock: Clock, start: Start, url: str) -> None:
    """Forward for a lease, then back for a lease."""
    holder, rival = start(clock), start()
    asked = boottime()
    holder.ask("take", "door", 10, hear="took")
    taken = boottime()
    for step in (HOUR, -2 * HOUR):
        clock.step(step)
        begun, deadline = boottime(), 0.0
        while boottime() < begun + LEASE:
            before = boottime()
            word, remaining, *ages = holder.ask("state", "door", hear="state")
            assert word == "valid"
            assert 0 < float(remaining) <= LEASE
            assert len(ages) == 2
            for age in map(float, ages):
                assert before - taken - 1 <= age <= boottime() - asked + 1
            deadline = before + float(remaining)
            rival.ask("take", "door", 0.1, hear="busy")
        assert deadline > begun + LEASE, "it was renewed after the step"
    with dibs.connect(url) as onlooker:
        (seen,) = onlooker.inspect("door").holders
        age = time.time() - seen.since.timestamp()
        assert boottime() - taken - 1 <= age <= boottime() - asked + 1
        assert 0 < seen.remaining <= LEASE
    holder.ask("give", hear="gave")
    rival.ask("take", "door", 10, hear="took")


@STEPS
def test_a_waiter_whose_clock_jumps_waits_as_long_as_it_said_and_in_its_turn(
    clock: Clock, start: Start, url: str, step: int
) -> None:
    holder, first, second, hasty = start(), start(clock), start(), start(clock)
    with dibs.connect(url) as onlooker:

        def in_line() -> int:
            return len(onlooker.inspect("door").waiters)

        token = int(holder.ask("take", "door", 10, hear="took")[0])
        for waiters, (waiter, timeout) in enumerate(((first, 60), (second, 60), (hasty, 1.2)), 1):
            waiter.tell("take", "door", timeout)
            until(lambda waiters=waiters: in_line() == waiters, what=f"{waiters} in line")
        clock.step(step)
        assert float(hasty.hear("busy")[0]) >= 1.2
        # All look after themselves once a second, so the first has done so by its new time.
        assert in_line() == 2
        assert first.silent()
        holder.ask("give", hear="gave")
        next_token = int(first.hear("took")[0])
        assert second.silent()
        first.ask("give", hear="gave")
        assert token < next_token < int(second.hear("took")[0])


def test_without_its_environment_nothing_changes(start: Start) -> None:
    assert "CLOCK_SHIM" not in os.environ
    before = time.time()
    assert before <= float(start().ask("clocks", hear="clocks")[0]) <= time.time()
