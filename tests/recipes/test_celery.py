"""docs/recipes/celery.md: a real worker with its pool of processes; messages that come twice, tasks that are killed, a
store that cannot be reached."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from process.children import until
from recipes.programs import EXAMPLES, Connect, Program, Stage

pytestmark = pytest.mark.gate

pytest.importorskip("kombu", reason="pip install 'dibs[recipes]'")

LOCK = "invoice:42"


PATH = os.pathsep.join([str(EXAMPLES), str(Path(__file__).parent)])


@pytest.fixture
def db(shop: Connect) -> sqlite3.Connection:
    db = shop()
    db.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, paid INTEGER DEFAULT 0, fence INTEGER DEFAULT 0)")
    db.execute("CREATE TABLE payments (invoice INTEGER, token INTEGER)")
    db.execute("INSERT INTO invoices (id) VALUES (42)")
    return db


@pytest.fixture
def worker(stage: Stage, db: sqlite3.Connection) -> Program:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    argv = ["-m", "celery", "-A", "shop_on_files", "worker", "--pool=prefork", "-c", 2, "--loglevel=INFO", *quiet]
    # Celery takes a worker that runs as root for a mistake, and says so by a warning.
    started = stage.start("-W", "ignore", *argv, PYTHONPATH=PATH)
    started.hear("ready")
    return started


def send(stage: Stage, times: int = 1, **options: float) -> None:
    code = f"from shop_on_files import settle\nfor _ in range({times}): settle.apply_async((42,), **{options})"
    stage.run("-c", code, PYTHONPATH=PATH)


def paid(db: sqlite3.Connection) -> int:
    (invoice,) = db.execute("SELECT paid FROM invoices").fetchone()
    (payments,) = db.execute("SELECT count(*) FROM payments").fetchone()
    assert invoice == payments
    return int(payments)


def at_work(stage: Stage) -> int:
    """The pid of the pool's process that has the lock, and waits for the database."""
    (pid,) = until(lambda: stage.holders(LOCK), what="a task at work")
    return int(pid)


def test_a_task_over_its_limit_and_a_message_that_comes_twice(
    stage: Stage, db: sqlite3.Connection, worker: Program
) -> None:
    db.execute("BEGIN IMMEDIATE")
    send(stage, soft_time_limit=4)
    at_work(stage)
    worker.hear("Soft time limit")
    until(lambda: set(worker.states()) == {"S"}, what="the signal sent: it is, after it was told of")
    db.execute("ROLLBACK")  # SQLite waits in C, where no signal is heard: now it is
    worker.hear("SoftTimeLimitExceeded")
    stage.free(LOCK)
    assert paid(db) == 0
    db.execute("BEGIN IMMEDIATE")
    send(stage, times=2)
    at_work(stage)
    worker.hear("Retry in 2s")
    db.execute("ROLLBACK")
    worker.hear("invoice 42: paid, token")
    worker.hear("invoice 42: paid before, token")
    assert paid(db) == 1


def test_a_task_is_kept_while_the_store_cannot_be_reached(
    stage: Stage, db: sqlite3.Connection, worker: Program
) -> None:
    with stage.client.lock("makes the file"):
        pass
    with closing(sqlite3.connect(stage.directory / "locks.db", isolation_level=None)) as store:
        store.execute("BEGIN EXCLUSIVE")
        send(stage)
        worker.hear("Retry in 2s: StoreUnavailable")
        store.execute("ROLLBACK")
    worker.hear("invoice 42: paid, token")
    assert paid(db) == 1


def test_a_task_whose_process_was_killed_is_done_by_another(
    stage: Stage, db: sqlite3.Connection, worker: Program
) -> None:
    db.execute("BEGIN IMMEDIATE")
    send(stage)
    os.kill(at_work(stage), signal.SIGKILL)
    worker.hear("WorkerLostError|exited with 'signal 9")
    db.execute("ROLLBACK")
    worker.hear("invoice 42: paid, token")
    assert paid(db) == 1
