"""Programs around a blocked or busy interpreter, and asyncio beside a store that stands still.

loops.py SCENARIO URL LEASE
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

from worker import say  # beside this script

import dibs
import dibs.aio

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


def busy_thread(url: str, lease: float) -> None:
    """Pure Python in other threads, which never give the interpreter away by themselves."""
    client = dibs.connect(url, lease=lease)
    over = time.monotonic() + LONGER * lease

    def spin() -> None:
        while time.monotonic() < over:
            pass

    with client.lock("a", timeout=60) as hold:
        say("held", hold.token)
        threads = [threading.Thread(target=spin) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("after", hold.lost.is_set(), hold.remaining > 0)
        sys.stdin.readline()
    say("left")


async def _take(client: dibs.aio.Client, name: str, timeout: float) -> None:
    begun, word = time.monotonic(), "took"
    try:
        if await client.lock(name).acquire(timeout=timeout) is None:
            word = "busy"
    except dibs.DibsError as error:
        word = type(error).__name__
    say(name, word, time.monotonic() - begun)


async def _tick(gaps: list[float]) -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(0.01)
        gaps.append(time.monotonic() - last)
        last = time.monotonic()


def standstill(url: str, lease: float) -> None:
    """Each line on stdin, NAME TIMEOUT: -> NAME OUTCOME SECONDS, then ticks COUNT WORST. With &: meanwhile, no ticks"""

    async def main() -> None:
        client, patient = dibs.aio.connect(url, lease=lease), set[asyncio.Task[None]]()
        say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, timeout, *meanwhile = line.split()
            if meanwhile:
                patient.add(asyncio.create_task(_take(client, name, float(timeout))))
                continue
            gaps: list[float] = []
            ticker = asyncio.create_task(_tick(gaps))
            await _take(client, name, float(timeout))
            ticker.cancel()
            say("ticks", len(gaps), max(gaps, default=0.0))

    asyncio.run(main())


if __name__ == "__main__":
    scenario, address, length = sys.argv[1:]
    globals()[scenario](address, float(length))
