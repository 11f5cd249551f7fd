"""Programs around a blocked or busy interpreter, a crowd of threads, and asyncio beside a store that stands still.

loops.py SCENARIO URL LEASE [SIZE]
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from pathlib import Path

from worker import now, outcome, say  # beside this script

import dibs
import dibs.aio
from lab.stopwatch import Stopwatch

LONGER = 1.5
"""Leases for which an interpreter is blocked or busy: without a renewal the hold would be lost."""


def blocked_loop(url: str, lease: float) -> None:
    """-> held, after BLOCKED-SECONDS LOST"""

    async def main() -> None:
        async with dibs.aio.connect(url, lease=lease) as client, client.lock("a", timeout=60) as hold:
            say("held", hold.token)
            time.sleep(LONGER * lease)
            say("after", hold.lost.is_set(), hold.remaining > 0)
            await asyncio.to_thread(sys.stdin.readline)

    asyncio.run(main())
    say("left")


def busy_thread(url: str, lease: float, hogs: int = 2) -> None:
    """Pure Python in other threads, which never give the interpreter away by themselves."""
    client = dibs.connect(url, lease=lease)
    over = time.monotonic() + LONGER * lease

    def spin() -> None:
        while time.monotonic() < over:
            pass

    with client.lock("a", timeout=60) as hold:
        say("held", hold.token)
        threads = [threading.Thread(target=spin) for _ in range(hogs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("after", hold.lost.is_set(), hold.remaining > 0)
        sys.stdin.readline()
    say("left")


def busy_threads(url: str, lease: float) -> None:
    """Several of them, in an interpreter that changes threads half as often as usual. There is an end to this: what a
    renewal waits for is the number of hogs times the interval, some ten times over."""
    sys.setswitchinterval(0.01)
    busy_thread(url, lease, hogs=4)


def c_code(url: str, lease: float) -> None:
    """C that keeps the interpreter to itself (PyDLL does not let go of it) for longer than the lease. Nor does this
    thread before it has asked whether it still holds: nobody else can have told it.

    -> held TOKEN, after CHECK LOST DEADLINE NOW, gave OUTCOME
    """
    client = dibs.connect(url, lease=lease)
    hold = client.lock("a").acquire(timeout=60)
    assert hold is not None
    say("held", hold.token)
    sys.stdin.readline()
    deadline = now() + hold.remaining
    sys.setswitchinterval(60)
    ctypes.PyDLL(None).usleep(int(3 * lease * 1e6))
    check, lost, back = outcome(hold.check), hold.lost.is_set(), now()
    sys.setswitchinterval(0.005)
    say("after", check, lost, deadline, back)
    sys.stdin.readline()
    say("gave", outcome(hold.release))


ROUNDS, NAMES = 3, ("a", "b", "c", "d")


def crowd(url: str, lease: float, size: int) -> None:
    """Many threads on four names; each checks whether it is alone -> served N, alone N, peak THREADS FDS"""
    client = dibs.connect(url, lease=lease)
    with client.lock("a", timeout=60):
        """Now the store is open."""
    inside: dict[str, list[int]] = {name: [] for name in NAMES}
    alone: list[bool] = []
    peaks: list[tuple[int, int]] = []
    start = threading.Barrier(size)

    def work(number: int) -> None:
        start.wait()
        for turn in range(ROUNDS):
            name = NAMES[(number + turn) % len(NAMES)]
            with client.lock(name, timeout=120) as hold:
                inside[name].append(hold.token)
                if name == NAMES[0]:  # one at a time: the directory that it lists takes a descriptor
                    peaks.append(_footprint())
                alone.append(inside[name] == [hold.token])
                inside[name].remove(hold.token)

    before = _footprint()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("served", len(alone))
    say("alone", sum(alone))
    say("peak", max(peak[0] for peak in peaks) - before[0], max(peak[1] for peak in peaks) - before[1])
    sys.stdin.readline()
    client.close()
    say("closed")


def _footprint() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    threads, descriptors = (sum(1 for _ in Path(f"/proc/self/{what}").iterdir()) for what in ("task", "fd"))
    return threads, descriptors


async def _take(client: dibs.aio.Client, watch: Stopwatch, name: str, timeout: float) -> None:
    begun, word = watch.seconds(), "took"
    try:
        if await client.lock(name).acquire(timeout=timeout) is None:
            word = "busy"
    except dibs.DibsError as error:
        word = type(error).__name__
    say(name, word, watch.seconds() - begun)


async def _tick(watch: Stopwatch, gaps: list[float]) -> None:
    last = watch.seconds()
    while True:
        await asyncio.sleep(0.01)
        gaps.append(watch.seconds() - last)
        last = watch.seconds()


def standstill(url: str, lease: float) -> None:
    """Each line on stdin, NAME TIMEOUT: -> NAME OUTCOME SECONDS, then ticks COUNT WORST. With &: meanwhile, no ticks"""

    async def main(watch: Stopwatch) -> None:
        client, patient = dibs.aio.connect(url, lease=lease), set[asyncio.Task[None]]()
        say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, timeout, *meanwhile = line.split()
            if meanwhile:
                patient.add(asyncio.create_task(_take(client, watch, name, float(timeout))))
                continue
            gaps: list[float] = []
            ticker = asyncio.create_task(_tick(watch, gaps))
            await _take(client, watch, name, float(timeout))
            ticker.cancel()
            say("ticks", len(gaps), max(gaps, default=0.0))

    with Stopwatch() as watch:
        asyncio.run(main(watch))


if __name__ == "__main__":
    scenario, address, length, *more = sys.argv[1:]
    globals()[scenario](address, float(length), *map(int, more))
