"""The inbox of the asyncio runtime: a message is handed over or kept, whatever the wait is about to do."""

from __future__ import annotations

import asyncio
import time

from dibs.runtime.aio import AioRuntime

KEY, MESSAGE = b"key", b"message"


def test_a_message_that_comes_as_a_wait_ends_is_kept() -> None:
    """The timer of the wait has fired, and its task has not gone on yet."""

    async def main() -> bytes | None:
        runtime = AioRuntime()
        runtime.bind()
        inbox = runtime.inbox()
        inbox.expect(KEY)
        waiting = asyncio.ensure_future(inbox.wait(KEY, runtime.now() + 0.02))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + 0.03, inbox.deliver, KEY, MESSAGE)
        time.sleep(0.06)  # the loop is busy: both timers are over when it gets to them, in this order
        return await waiting or await inbox.wait(KEY, runtime.now() + 20)

    assert asyncio.run(main()) == MESSAGE
