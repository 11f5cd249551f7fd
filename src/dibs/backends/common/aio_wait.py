"""Wait in an event loop for a socket that the loop does not own. Threads have no use for it, and do not import it."""

from __future__ import annotations

import asyncio


async def readable(there: int, patience: float, *, writable: bool = False) -> bool:
    """Whether something is there to be read within so many seconds; or something may be written, if that will do."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()

    def settle(outcome: bool) -> None:
        if not ready.done():
            ready.set_result(outcome)

    loop.add_reader(there, settle, True)
    if writable:
        loop.add_writer(there, settle, True)
    timer = loop.call_later(max(patience, 0.0), settle, False)
    try:
        return await ready
    finally:
        timer.cancel()
        loop.remove_reader(there)
        loop.remove_writer(there)
