"""The file is removed or replaced while something is held: every hold is lost before anything is granted anew."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import dibs
from process.children import Crew
from store.sqlite.places import PATIENCE, Taking, beside, change, names_in, rows, until

Connect = Callable[..., dibs.Client]
LEASE = 4.5


def remove(path: Path) -> None:
    for side in ("", "-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)


def remove_only_the_file(path: Path) -> None:
    path.unlink()


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.chmod(0o600)
    copy.rename(path)


def replace_by_an_empty_file(path: Path) -> None:
    empty = path.with_name("empty")
    empty.touch(mode=0o600)
    empty.rename(path)


WAYS = [remove, remove_only_the_file, replace_by_a_copy, replace_by_an_empty_file]


def take(lock: dibs.Lock, within: float = PATIENCE) -> dibs.Hold:
    """Ask until the store answers again: only StoreUnavailable may come before that."""
    end = time.monotonic() + within
    while True:
        with suppress(dibs.StoreUnavailable):
            hold = lock.acquire(timeout=0.2)
            if hold is not None:
                return hold
        assert time.monotonic() < end, "the store does not come back"


def held(client: dibs.Client, name: str) -> dibs.Hold:
    hold = client.lock(name).acquire(timeout=5)
    assert hold is not None
    return hold


def renewed(hold: dibs.Hold) -> None:
    """Until the watchdog has renewed it, and so has its connection open."""
    seen = [hold.remaining]

    def more() -> bool:
        seen.append(hold.remaining)
        return seen[-1] > seen[-2]

    until(more, what="a renewal")


@pytest.mark.parametrize("watchdog", ["before", "after"], ids=["before-a-renewal", "after-a-renewal"])
@pytest.mark.parametrize("way", WAYS)
def test_every_hold_is_lost_before_a_fresh_grant(
    path: Path, connect: Connect, way: Callable[[Path], None], watchdog: str
) -> None:
    told: list[dibs.Hold] = []
    client = connect(lease=LEASE)
    hold = client.lock("a", on_lost=told.append).acquire(timeout=5)
    other = held(client, "b")
    assert hold is not None
    if watchdog == "after":
        renewed(hold)
    way(path)
    fresh = take(client.lock("a"))
    assert hold.lost.is_set(), "a fresh grant came while the old one still counted"
    assert other.lost.is_set()
    assert fresh.token > hold.token
    with pytest.raises(dibs.LockLost):
        hold.release()
    until(lambda: told == [hold], what="on_lost")
    assert path.stat().st_mode & 0o777 == 0o600
    assert connect().lock("a").acquire(timeout=0) is None, "others find the fresh one"
    fresh.release()


@pytest.mark.parametrize("way", WAYS)
def test_a_quiet_holder_finds_out_by_its_renewal(path: Path, connect: Connect, way: Callable[[Path], None]) -> None:
    """By its renewal after a third of the lease, and not only by its deadline."""
    hold = held(connect(lease=4 * LEASE), "a")
    way(path)
    until(hold.lost.is_set, within=3 * LEASE, what="the loss")


def test_a_waiter_is_served_in_the_new_file(path: Path, connect: Connect) -> None:
    client, other = connect(lease=LEASE), connect(lease=LEASE)
    hold = held(client, "a")
    waiter = Taking(other.lock("a"), PATIENCE)
    until(lambda: client.inspect("a").waiters, what="the waiter")
    remove(path)
    assert waiter.got().token > hold.token
    until(hold.lost.is_set)


def test_a_removal_noticed_by_a_waiter_that_gives_up(path: Path, connect: Connect) -> None:
    """Whoever notices first: all holds of the client are lost then, and not a third of the lease later."""
    client, other = connect(lease=120), connect(lease=120)
    kept, busy = held(client, "kept"), held(other, "busy")
    waiter = Taking(client.lock("busy"), 2)
    until(lambda: other.inspect("busy").waiters, what="the waiter")
    remove(path)
    waiter.join(PATIENCE)
    fresh = take(client.lock("kept"))
    assert kept.lost.is_set(), "two holds of one client on one name are valid"
    assert fresh.token > kept.token
    del busy


def test_the_file_is_removed_after_a_fork(path: Path, connect: Connect) -> None:
    """Forking closes the connections; the next one must not make a file of its own, open to others."""
    client = connect(lease=LEASE)
    hold = held(client, "a")
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    remove(path)
    fresh = take(client.lock("a"))
    assert hold.lost.is_set()
    assert fresh.token > hold.token


@pytest.mark.parametrize("sides", [("-wal", "-shm"), ("-wal",), ("-shm",)], ids="".join)
def test_the_log_of_the_database_is_removed(path: Path, connect: Connect, crew: Crew, sides: tuple[str, ...]) -> None:
    """A cleaner that takes only `-wal` or `-shm` cuts the store in two for another process. Nobody can stop that; the
    holder cannot renew any more: it is told by its own deadline at the latest."""
    hold = held(connect(lease=LEASE), "a")
    for side in sides:
        path.with_name(path.name + side).unlink()
    word, *_ = crew.worker().tries("a")
    if word == "took":
        assert hold.lost.wait(PATIENCE), "it is renewed for ever"


@pytest.mark.parametrize("reopened", [False, True], ids=["open", "reopened"])
def test_the_private_directory_is_removed(path: Path, connect: Connect, reopened: bool) -> None:
    """It says nothing about anybody's life; whoever is there goes on, and so do newcomers."""
    client = connect(lease=2 * LEASE)
    hold = held(client, "a")
    shutil.rmtree(beside(path))
    if reopened:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    newcomer = connect()
    assert newcomer.lock("a").acquire(timeout=0) is None
    end = time.monotonic() + 2.5 * LEASE
    while time.monotonic() < end:
        hold.check()
        time.sleep(0.05)
    hold.release()
    held(newcomer, "a").release()
    held(client, "a").release()
    assert "turn" in names_in(beside(path))


def test_tokens_go_on_rising_over_removals(path: Path, connect: Connect) -> None:
    last = 0
    for _ in range(5):
        client = connect()
        for _ in range(5):
            with client.lock("a", timeout=5) as hold:
                assert hold.token > last
                last = hold.token
        client.close()
        remove(path)
        shutil.rmtree(beside(path))


@pytest.mark.parametrize("other", [1, -1], ids=["newer", "older"])
def test_a_file_of_another_format_takes_its_place(
    path: Path, connect: Connect, caplog: pytest.LogCaptureFixture, other: int
) -> None:
    """A client that had the old file open is refused by the new one, and writes nothing to it."""
    client = connect(lease=LEASE)
    hold, second = held(client, "a"), held(client, "b")
    stranger = path.with_name("stranger.db")
    held(connect(stranger), "x").release()
    ((ours,),) = rows(stranger, "PRAGMA user_version")
    change(stranger, f"PRAGMA user_version = {ours + other}")
    change(stranger, "PRAGMA wal_checkpoint(TRUNCATE)")
    remove(path)
    stranger.rename(path)
    with pytest.raises(dibs.Mismatch):
        take(client.lock("a"))
    assert hold.lost.is_set()
    assert second.lost.is_set()
    with pytest.raises(dibs.LockLost):
        hold.release()
    with pytest.raises(dibs.Mismatch):
        client.lock("a").acquire(timeout=1)
    assert rows(path, "SELECT count(*) FROM claims") == [(0,)]
    assert rows(path, "PRAGMA user_version") == [(ours + other,)]
    client.close()
    assert "failed" not in caplog.text
