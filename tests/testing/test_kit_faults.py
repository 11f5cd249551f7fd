"""expire, steal, lose_reply, pause_watchdog: each alone, together, in both APIs, and misused."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.testing.kit import KitAioClient, KitClient
from testing.aside import PATIENCE, Aside, hold_of, until


def taken(client: KitClient, name: str = "job", **options: Any) -> dibs.Hold:
    hold = client.lock(name, **options).acquire(timeout=0)
    assert hold is not None
    return hold


# expire


def test_expire_tells_the_holder_and_lets_the_next_one_in(dibs_client: KitClient) -> None:
    told: list[dibs.Hold] = []
    hold = hold_of(dibs.connect().lock("job", on_lost=told.append))
    waiter, follower = Aside(lambda: dibs_client.lock("job").acquire(timeout=600)), Aside(hold.lost.wait)
    until(lambda: dibs_client.inspect("job").waiters)
    dibs_client.expire("job")
    assert hold.lost.is_set()
    assert follower.result() is True
    until(lambda: told == [hold])
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert waiter.result().token > hold.token
    dibs_client.overlaps.clear()


def test_expire_all_holders_or_one(dibs_client: KitClient) -> None:
    permits = [dibs_client.semaphore("api", 3).acquire() for _ in range(3)]
    assert permits[0] is not None
    dibs_client.expire("api", token=permits[0].token)
    assert [hold is not None and hold.lost.is_set() for hold in permits] == [True, False, False]
    dibs_client.expire("api")
    assert all(hold is not None and hold.lost.is_set() for hold in permits)
    assert not dibs_client.inspect("api").holders
    with pytest.raises(dibs.LockLost), dibs_client.striped("shelf", 4).at("a"):
        dibs_client.expire("shelf")


@pytest.mark.parametrize("fault", ["expire", "steal"])
def test_nobody_holds(dibs_client: KitClient, fault: str) -> None:
    with pytest.raises(dibs.NotHeld, match='"job" on memory://: nobody holds it') as caught:
        getattr(dibs_client, fault)("job")
    assert caught.value.name == "job"
    hold = taken(dibs_client)
    with pytest.raises(dibs.NotHeld, match=f"nobody holds it with token {hold.token + 1}"):
        getattr(dibs_client, fault)("job", token=hold.token + 1)
    with pytest.raises(dibs.BadName):
        getattr(dibs_client, fault)("")
    assert not hold.lost.is_set()
    taken(dibs_client.another(namespace="other"), "theirs")
    with pytest.raises(dibs.NotHeld):
        getattr(dibs_client, fault)("theirs")


# steal


def test_a_stolen_lock_is_held_by_another_and_the_holder_hears_of_it_at_its_next_renewal(
    dibs_client: KitClient,
) -> None:
    told: list[dibs.Hold] = []
    hold = taken(dibs_client, on_lost=told.append)
    thief = dibs_client.steal("job")
    assert thief.token > hold.token
    assert [holder.owner for holder in dibs_client.inspect("job").holders] == ["thief"]
    hold.check()  # only the token protects
    dibs_client.clock.advance(10)
    assert hold.lost.is_set()
    until(lambda: told == [hold])
    assert dibs_client.lock("job").acquire(timeout=0) is None
    dibs_client.clock.advance(3600)
    thief.check()
    thief.release()
    with pytest.raises(dibs.LockLost):
        hold.release()
    taken(dibs_client).release()
    assert not dibs_client.overlaps, "the thief is nobody"


def test_a_thief_comes_before_those_who_wait_and_their_order_stays(dibs_client: KitClient) -> None:
    hold = taken(dibs_client)
    waiters = []
    for n in range(3):
        waiters.append(Aside(lambda: dibs_client.lock("job").acquire(timeout=600)))
        until(lambda n=n: len(dibs_client.inspect("job").waiters) == n + 1)
    thief = dibs_client.steal("job")
    assert len(dibs_client.inspect("job").waiters) == 3
    with pytest.raises(dibs.LockLost):  # nobody told it: it gives back what it does not have, and the thief stays
        hold.release()
    tokens = [thief.token]
    thief.release()
    for got in (waiter.result() for waiter in waiters):
        assert got.token == dibs_client.inspect("job").holders[0].token
        tokens.append(got.token)
        got.release()
    assert tokens == sorted(set(tokens))


# lose_reply


def test_an_acquire_whose_reply_is_lost_gets_one_hold(dibs_client: KitClient) -> None:
    lost = dibs_client.lose_reply()
    with dibs_client.lock("job", timeout=50) as hold:
        assert lost.verb == "join"
        assert [holder.token for holder in dibs_client.inspect("job").holders] == [hold.token]
        assert not dibs_client.inspect("job").waiters
    assert not dibs_client.inspect("job").holders


def test_a_try_whose_reply_is_lost_does_not_know(dibs_client: KitClient) -> None:
    dibs_client.lose_reply()
    with pytest.raises(dibs.StoreUnavailable, match='"job" on memory://: the reply to a join was lost'):
        dibs_client.lock("job").acquire(timeout=0)
    until(lambda: not dibs_client.inspect("job").holders)  # the watchdog gives back what may stand


def test_a_release_or_renewal_whose_reply_is_lost(dibs_client: KitClient) -> None:
    hold = taken(dibs_client)
    dibs_client.lose_reply("leave")
    with pytest.raises(dibs.StoreUnavailable):
        hold.release()
    until(lambda: not dibs_client.inspect("job").holders)
    with dibs_client.lock("job") as hold:
        lost = dibs_client.lose_reply("renew")
        dibs_client.clock.advance(60)
        assert lost.verb == "renew"
        hold.check()


def test_without_a_verb_it_is_a_request_of_the_application(dibs_client: KitClient) -> None:
    """Not one of a watchdog's, which come when they come."""
    with dibs_client.lock("job"):
        lost = dibs_client.lose_reply()
        dibs_client.clock.advance(3600)
        assert lost.verb is None
        assert len(dibs_client.inspect("job").holders) == 1, "a look is repeated"
        assert lost.verb == "inspect"


# pause_watchdog


def test_a_hold_is_lost_when_its_lease_is_over_and_its_watchdog_stands_still(dibs_client: KitClient) -> None:
    told: list[dibs.Hold] = []
    hold = taken(dibs_client, on_lost=told.append)
    with dibs_client.pause_watchdog():
        dibs_client.clock.advance(15)
        hold.check()
        dibs_client.clock.advance(15)
        until(lambda: told == [hold])
        with pytest.raises(dibs.LockLost):
            hold.check()
        assert dibs_client.lock("job").acquire(timeout=0), "the store let it go"
    dibs_client.overlaps.clear()


def test_a_resumed_watchdog_goes_on(dibs_client: KitClient) -> None:
    hold = taken(dibs_client)
    pause = dibs_client.pause_watchdog()
    with dibs_client.pause_watchdog():
        dibs_client.clock.advance(10)
    dibs_client.clock.advance(5)
    assert hold.remaining <= 12, "pauses add up"
    pause.resume()
    assert hold.remaining > 12
    pause.resume()
    dibs_client.clock.advance(3600)
    hold.check()


def test_only_the_watchdogs_that_are_named_stand_still(dibs_client: KitClient) -> None:
    stopped = dibs.connect()
    first = stopped.lock("job").acquire()
    mine = taken(dibs_client, "mine")
    waiter = Aside(lambda: dibs_client.lock("job").acquire(timeout=600))
    until(lambda: dibs_client.inspect("job").waiters)
    with dibs_client.pause_watchdog(stopped):
        dibs_client.clock.advance(31)
        assert first is not None
        assert first.lost.is_set()
        mine.check()
        assert waiter.result().token > first.token
    dibs_client.overlaps.clear()


def test_misuse_is_refused(dibs_client: KitClient, tmp_path: object) -> None:
    with pytest.raises(TypeError, match="takes clients"):
        dibs_client.pause_watchdog("job")
    with (
        dibs.connect(f"sqlite:///{tmp_path}/locks.db") as file,
        pytest.raises(ValueError, match="connected to a memory store during this test"),
    ):
        dibs_client.pause_watchdog(file)
    with pytest.raises(ValueError, match="an acquire sends join, a release sends leave"):
        dibs_client.lose_reply("acquire")
    with pytest.raises(ValueError, match="watch"):
        dibs_client.lose_reply("watch")
    with dibs_client.lock("job"):
        assert dibs_client.another(lease=50).lock("job").acquire(timeout=0) is None
    with pytest.raises(ValueError, match="no memory store"):
        dibs_client.another(f"sqlite:///{tmp_path}/locks.db")


# Together


def test_every_fault_in_asyncio(dibs_aio_client: KitAioClient) -> None:
    async def main() -> None:
        lost = dibs_aio_client.lose_reply()
        hold = await dibs_aio_client.lock("job").acquire()
        assert hold is not None
        assert lost.verb == "join"
        thief = dibs_aio_client.steal("job")
        hold.check()
        dibs_aio_client.clock.advance(10)
        assert hold.lost.is_set()
        with pytest.raises(dibs.LockLost):
            await hold.release()
        waiter = asyncio.create_task(dibs_aio_client.lock("job").acquire(timeout=600))
        while not (await dibs_aio_client.inspect("job")).waiters:
            await asyncio.sleep(0)
        thief.release()
        theirs = await asyncio.wait_for(waiter, PATIENCE)
        assert theirs is not None
        with dibs_aio_client.pause_watchdog(dibs_aio_client):
            dibs_aio_client.clock.advance(30)
        assert theirs.lost.is_set()
        with pytest.raises(dibs.LockLost):
            await theirs.release()
        with pytest.raises(dibs.LockLost):
            await expiring()

    async def expiring() -> None:
        async with dibs_aio_client.lock("job", cancel_on_lost=True):
            dibs_aio_client.expire("job")
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)

    asyncio.run(main())


def test_who_follows_hears_of_a_thief_at_once(dibs_client: KitClient) -> None:
    """The test's clock stands: no look of its own would come."""
    hold = hold_of(dibs_client.another().election("boss").lead())
    changes = dibs_client.election("boss").watch()
    leader = next(changes)
    assert leader is not None
    assert leader.token == hold.token
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: next(changes))
        until(lambda: dibs_client._core._watching)
        thief = dibs_client.steal("boss")
        seen = following.result(PATIENCE)
        assert seen is not None
        assert seen.token == thief.token
    thief.release()
