"""A client is closed while one who waits for a lock is just looking: it is told so too, and does not wait on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.core import acquire
from dibs.core.queue import LOOK
from dibs.core.rule import Claim
from process.children import until

SOON = 50.0


@pytest.fixture(autouse=True)
def _nobody_wakes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquire, "_POLL_INTERVAL", 20 * SOON)


def test_in_asyncio() -> None:
    async def main() -> None:
        async with dibs.aio.connect("memory://close-race-aio") as other:
            held = await other.lock("a").acquire()
            client = dibs.aio.connect("memory://close-race-aio")
            pending = asyncio.create_task(client.lock("a").acquire())
            while not (await other.inspect("a")).waiters:
                await asyncio.sleep(0.001)
            line: Any = client._core.opened._queue
            renew = line.renew

            async def renew_meanwhile(claims: Sequence[Claim], until: float) -> Any:
                found = await renew(claims, until)
                await client.close()
                return found

            line.renew = renew_meanwhile
            (claim,) = client._core.watchdog.renewing
            client._core.me.inbox.deliver(claim, LOOK.value)
            with pytest.raises(dibs.Closed):
                await asyncio.wait_for(pending, SOON)
            await held.release()

    asyncio.run(main())


def test_in_threads() -> None:
    found: list[BaseException] = []
    with dibs.connect("memory://close-race") as other, other.lock("a"):
        client = dibs.connect("memory://close-race")

        def wait() -> None:
            try:
                client.lock("a").acquire()
            except dibs.Closed as error:
                found.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        until(lambda: other.inspect("a").waiters)
        line: Any = client._core.opened._queue
        renew = line.renew

        async def renew_meanwhile(claims: Sequence[Claim], until: float) -> Any:
            answer = await renew(claims, until)
            client.close()
            return answer

        line.renew = renew_meanwhile
        (claim,) = client._core.watchdog.renewing
        client._core.me.inbox.deliver(claim, LOOK.value)
        thread.join(SOON)
        assert found, "it waits on"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_client_that_is_closed_in_the_middle_of_a_free_acquire_holds_nothing(moment: str) -> None:
    """Just before the claim is sent, and while the answer is on its way."""
    with dibs.connect("memory://close-free") as other:
        client = dibs.connect("memory://close-free", lease=2)  # which ends what comes after the close
        assert not client.inspect("a").holders  # the way to the store is opened at first use
        line: Any = client._core.opened._queue
        usual = line.take_now

        def closed_meanwhile(claim: Claim, place: Any, end: float) -> Any:
            if moment == "before":
                client.close()
            standing = usual(claim, place, end)
            if moment == "after":
                client.close()
            return standing

        line.take_now = closed_meanwhile
        with pytest.raises(dibs.Closed):
            client.lock("a").acquire()
        until(lambda: not other.inspect("a").holders)
        with other.lock("a", timeout=SOON):
            assert not client._core.watchdog.renewing


def test_a_client_that_was_closed_is_closed_in_a_forked_child() -> None:
    client = dibs.connect("memory://close-fork")
    with client.lock("a"):
        pass
    client.close()
    client._core.after_fork(child=True, pid=1)  # as the child does
    with pytest.raises(dibs.Closed):
        client.lock("a").acquire()
