"""A user's program that a type checker must understand; mypy --strict reads it, nothing runs it.

A line that ends in `type: ignore` states that the line is an error: mypy complains of an ignore that nothing needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import assert_type

import psycopg_pool
import redis
import redis.asyncio
import redis.sentinel
import sqlalchemy
import sqlalchemy.ext.asyncio

import dibs
import dibs.aio


def blocking() -> None:
    client = dibs.connect("memory://", lease=timedelta(seconds=5), owner="me", info={"job": 1}, replicas=2)
    assert_type(client, dibs.Client)
    with client as same:
        assert_type(same, dibs.Client)
    with client.lock("a", timeout=5) as hold:
        assert_type(hold, dibs.Hold)
        assert_type(hold.token, int)
        assert_type(hold.mode, str)
        assert_type(hold.owner, str)
        assert_type(hold.acquired_at, datetime)
        assert_type(hold.remaining, float)
        assert_type(hold.lost.is_set(), bool)
        assert_type(hold.lost.wait(1), bool)
        assert_type(hold.revoke_requested, dibs.HoldEvent)
    with hold as again:
        assert_type(again, dibs.Hold)

    lock = client.lock("a", lease=1, renew=False, max_hold=2.5, fair=False, owner="client", info={}, on_lost=lost)
    assert_type(lock, dibs.Lock)
    assert_type(lock.acquire(), dibs.Hold | None)
    assert_type(lock.acquire(timeout=None), dibs.Hold | None)
    assert_type(lock.acquire(timeout=timedelta(seconds=1), blocking=True), dibs.Hold | None)
    assert_type(lock.locked(), bool)
    assert_type(lock.owned(), bool)
    lock.acquire().release()  # type: ignore[union-attr]  # it may be None: busy
    lock.acquire(5)  # type: ignore[call-arg]
    lock.acquire(timeout="5")  # type: ignore[arg-type]
    lock.acquire(n=2)  # type: ignore[call-arg]

    assert_type(client.rlock("a"), dibs.RLock)
    assert_type(client.rwlock("a").read, dibs.Lock)
    assert_type(client.rwlock("a").write, dibs.Lock)
    assert_type(client.semaphore("a", 5).acquire(2, timeout=0), dibs.Hold | None)
    assert_type(client.semaphore("a", 5).permits(2), dibs.Lock)
    with client.semaphore("a", 5).permits(2) as permits:
        assert_type(permits, dibs.Hold)
    with client.semaphore("a", 5).acquire(2):  # type: ignore[union-attr]  # it may be None: permits(2) is meant
        pass
    assert_type(client.striped("a", 100).at("key"), dibs.Lock)
    assert_type(client.striped("a", 100).all(), dibs.Multi)
    with dibs.multi(lock, client.rlock("b"), client.semaphore("c", 2), timeout=1) as both:
        assert_type(both, dibs.MultiHold)
        assert_type(both.holds, tuple[dibs.Hold, ...])

    assert_type(client.inspect("a"), dibs.LockInfo)
    assert_type(client.inspect("a").holders, tuple[dibs.Participant, ...])
    assert_type(client.locks(), Iterator[dibs.LockInfo])
    client.break_("a", token=3)
    client.break_("a", 3)  # type: ignore[call-arg]

    with client.within(client).lock("a", timeout=5, owner="me", info={"job": 1}) as inside:
        assert_type(inside, dibs.WithinHold)
        assert_type(inside.token, int)
    assert_type(client.within(client).lock("a").acquire(timeout=0), dibs.WithinHold | None)
    client.within(client).lock("a", lease=5)  # type: ignore[call-arg]

    client.lock("a", patience=5)  # type: ignore[call-arg]
    client.lock("a", timeout="5")  # type: ignore[arg-type]
    client.lock("a", cancel_on_lost=True)  # type: ignore[call-arg]  # asyncio only
    client.lock("a", on_lost=print_number)  # type: ignore[arg-type]
    client.lock(42)  # type: ignore[arg-type]
    client.semaphore("a")  # type: ignore[call-arg]
    dibs.multi(dibs.aio.connect().lock("a"))  # type: ignore[arg-type]  # the two APIs do not mix


def errors() -> None:
    try:
        blocking()
    except TimeoutError as error:
        assert_type(error, TimeoutError)
    except dibs.Busy as error:
        assert_type(error.name, str | None)
        assert_type(error.store, str | None)
        assert_type(error.info, dibs.LockInfo | None)


def lost(hold: dibs.Hold) -> None:
    print(hold.name)


def print_number(number: int) -> None:
    print(number)


async def awaited() -> None:
    async with dibs.aio.connect() as client:
        assert_type(client, dibs.aio.Client)
        lock = client.lock("a", timeout=5, cancel_on_lost=True, on_lost=aio_lost)
        assert_type(lock, dibs.aio.Lock)
        async with lock as hold:
            assert_type(hold, dibs.aio.Hold)
            assert_type(await hold.lost.wait(1), bool)
            hold.check()
            await hold.release()
        assert_type(await lock.acquire(), dibs.aio.Hold | None)
        assert_type(await client.semaphore("b", 5).acquire(2), dibs.aio.Hold | None)
        assert_type(await lock.locked(), bool)
        assert_type(lock.owned(), bool)
        assert_type(await client.inspect("a"), dibs.LockInfo)
        assert_type(client.locks(), AsyncIterator[dibs.LockInfo])
        async with dibs.aio.multi(lock, client.rwlock("c").read) as both:
            assert_type(both.holds, tuple[dibs.aio.Hold, ...])

        async with client.within(client).lock("a", timeout=5) as inside:
            assert_type(inside, dibs.aio.WithinHold)
        assert_type(await client.within(client).lock("a").acquire(timeout=0), dibs.aio.WithinHold | None)

        (await lock.acquire()).release()  # type: ignore[union-attr]
        lock.acquire().check()  # type: ignore[attr-defined]
        with lock:  # type: ignore[attr-defined]
            pass
        async with dibs.connect().lock("a"):  # type: ignore[attr-defined]
            pass
        async with client.semaphore("b", 5).permits(2) as permits:
            assert_type(permits, dibs.aio.Hold)
        client.lock("a", patience=5)  # type: ignore[call-arg]
        client.lock("a", on_lost=lost)  # type: ignore[arg-type]  # the hold of the other API


def aio_lost(hold: dibs.aio.Hold) -> None:
    print(hold.name)


def drivers(
    one: redis.Redis,
    several: redis.asyncio.RedisCluster,
    sentinel: redis.sentinel.Sentinel,
    engines: tuple[sqlalchemy.Engine, sqlalchemy.ext.asyncio.AsyncEngine],
    pools: tuple[psycopg_pool.ConnectionPool, psycopg_pool.AsyncConnectionPool],
) -> None:
    dibs.connect(sentinel)
    dibs.connect(engines[0])
    dibs.aio.connect(engines[1])
    dibs.connect(pools[0])
    dibs.aio.connect(pools[1])
    assert_type(dibs.connect(one), dibs.Client)
    assert_type(dibs.aio.connect(several), dibs.aio.Client)
    assert_type(dibs.connect(["redis://h1", "redis://h2", one], guard=60), dibs.Client)
    dibs.connect(5)  # type: ignore[arg-type]  # neither a URL nor a driver
