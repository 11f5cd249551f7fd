"""Programs around a blocked or busy interpreter, and asyncio beside a store that stands still.

loops.py SCENARIO URL LEASE
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import dibs
import dibs.aio


def say(*words: object) -> None:
    print(*words, flush=True)


def blocked_loop(url: str, lease: float) -> None:
    """-> held, after BLOCKED-SECONDS LOST"""

    async def main() -> None:
        async with dibs.aio.connect(url, lease=lease) as client, client.lock("a", timeout=5) as hold:
            say("held", hold.token)
            time.sleep(3 * lease)
            say("after", hold.lost.is_set(), hold.remaining > 0)
            await asyncio.to_thread(sys.stdin.readline)

    asyncio.run(main())
    say("left")


def busy_thread(url: str, lease: float) -> None:
    """Pure Python in another thread, which never gives the interpreter away by itself."""
    client = dibs.connect(url, lease=lease)
    over = time.monotonic() + 3 * lease

    def spin() -> None:
        while time.monotonic() < over:
            pass

    with client.lock("a", timeout=5) as hold:
        say("held", hold.token)
        threads = [threading.Thread(target=spin) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("after", hold.lost.is_set(), hold.remaining > 0)
        sys.stdin.readline()
    say("left")


async def _taken(client: dibs.aio.Client, name: str, timeout: float) -> tuple[str, float]:
    begun = time.monotonic()
    try:
        hold = await client.lock(name).acquire(timeout=timeout)
    except dibs.DibsError as error:
        return type(error).__name__, time.monotonic() - begun
    return "busy" if hold is None else "took", time.monotonic() - begun


async def _ticking(gaps: list[float]) -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(0.01)
        now = time.monotonic()
        gaps.append(now - last)
        last = now


def standstill(url: str, lease: float) -> None:
    """Each line on stdin, NAME TIMEOUT [NAME TIMEOUT...] at once: -> OUTCOME SECONDS each, then ticks COUNT WORST"""

    async def main() -> None:
        client = dibs.aio.connect(url, lease=lease)
        say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            words = line.split()
            gaps: list[float] = []
            ticker = asyncio.create_task(_ticking(gaps))
            wanted = [(words[n], float(words[n + 1])) for n in range(0, len(words), 2)]
            for outcome, seconds in await asyncio.gather(*(_taken(client, *one) for one in wanted)):
                say(outcome, seconds)
            ticker.cancel()
            say("ticks", len(gaps), max(gaps, default=0.0))
        await client.close()

    asyncio.run(main())


if __name__ == "__main__":
    scenario, address, length = sys.argv[1:]
    globals()[scenario](address, float(length))
