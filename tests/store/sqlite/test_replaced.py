"""The file is removed or replaced while something is held: every hold is lost before anything is granted anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import dibs
from process.children import Crew
from store.sqlite.places import PATIENCE, Taking, beside, change, held, names_in, rows, until

Connect = Callable[..., dibs.Client]
LEASE = 4.5
"""Where a renewal, or the end of a lease, is waited for."""


def remove(path: Path) -> None:
    for side in ("", "-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.chmod(0o600)
    copy.rename(path)


def replace_by_an_empty_file(path: Path) -> None:
    empty = path.with_name("empty")
    empty.touch(mode=0o600)
    empty.rename(path)


WAYS = [remove, Path.unlink, replace_by_a_copy, replace_by_an_empty_file]


def take(lock: dibs.Lock) -> dibs.Hold:
    """Ask until the store replies again: only StoreUnavailable may come before that."""

    def taken() -> dibs.Hold | None:
        with suppress(dibs.StoreUnavailable):
            return lock.acquire(timeout=0.2)
        return None

    hold: dibs.Hold = until(taken, what="the store comes back")
    return hold


def fork_once() -> None:
    """It closes the connections of the parent, which opens new ones."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def renewed(hold: dibs.Hold) -> None:
    """Wait for a renewal, for which the watchdog opens its connection."""
    seen = [hold.remaining]

    def more() -> bool:
        seen.append(hold.remaining)
        return seen[-1] > seen[-2]

    until(more, what="a renewal")


@pytest.mark.parametrize(
    "way", [remove, Path.unlink, replace_by_an_empty_file, pytest.param(replace_by_a_copy, marks=pytest.mark.gate)]
)
def test_every_hold_is_lost_before_a_fresh_grant(path: Path, connect: Connect, way: Callable[[Path], None]) -> None:
    """In a copy the claim stands until its lease ends."""
    told: list[dibs.Hold] = []
    client = connect(lease=LEASE if way is replace_by_a_copy else 60)
    hold = client.lock("a", on_lost=told.append).acquire(timeout=PATIENCE)
    other = held(client, "b")
    assert hold is not None
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


@pytest.mark.gate
def test_a_quiet_holder_finds_out_by_its_renewal(path: Path, connect: Connect) -> None:
    """A third of the lease later, and not only at its deadline."""
    hold = held(connect(lease=4 * LEASE))
    renewed(hold)
    remove(path)
    until(hold.lost.is_set, within=3 * LEASE, what="the loss")


@pytest.mark.gate
def test_a_waiter_is_served_in_the_new_file(path: Path, connect: Connect) -> None:
    client, other = connect(lease=LEASE), connect(lease=LEASE)
    hold = held(client)
    waiter = Taking(other.lock("a"), PATIENCE)
    until(lambda: client.inspect("a").waiters, what="the waiter")
    remove(path)
    assert waiter.got().token > hold.token
    until(hold.lost.is_set)


def test_the_file_is_removed_after_a_fork(path: Path, connect: Connect) -> None:
    """The new connection must not make a file of its own, open to others."""
    client = connect(lease=60)
    hold = held(client)
    fork_once()
    remove(path)
    fresh = take(client.lock("a"))
    assert hold.lost.is_set()
    assert fresh.token > hold.token


@pytest.mark.gate
def test_the_log_of_the_database_is_removed(path: Path, connect: Connect, crew: Crew) -> None:
    """Other processes see another store then. The holder cannot renew: it is lost by its deadline."""
    hold = held(connect(lease=LEASE))
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink()
    word, *_ = crew.worker().tries("a")
    if word == "took":
        assert hold.lost.wait(PATIENCE), "it is renewed for ever"


@pytest.mark.gate
def test_the_private_directory_is_removed(path: Path, connect: Connect) -> None:
    """It proves nobody's death: holders go on, and so do newcomers."""
    client = connect(lease=LEASE)
    hold = held(client)
    shutil.rmtree(beside(path))
    fork_once()
    newcomer = connect()
    assert newcomer.lock("a").acquire(timeout=0) is None
    for _ in range(2):
        renewed(hold)
        hold.check()
    hold.release()
    held(newcomer).release()
    held(client).release()
    assert "turn" in names_in(beside(path))


def test_tokens_go_on_rising_over_removals(path: Path, connect: Connect) -> None:
    tokens = []
    for _ in range(5):
        client = connect()
        for _ in range(2):
            with client.lock("a", timeout=PATIENCE) as hold:
                tokens.append(hold.token)
        client.close()
        remove(path)
        shutil.rmtree(beside(path))
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("other", [1, -1], ids=["newer", "older"])
def test_a_file_of_another_format_takes_its_place(
    path: Path, connect: Connect, caplog: pytest.LogCaptureFixture, other: int
) -> None:
    """A client that had the old file open is refused, and writes nothing to the new one."""
    client = connect(lease=60)
    hold, second = held(client), held(client, "b")
    stranger = path.with_name("stranger.db")
    held(connect(stranger), "x").release()
    ((ours,),) = rows(stranger, "PRAGMA user_version")
    change(stranger, f"PRAGMA user_version = {ours + other}")
    change(stranger, "PRAGMA wal_checkpoint(TRUNCATE)")
    remove(path)
    stranger.rename(path)
    for _ in range(2):
        with pytest.raises(dibs.Mismatch):
            take(client.lock("a"))
    assert hold.lost.is_set()
    assert second.lost.is_set()
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert rows(path, "SELECT count(*) FROM claims") == [(0,)]
    assert rows(path, "PRAGMA user_version") == [(ours + other,)]
    client.close()
    assert "failed" not in caplog.text
