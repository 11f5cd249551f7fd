"""Programs that end while something is held.

exits.py SCENARIO URL LEASE
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import sys
import threading
import time
from functools import partial

from worker import say, wait_for_line  # beside this script

import dibs
import dibs.aio

PATIENCE = 60.0
"""asyncio's debug mode reports on stderr what took longer than this, too."""


def hold(url: str, lease: float) -> tuple[dibs.Client, dibs.Hold]:
    client = dibs.connect(url, lease=lease)
    held = client.lock("a").acquire(timeout=PATIENCE)
    assert held is not None
    say("held", held.token)
    return client, held


def main_thread(url: str, lease: float) -> None:
    kept = hold(url, lease)
    wait_for_line()
    del kept


def waiting_thread(url: str, lease: float) -> None:
    """The same, while a daemon thread waits for a lock that another process holds."""
    client = dibs.connect(url, lease=lease)
    threading.Thread(target=lambda: client.lock("elsewhere").acquire(timeout=PATIENCE), daemon=True).start()
    while not client.inspect("elsewhere").waiters:
        time.sleep(0.01)
    main_thread(url, lease)


def daemon_thread(url: str, lease: float) -> None:
    """A daemon thread works on in its body while the interpreter ends; a slow exit hook leaves time to look."""
    atexit.register(lambda: (say("exiting"), wait_for_line()))  # registered first, so that it runs after dibs's own
    client = dibs.connect(url, lease=lease)

    def body() -> None:
        with client.lock("a", timeout=PATIENCE) as held:
            say("held", held.token)
            threading.Event().wait()

    threading.Thread(target=body, daemon=True).start()
    wait_for_line()


def loop_ended(url: str, lease: float) -> None:
    """asyncio.run is over, its hold is not."""
    client = dibs.aio.connect(url, lease=lease)

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = PATIENCE
        held = await client.lock("a").acquire(timeout=PATIENCE)
        assert held is not None
        say("held", held.token)

    asyncio.run(main())
    wait_for_line()


def loop_cancelled(url: str, lease: float) -> None:
    """A task is in its block when asyncio.run ends: cancelling it leaves the block."""

    async def body(client: dibs.aio.Client, entered: asyncio.Event) -> None:
        async with client.lock("a", timeout=PATIENCE) as held:
            say("held", held.token)
            entered.set()
            await asyncio.Event().wait()

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = PATIENCE
        entered = asyncio.Event()
        main.task = asyncio.create_task(body(dibs.aio.connect(url, lease=lease), entered))  # type: ignore[attr-defined]
        await entered.wait()
        await asyncio.to_thread(wait_for_line)

    asyncio.run(main())
    say("ended")
    wait_for_line()


def by_multiprocessing(method: str, url: str, lease: float) -> None:
    process = multiprocessing.get_context(method).Process(target=hold, args=(url, lease))
    process.start()
    process.join()
    say("status", process.exitcode)
    wait_for_line()


by_spawn, by_fork, by_forkserver = (partial(by_multiprocessing, way) for way in ("spawn", "fork", "forkserver"))


def by_sys_exit(url: str, lease: float) -> None:
    client = dibs.connect(url, lease=lease)
    with client.lock("a") as held:
        say("held", held.token)
        wait_for_line()
        sys.exit(3)


def dropped_client(url: str, lease: float) -> None:
    """Neither the client nor its hold is referred to any more: the hold ends at exit, not before."""
    hold(url, lease)
    gc.collect()
    wait_for_line()


if __name__ == "__main__":
    scenario, address, length = sys.argv[1:]
    globals()[scenario](address, float(length))
