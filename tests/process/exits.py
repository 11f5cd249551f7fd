"""Programs that end while something is held.

exits.py SCENARIO URL LEASE
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading

from worker import say  # beside this script

import dibs
import dibs.aio

PATIENCE = 60.0
"""Also for asyncio's debug mode, which says on stderr what took longer than this: a busy machine is no news."""


def wait_for_line() -> None:
    sys.stdin.readline()


def held(client: dibs.Client) -> dibs.Hold:
    hold = client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    return hold


def main_thread(url: str, lease: float) -> None:
    client = dibs.connect(url, lease=lease)
    hold = held(client)
    say("held", hold.token)
    wait_for_line()


def waiting_thread(url: str, lease: float) -> None:
    """As above, while a daemon thread waits for another lock."""
    client = dibs.connect(url, lease=lease)
    hold = held(client)
    threading.Thread(target=lambda: client.lock("elsewhere").acquire(timeout=PATIENCE), daemon=True).start()
    say("held", hold.token)
    wait_for_line()


def ended_thread(url: str, lease: float) -> None:
    client = dibs.connect(url, lease=lease)
    tokens: list[int] = []
    thread = threading.Thread(target=lambda: tokens.append(held(client).token))
    thread.start()
    thread.join()
    say("held", tokens[0])
    wait_for_line()


def daemon_thread(url: str, lease: float) -> None:
    """A daemon thread works on in its body while the interpreter ends; a slow exit hook leaves time to look."""
    import atexit

    atexit.register(lambda: (say("exiting"), wait_for_line()))  # registered first, so that it runs after dibs's own
    client = dibs.connect(url, lease=lease)

    def body() -> None:
        with client.lock("a", timeout=PATIENCE) as hold:
            say("held", hold.token)
            threading.Event().wait()

    threading.Thread(target=body, daemon=True).start()
    wait_for_line()


def loop_ended(url: str, lease: float) -> None:
    """asyncio.run is over, its hold is not."""
    client = dibs.aio.connect(url, lease=lease)

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = PATIENCE
        hold = await client.lock("a").acquire(timeout=PATIENCE)
        assert hold is not None
        say("held", hold.token)

    asyncio.run(main())
    wait_for_line()


def loop_cancelled(url: str, lease: float) -> None:
    """A task stands in its block when asyncio.run ends: cancelling it leaves the block."""

    async def body(client: dibs.aio.Client, entered: asyncio.Event) -> None:
        async with client.lock("a", timeout=PATIENCE) as hold:
            say("held", hold.token)
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


def _child(url: str, lease: float) -> None:
    client = dibs.connect(url, lease=lease)
    say("held", held(client).token)


def _multiprocessing(method: str, url: str, lease: float) -> None:
    process = multiprocessing.get_context(method).Process(target=_child, args=(url, lease))
    process.start()
    process.join()
    say("status", process.exitcode)
    wait_for_line()


def by_spawn(url: str, lease: float) -> None:
    _multiprocessing("spawn", url, lease)


def by_fork(url: str, lease: float) -> None:
    _multiprocessing("fork", url, lease)


def by_forkserver(url: str, lease: float) -> None:
    _multiprocessing("forkserver", url, lease)


def by_sys_exit(url: str, lease: float) -> None:
    client = dibs.connect(url, lease=lease)
    with client.lock("a") as hold:
        say("held", hold.token)
        wait_for_line()
        sys.exit(3)


def dropped_client(url: str, lease: float) -> None:
    """Neither the client nor its hold is referred to any more: the hold ends at exit, not before."""
    import gc

    say("held", held(dibs.connect(url, lease=lease)).token)
    gc.collect()
    wait_for_line()


if __name__ == "__main__":
    scenario, address, length = sys.argv[1:]
    globals()[scenario](address, float(length))
