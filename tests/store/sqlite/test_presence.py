"""Clients judged dead, wake-ups by sockets, and forged messages."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
from dibs.backends.sqlite.presence import Presence, is_dead, sweep
from lab.stopwatch import Stopwatch
from process.children import Child, Crew
from store.sqlite.places import PATIENCE, Stranger, Taking, beside, held, rows, until

Connect = Callable[..., dibs.Client]


def record(path: Path) -> tuple[Path, int, int]:
    """The only client's liveness file, as recorded."""
    ((live, dev, ino),) = rows(path, "SELECT live, dev, ino FROM clients")
    return beside(path) / live, dev, ino


def waits(onlooker: dibs.Client, count: int = 1, name: str = "a") -> None:
    until(lambda: len(onlooker.inspect(name).waiters) == count, what="the queue")


def waiting_beside(path: Path, connect: Connect, crew: Crew) -> tuple[dibs.Hold, Child, Path]:
    """Our hold, a process that waits for it, and that one's socket."""
    client = connect()
    hold = held(client)
    mine = set(beside(path).glob("*.sock"))
    worker = crew.worker()
    worker.tell("take", "a", PATIENCE)
    waits(client)
    (theirs,) = set(beside(path).glob("*.sock")) - mine
    return hold, worker, theirs


def test_a_sibling_in_the_same_process_is_never_judged_dead(path: Path, connect: Connect) -> None:
    hold = held(connect())
    live, dev, ino = record(path)
    siblings = [connect() for _ in range(2)]
    for _ in range(15):  # for longer than a verdict is believed
        for sibling in siblings:
            assert sibling.lock("a").acquire(timeout=0.02) is None
            assert not is_dead(live, dev, ino)
    siblings[0].close()
    assert not is_dead(live, dev, ino), "nor after a sibling closed its own"
    hold.release()


def test_a_missing_liveness_file_says_nothing(path: Path, connect: Connect, crew: Crew) -> None:
    """Only the lease decides then."""
    worker = crew.worker(60)
    worker.take("a")
    live, dev, ino = record(path)
    live.unlink()
    worker.kill()
    assert not is_dead(live, dev, ino)
    assert connect().lock("a").acquire(timeout=0.05) is None


def test_another_inode_in_its_place_says_nothing(path: Path, connect: Connect) -> None:
    hold = held(connect())
    live, dev, ino = record(path)
    moved = live.with_suffix(".moved")
    live.rename(moved)
    for make in (live.touch, lambda: live.symlink_to(moved), lambda: os.mkfifo(live), live.mkdir):
        make()
        assert not is_dead(live, dev, ino)
        assert connect().lock("a").acquire(timeout=0) is None
        live.rmdir() if live.is_dir() else live.unlink()
    hold.check()
    hold.release()


def test_a_forked_child_that_closes_its_copy_frees_nothing(path: Path, connect: Connect) -> None:
    client = connect()
    hold = held(client)
    live, dev, ino = record(path)
    if (pid := os.fork()) == 0:
        try:
            client.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert not is_dead(live, dev, ino)
    assert connect().lock("a").acquire(timeout=0) is None
    hold.check()
    hold.release()


@pytest.mark.alone
def test_a_lost_wake_up_costs_a_poll(path: Path, connect: Connect, crew: Crew) -> None:
    """A waiter polls once a second. Without that it would see the release only when it next renews."""
    hold, worker, socket = waiting_beside(path, connect, crew)
    socket.unlink()
    with Stopwatch() as watch:
        hold.release()
        worker.hear("took", PATIENCE)
        assert watch.seconds() < crew.lease / 6


def test_a_stopped_waiter_with_a_full_buffer_does_not_block_the_releaser(
    path: Path, connect: Connect, crew: Crew
) -> None:
    """A releaser that sends to it and waits would hang here."""
    hold, worker, socket = waiting_beside(path, connect, crew)
    worker.freeze()
    with Stranger(beside(path)) as stranger:
        assert any(not stranger.send(socket.name, bytes(17)) for _ in range(10_000)), "never full"
    hold.release()
    worker.signal(signal.SIGCONT)
    worker.hear("took", PATIENCE)


def test_garbage_and_a_signal_that_nobody_knows_cause_nothing_but_looks(path: Path, connect: Connect) -> None:
    """Not even with the id of a claim: nobody is granted, and no acquire ends."""
    client, other = connect(), connect()
    hold = held(other)
    waiter = Taking(client.lock("a"), PATIENCE)
    waits(other)
    ((claim,),) = rows(path, "SELECT id FROM claims ORDER BY ticket DESC LIMIT 1")
    dice = random.Random(11)
    forged = [
        b"", bytes(16) + b"y" * 200, claim[:15] + b"y", claim[:15] + bytes([claim[15] ^ 1]) + b"y", claim, claim + b"l",
        claim + b"?",
    ]  # fmt: skip
    with Stranger(beside(path)) as stranger:
        for _ in range(600):
            for target in beside(path).glob("*.sock"):
                noise = [dice.randbytes(dice.randrange(64)), dice.randbytes(16) + b"y"]
                stranger.send(target.name, dice.choice([*forged, *noise]))
    hold.check()
    assert waiter.is_alive(), "nobody was granted"
    hold.release()
    waiter.got().release()


def cpu(child: Child) -> float:
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.alone
def test_waiting_is_not_a_busy_loop(path: Path, connect: Connect, crew: Crew) -> None:
    hold, worker, _ = waiting_beside(path, connect, crew)
    before, begun = cpu(worker), time.monotonic()
    time.sleep(1)  # what is measured, not a synchronisation
    share = (cpu(worker) - before) / (time.monotonic() - begun)
    assert share < 0.1, f"a waiting process takes {share:.1%} of a core"
    hold.release()
    worker.hear("took", PATIENCE)


def test_a_sweep_takes_only_what_a_client_left(path: Path, connect: Connect) -> None:
    """The directory beside the file may have been somebody's before: only names of clients are looked at."""
    directory = beside(path)
    directory.mkdir(mode=0o700)
    foreign = [directory / name for name in ("config.new", "video.live", "server.sock", "notes.txt")]
    for file in foreign:
        file.touch()
    left = [directory / f"{'0' * 31}{n}{end}" for n, end in enumerate((".new", ".live", ".sock"))]
    for file in left:
        file.touch()
    held(connect())
    assert all(file.exists() for file in foreign)
    assert not any(file.exists() for file in left)


def test_a_sweep_spares_a_newcomer_that_is_not_known_yet(tmp_path: Path) -> None:
    newcomer = Presence(tmp_path / "d", bytes(16))
    sweep(tmp_path / "d", known=())
    assert sorted(file.suffix for file in (tmp_path / "d").iterdir()) == [".live", ".sock"]
    newcomer.close()
    assert not list((tmp_path / "d").iterdir())
