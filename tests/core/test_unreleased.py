"""A hold that no object is left to release gives a ResourceWarning, and stays held."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

import dibs
import dibs.aio

PATIENCE = 60.0
_numbers = count()


@contextmanager
def told() -> Iterator[list[str]]:
    """The names of the holds that were reported, once the block is over."""
    names: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield names
        gc.collect()
    names += [str(one.message).split('"')[1] for one in seen if one.category is ResourceWarning]


@pytest.fixture
def client() -> Iterator[dibs.Client]:
    with dibs.connect(f"memory://unreleased-{next(_numbers)}") as client:
        yield client


def look_now(client: dibs.Client) -> None:
    """Let the watchdog look at its claims, as it does at their next renewal."""
    for claim in list(client._core.watchdog.renewing):
        client._core.me.news(claim)


def held(client: dibs.Client, name: str) -> int:
    return len(client.inspect(name).holders)


def test_it_names_the_lock_and_the_hold_stays_held(client: dibs.Client) -> None:
    said = r'"a" on memory://.*: not released \(token 1\).*it stays held until'
    with pytest.warns(ResourceWarning, match=said) as seen:
        client.lock("a").acquire()
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert held(client, "a") == 1
    assert client.lock("a").acquire(timeout=0) is None


KINDS: list[Callable[[dibs.Client, str], object]] = [
    lambda client, name: client.rlock(name).acquire(),
    lambda client, name: client.rwlock(name).read.acquire(),
    lambda client, name: client.rwlock(name).write.acquire(),
    lambda client, name: client.semaphore(name, 3).acquire(2),
    lambda client, name: client.semaphore(name, 3).permits(2).acquire(),
    lambda client, name: client.election(name).lead().acquire(),
    lambda client, name: client.lock(name).acquire(timeout=50),
    lambda client, name: client.lock(name).__enter__(),
]


def test_every_kind(client: dibs.Client) -> None:
    for number, acquire in enumerate(KINDS):
        with told() as names:
            acquire(client, f"a{number}")
        assert names == [f"a{number}"]
        assert held(client, f"a{number}") == 1
    with told() as names:  # a stripe is reported, and its guard is not
        client.striped("a", 10).at("key").acquire()
    (name,) = names
    assert name.startswith("a#")


def test_a_lock_or_a_hold_that_is_left_can_release_it(client: dibs.Client) -> None:
    with told() as names:
        lock = client.lock("a")
        lock.acquire()
        gc.collect()
        lock.release()
        hold = client.lock("b").acquire()
        gc.collect()
        assert hold is not None
        hold.release()
        stripes = client.striped("c", 10)
        stripes.at("key").acquire()
        gc.collect()
        stripes.at("key").release()
        del lock, hold, stripes
    assert names == []


def test_blocks_and_what_ended_are_not_reported(client: dibs.Client) -> None:
    with told() as names:
        with client.lock("a"):
            gc.collect()
        with client.lock("a") as hold:
            pass
        with client.lock("a").acquire() as hold:  # type: ignore[union-attr]
            gc.collect()
        with dibs.multi(client.lock("a"), client.lock("b")):
            gc.collect()
        with client.rlock("a"), client.rlock("a"):
            pass
        hold = client.lock("broken").acquire()  # type: ignore[assignment]
        client.break_("broken", token=hold.token)
        look_now(client)
        assert hold.lost.wait(PATIENCE)
        del hold
        with dibs.connect("memory://unreleased-closed") as other:
            closed = other.lock("a").acquire()
        del closed
    assert names == []


def test_holds_that_end_by_themselves_are_not_reported(client: dibs.Client) -> None:
    """The permits of a rate limit are never released."""
    with told() as names:
        client.semaphore("a", 3, renew=False, lease=60).acquire()
        client.lock("b", max_hold=60).acquire()
    assert names == []


def test_a_block_that_vanished_is_given_back_and_not_reported(client: dibs.Client) -> None:
    """As an interrupt in front of the first line of a block leaves it: see `Exit` in _shared.py."""
    with told() as names:
        lock = client.lock("a")
        leave = lock.__exit__
        lock.__enter__()
        del leave, lock
    assert names == []
    look_now(client)
    with client.lock("a", timeout=PATIENCE):
        pass


def test_each_hold_of_one_owner_or_one_lock_object_is_reported_once(client: dibs.Client) -> None:
    """The second one is released, and the grant that they share stays."""
    with told() as names:
        client.rlock("a").acquire()
        with client.rlock("a"):
            pass
    assert names == ["a"]
    assert held(client, "a") == 1
    with told() as names:
        semaphore = client.semaphore("s", 3)
        for _ in range(3):
            semaphore.acquire()
        semaphore.release()
        del semaphore
    assert names == ["s", "s"]


def test_the_members_of_a_multi(client: dibs.Client) -> None:
    with told() as names:
        dibs.multi(client.lock("a"), client.lock("b")).acquire()
    assert sorted(names) == ["a", "b"]
    with told() as names:
        lock = client.lock("c")
        dibs.multi(lock, client.lock("d")).acquire()
        gc.collect()
        lock.release()
    assert names == ["d"]


def test_the_async_api() -> None:
    async def main() -> None:
        async with dibs.aio.connect(f"memory://unreleased-{next(_numbers)}") as client:
            with told() as names:
                await client.lock("a").acquire()
                async with client.lock("b"):
                    gc.collect()
                async with client.lock("c", cancel_on_lost=True) as hold:
                    gc.collect()
                del hold
                lock = client.lock("d")
                await lock.acquire()
                await lock.release()
                task = asyncio.create_task(client.lock("e").acquire())  # type: ignore[arg-type]
                await task
                del task, lock
                await asyncio.sleep(0)  # the loop lets go of the task
            assert sorted(names) == ["a", "e"]
            assert (await client.inspect("a")).holders

    asyncio.run(main())


def run(*words: str, code: str) -> str:
    """Run a program; return its stderr."""
    done = subprocess.run(
        [sys.executable, *words, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return done.stderr


CODE = """
import gc, os, dibs
client = dibs.connect("memory://")
def work():
    return client.lock("a").acquire()  # here
hold = work()
{rest}
"""


def test_the_place_where_it_was_taken() -> None:
    said = run("-X", "tracemalloc=10", "-W", "always", code=CODE.format(rest="del hold"))
    assert "ResourceWarning" in said
    taken = said.partition("Object allocated at")[2]
    assert 'File "<string>", lineno 5' in taken
    assert 'File "<string>", lineno 6' in taken


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("", id="exit"),
        pytest.param("if not os.fork(): del hold; gc.collect(); os._exit(0)\nos.wait()", id="fork"),
    ],
)
def test_an_exit_and_a_fork_say_nothing(rest: str) -> None:
    """At exit the holds are given back; a child holds nothing."""
    forks = "ignore::DeprecationWarning"  # since 3.12 Python warns of a fork beside threads
    assert run("-W", "always::ResourceWarning", "-W", forks, code=CODE.format(rest=rest)) == ""
