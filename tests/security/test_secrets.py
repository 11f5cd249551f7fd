"""Secrets: passwords in URLs and claim ids are shown nowhere; locks, holds and clients do not leave their process."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.witness import apis_of

in_memory = apis_of("memory", "memory://secrets")
"""For what is the same on every store."""


def forms(secret: bytes) -> Iterator[str]:
    """As a claim's id might be written."""
    yield secret.hex()
    yield repr(secret)[2:-1]
    yield str(int.from_bytes(secret, "big"))
    yield str(int.from_bytes(secret, "little"))


def ids(client: Any) -> list[bytes]:
    return [claim for claim in client._core.watchdog.renewing]  # noqa: C416  (one word for the reader)


async def test_claim_ids_are_shown_nowhere(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = world.client(lease=6)
    ana, bob = world.actors("ana", "bob")
    lock, waits = client.lock("a"), client.lock("a", timeout=2)
    hold = await ana(lock.acquire)
    pending = bob.start(waits.__enter__ if world.api == "blocking" else waits.__aenter__)
    await world.in_queue(client, "a", 1)
    secrets = ids(client)
    assert len(secrets) == 2
    texts = [repr(thing) for thing in (client, lock, hold, hold.lost, await world.inspect(client, "a"))]
    texts += [repr(info) for info in await world.locks(client)]
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await pending
    texts += ["".join(traceback.format_exception(caught.value)), repr(caught.value), repr(caught.value.info)]
    with pytest.raises(dibs.NotHeld) as refused:
        await ana(lambda: client.break_("a", token=hold.token + 1))
    texts += [str(refused.value), repr(refused.value.info)]
    await ana(lambda: client.break_("a", token=hold.token))
    await eventually(hold.lost.is_set)
    with pytest.raises(dibs.LockLost) as lost:
        hold.check()
    texts += [str(lost.value), repr(hold), caplog.text, repr(client)]
    for secret in secrets:
        for form in forms(secret):
            assert not [text for text in texts if form in text]


@in_memory
async def test_ids_are_random_and_long(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    for n in range(300):
        await ana(lambda n=n: client.lock(f"n{n}").acquire())
    seen = ids(client)
    assert len(set(seen)) == 300
    assert {len(secret) for secret in seen} == {16}
    assert len({secret[:4] for secret in seen}) > 290
    assert len({secret[-4:] for secret in seen}) > 290


async def test_tokens_are_no_credentials(world: World) -> None:
    # Knowing name and token lets one break, as documented; it does not let one release or renew as the holder.
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a", owner="ana").acquire())
    with pytest.raises(dibs.NotHeld):
        await bob(lambda: other.lock("a", owner="ana").release())
    assert not await bob(other.lock("a", owner="ana").owned)
    hold.check()


def test_a_url_from_the_environment_does_not_show_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "redis://ana:s3cr3t@host:port")
    with pytest.raises(ValueError, match="URL") as caught:
        dibs.connect()
    assert "s3cr3t" not in str(caught.value)


@in_memory
async def test_nothing_that_belongs_to_a_process_pickles(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    rw = client.rwlock("rw")
    things = [
        client,
        client.lock("a"),
        client.rlock("a"),
        rw,
        rw.read,
        client.semaphore("s", 2),
        client.striped("t", 2),
    ]
    things += [world.multi(client.lock("a"), client.lock("b"))]
    things += [await ana(lambda: client.lock("a").acquire())]
    things += [await ana(lambda: world.multi(client.lock("b"), client.lock("c")).acquire())]
    for thing in things:
        with pytest.raises(TypeError, match="does not pickle"):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.deepcopy(thing)


@in_memory
async def test_the_errors_pickle(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await bob.enter(client.lock("a", timeout=0))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.info, again.name) == (str(caught.value), caught.value.info, "a")
