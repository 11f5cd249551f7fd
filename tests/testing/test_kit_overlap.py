"""Overlaps: what counts as two holders at once, and what does not."""

from __future__ import annotations

import asyncio

import pytest

import dibs
from dibs.runtime.threads import step
from dibs.testing.kit import KitAioClient, KitClient
from testing.aside import Aside, hold_of


def test_code_that_goes_on_after_a_loss_overlaps(dibs_client: KitClient) -> None:
    first = hold_of(dibs_client.lock("job"))
    dibs_client.expire("job")
    assert not dibs_client.overlaps
    second = Aside(lambda: dibs_client.lock("job").acquire(), name="second-worker").result()
    with pytest.raises(dibs.LockLost):
        first.release()
    (seen,) = dibs_client.overlaps
    assert (seen.name, seen.first.token, seen.second.token) == ("job", first.token, second.token)
    assert seen.first.lost
    text = str(seen)
    assert f'"job": two holders at once: thread MainThread (token {first.token}) had lost it and went on' in text
    assert f"while thread second-worker (token {second.token}) got it" in text
    dibs_client.overlaps.clear()


def test_a_hold_ends_when_its_release_is_called_not_when_it_is_done(dibs_client: KitClient) -> None:
    hold = hold_of(dibs_client.lock("job"))
    giving_back = dibs_client._core.registry.release(hold._core)
    dibs_client.expire("job")
    with dibs_client.lock("job"):
        assert not dibs_client.overlaps
    with pytest.raises(dibs.LockLost):
        step(giving_back)


def test_a_holder_that_could_not_know(dibs_client: KitClient) -> None:
    with dibs_client.lock("job") as hold:
        dibs_client.break_("job", token=hold.token)
        Aside(lambda: dibs_client.lock("job").acquire()).result()
        with pytest.raises(dibs.LockLost):
            hold.release()
    (seen,) = dibs_client.overlaps
    assert not seen.first.lost
    assert "had not been told of any loss" in str(seen)
    dibs_client.overlaps.clear()


def test_tasks_overlap_too_also_with_threads(dibs_client: KitClient, dibs_aio_client: KitAioClient) -> None:
    dibs.connect().lock("other").acquire()
    dibs_client.expire("other")

    async def main() -> None:
        await dibs_aio_client.lock("other").acquire()
        hold = await dibs_aio_client.lock("job").acquire()
        assert hold is not None
        dibs_aio_client.expire("job")
        await asyncio.create_task(second(), name="second-worker")

    async def second() -> None:
        await dibs_aio_client.lock("job").acquire()

    asyncio.run(main())
    other, seen = dibs_aio_client.overlaps
    assert (other.name, other.first.who) == ("other", "thread MainThread")
    assert seen.second.who == "task second-worker"
    assert seen.first.who.startswith("task Task-")
    dibs_aio_client.overlaps.clear()


def test_readers_share_and_a_writer_does_not(dibs_client: KitClient) -> None:
    rw = dibs_client.rwlock("stock")
    with rw.write as hold:
        hold.downgrade()
        Aside(rw.read.acquire).result().release()
    first, second = Aside(rw.read.acquire).result(), Aside(rw.read.acquire).result()
    assert not dibs_client.overlaps
    dibs_client.expire("stock", token=first.token)
    second.release()
    Aside(rw.write.acquire).result()
    assert [seen.first.token for seen in dibs_client.overlaps] == [first.token]
    dibs_client.overlaps.clear()


def test_re_entry_is_one_holder_until_its_last_release(dibs_client: KitClient) -> None:
    lock = dibs_client.rlock("job")
    outer = lock.acquire()
    inner = lock.acquire()
    assert outer is not None
    assert inner is not None
    assert not dibs_client.overlaps
    dibs_client.expire("job")
    with pytest.raises(dibs.LockLost):
        inner.release()
    Aside(lambda: dibs_client.lock("job").acquire()).result()
    assert len(dibs_client.overlaps) == 1, "the outer one goes on"
    dibs_client.overlaps.clear()


def test_an_exception_in_the_block_ends_it(dibs_client: KitClient) -> None:
    with pytest.raises(dibs.NotHeld), dibs_client.lock("job"):
        lost_twice(dibs_client)
    with dibs_client.lock("job"):
        assert not dibs_client.overlaps


def lost_twice(client: KitClient) -> None:
    client.expire("job")
    client.expire("job")  # nobody holds it: this raises, in the block


def test_other_stores_and_namespaces_and_closed_clients_do_not_overlap(dibs_client: KitClient) -> None:
    with dibs.connect() as closed:
        closed.lock("job").acquire()
    clients = [dibs_client, dibs_client.another("memory://other"), dibs_client.another(namespace="other")]
    assert all(client.lock("job").acquire(timeout=0) for client in clients)
    assert not dibs_client.overlaps


def test_observers_hear_of_a_release(dibs_client: KitClient) -> None:
    """The kit stands between a client and its registry: what the registry says of a release must pass."""
    heard: list[dibs.Event] = []
    stop = dibs.observe(heard.append)
    with dibs_client.lock("job"):
        pass
    stop()
    assert [event.what for event in heard] == ["acquired", "released"]
