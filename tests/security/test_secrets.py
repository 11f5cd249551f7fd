"""Secrets: passwords in URLs and claim ids are shown nowhere; locks, holds and clients do not leave their process."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.worlds import timed
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
    return list(client._core.watchdog.renewing)


@timed
async def test_claim_ids_are_shown_nowhere(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = world.client(lease=3)
    ana, bob = world.actors("ana", "bob")
    lock, waits = client.lock("a"), client.lock("a", timeout=1)
    hold = await ana(lock.acquire)
    pending = bob.start(waits.__enter__ if world.api == "blocking" else waits.__aenter__)
    await world.in_queue(client, "a", 1)
    secrets = ids(client)
    assert len(secrets) == 2
    texts = [repr(thing) for thing in (client, lock, hold, hold.lost, await world.inspect(client, "a"))]
    texts += [repr(info) for info in await world.locks(client)]
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await pending
    # Error trackers keep the variables of every frame of a traceback, by their repr.
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
    ours = [frame.locals or {} for frame in frames if Path(dibs.__file__).parent in Path(frame.filename).parents]
    assert ours
    texts += [text for variables in ours for text in variables.values()]
    texts += [repr(grant.claim) for grant in client._core.watchdog.renewing.values()]
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


def test_a_url_from_the_environment_does_not_show_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "redis://ana:s3cr3t@host:port")
    with pytest.raises(ValueError, match="URL") as caught:
        dibs.connect()
    assert "s3cr3t" not in str(caught.value)


@in_memory
async def test_nothing_that_belongs_to_a_process_pickles(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    rw, both = client.rwlock("rw"), world.multi(client.lock("b"), client.lock("c"))
    things = [client, client.lock("a"), client.rlock("a"), rw, rw.read, client.semaphore("s", 2)]
    things += [client.striped("t", 2), both, await ana(client.lock("a").acquire), await ana(both.acquire)]
    for thing in things:
        with pytest.raises(TypeError, match="does not pickle"):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.deepcopy(thing)
