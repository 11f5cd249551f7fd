"""Programs around a blocked or busy interpreter, a crowd of threads, and asyncio beside a store that stands still.

loops.py SCENARIO URL LEASE
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import dibs
import dibs.aio
from lab.stopwatch import Stopwatch


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


def busy_thread(url: str, lease: float, hogs: int = 2) -> None:
    """Pure Python in other threads, which never give the interpreter away by themselves."""
    client = dibs.connect(url, lease=lease)
    over = time.monotonic() + 3 * lease

    def spin() -> None:
        while time.monotonic() < over:
            pass

    with client.lock("a", timeout=5) as hold:
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
    hold = client.lock("a").acquire(timeout=5)
    assert hold is not None
    say("held", hold.token)
    sys.stdin.readline()
    deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + hold.remaining
    sys.setswitchinterval(60)
    ctypes.PyDLL(None).usleep(int(3.5 * lease * 1e6))
    check, lost, now = _outcome(hold.check), hold.lost.is_set(), time.clock_gettime(time.CLOCK_BOOTTIME)
    sys.setswitchinterval(0.005)
    say("after", check, lost, deadline, now)
    sys.stdin.readline()
    say("gave", _outcome(hold.release))


def _outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except dibs.DibsError as error:
        return type(error).__name__
    return "ok"


CROWD, ROUNDS, NAMES = 200, 3, ("a", "b", "c", "d")


def crowd(url: str, lease: float) -> None:
    """200 threads on four names; each of them looks whether it is alone -> served N, alone N, peak THREADS FDS"""
    client = dibs.connect(url, lease=lease)
    with client.lock("a", timeout=5):
        """Now the store is open."""
    inside: dict[str, list[int]] = {name: [] for name in NAMES}
    alone: list[bool] = []
    peaks: list[tuple[int, int]] = []
    start = threading.Barrier(CROWD)

    def work(number: int) -> None:
        start.wait()
        for turn in range(ROUNDS):
            name = NAMES[(number + turn) % len(NAMES)]
            with client.lock(name, timeout=40) as hold:
                inside[name].append(hold.token)
                peaks.append(_footprint())
                alone.append(inside[name] == [hold.token])
                inside[name].remove(hold.token)

    before = _footprint()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(CROWD)]
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


async def _taken(client: dibs.aio.Client, watch: Stopwatch, name: str, timeout: float) -> tuple[str, float]:
    begun = watch.seconds()
    try:
        hold = await client.lock(name).acquire(timeout=timeout)
    except dibs.DibsError as error:
        return type(error).__name__, watch.seconds() - begun
    return "busy" if hold is None else "took", watch.seconds() - begun


async def _ticking(watch: Stopwatch, gaps: list[float]) -> None:
    last = watch.seconds()
    while True:
        await asyncio.sleep(0.01)
        now = watch.seconds()
        gaps.append(now - last)
        last = now


def standstill(url: str, lease: float) -> None:
    """Each line on stdin, NAME TIMEOUT [NAME TIMEOUT...] at once: -> OUTCOME SECONDS each, then ticks COUNT WORST"""

    async def main(watch: Stopwatch) -> None:
        client = dibs.aio.connect(url, lease=lease)
        say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            words = line.split()
            gaps: list[float] = []
            ticker = asyncio.create_task(_ticking(watch, gaps))
            wanted = [(words[n], float(words[n + 1])) for n in range(0, len(words), 2)]
            for outcome, seconds in await asyncio.gather(*(_taken(client, watch, *one) for one in wanted)):
                say(outcome, seconds)
            ticker.cancel()
            say("ticks", len(gaps), max(gaps, default=0.0))
        await client.close()

    with Stopwatch() as watch:
        asyncio.run(main(watch))


if __name__ == "__main__":
    scenario, address, length = sys.argv[1:]
    globals()[scenario](address, float(length))
