"""A client is closed while a caller waits for a lock or acquires it: the caller gets `Closed`, and nothing is held."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isawaitable
from typing import Any

import pytest

import dibs
from dibs.core import acquire
from dibs.core.queue import LOOK
from dibs.core.rule import Claim
from dibs.testing.contract.harness import World
from lab.witness import apis_of

both_apis = apis_of("memory", "memory://close-race")


@both_apis
async def test_a_caller_that_looks_while_the_client_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquire, "_POLL_INTERVAL", 1000.0)
    other, client = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    held = await bob(lambda: other.lock("a").acquire())
    pending = ana.start(lambda: client.lock("a").acquire())
    await world.in_queue(other, "a", 1)
    queue: Any = client._core.opened._queue
    renew = queue.renew

    async def renew_meanwhile(claims: Sequence[Claim], until: float) -> Any:
        found = await renew(claims, until)
        if isawaitable(closing := client.close()):
            await closing
        return found

    queue.renew = renew_meanwhile
    (claim,) = client._core.watchdog.renewing
    client._core.me.inbox.deliver(claim, LOOK.value)
    with pytest.raises(dibs.Closed):
        await pending
    await bob(held.release)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_client_that_is_closed_during_a_free_acquire_holds_nothing(moment: str) -> None:
    """It is closed just before the claim is sent, or before its reply arrives; the lease ends what the store got."""
    client = dibs.connect(f"memory://close-free-{moment}")
    assert not client.inspect("a").holders  # opens the connection
    queue: Any = client._core.opened._queue
    usual = queue.take_now

    def closed_meanwhile(claim: Claim, place: Any, end: float) -> Any:
        if moment == "before":
            client.close()
        standing = usual(claim, place, end)
        if moment == "after":
            client.close()
        return standing

    queue.take_now = closed_meanwhile
    with pytest.raises(dibs.Closed):
        client.lock("a").acquire()
    assert not client._core.watchdog.renewing


def test_a_client_that_is_closed_just_before_a_free_acquire_sends_sends_nothing() -> None:
    client = dibs.connect("memory://close-free-first")
    assert not client.inspect("a").holders
    runtime, queue = client._core.runtime, client._core.opened._queue
    fresh_id, sent = runtime.fresh_id, list[Claim]()

    def closed_meanwhile() -> bytes:
        client.close()
        return fresh_id()

    runtime.fresh_id = closed_meanwhile  # type: ignore[method-assign]
    queue.take_now = lambda claim, *_: sent.append(claim)
    with pytest.raises(dibs.Closed):
        client.lock("a").acquire()
    assert not sent


def test_a_client_that_was_closed_is_closed_in_a_forked_child() -> None:
    client = dibs.connect("memory://close-fork")
    with client.lock("a"):
        pass
    client.close()
    client._core.after_fork(child=True, pid=1)  # as the child does
    with pytest.raises(dibs.Closed):
        client.lock("a").acquire()
