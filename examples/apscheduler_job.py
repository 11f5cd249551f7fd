"""A job of APScheduler 3 that runs once per tick, however many processes have the same schedule.

apscheduler_job.py DATABASE
"""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime

from apscheduler.schedulers.blocking import BlockingScheduler

import dibs

SCHEMA = "CREATE TABLE IF NOT EXISTS runs (tick TEXT PRIMARY KEY, pid INTEGER NOT NULL, token INTEGER NOT NULL)"


def job(client: dibs.Client, database: str) -> None:
    """Busy means that another process has this tick. Free may mean that another one is done with it: look."""
    tick = datetime.now(UTC).isoformat(timespec="seconds")
    hold = client.lock("every-second", max_hold=60, info={"tick": tick}).acquire(timeout=0)
    if hold is None:
        return
    with hold, closing(sqlite3.connect(database, timeout=30)) as db:
        if not is_done(db, tick):
            work(db, tick, hold.token)


def is_done(db: sqlite3.Connection, tick: str) -> bool:
    """This tick, or a later one: a process that comes late, or whose clock is behind, does not go back."""
    return db.execute("SELECT 1 FROM runs WHERE tick >= ?", (tick,)).fetchone() is not None


def work(db: sqlite3.Connection, tick: str, token: int) -> None:
    """What the job is for, and the note that it was done, in one transaction; the primary key refuses a second one."""
    with db:
        db.execute("INSERT INTO runs (tick, pid, token) VALUES (?, ?, ?)", (tick, os.getpid(), token))


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    database = sys.argv[1]
    with closing(sqlite3.connect(database, timeout=30)) as db:
        db.execute(SCHEMA)
    scheduler = BlockingScheduler(timezone=UTC)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with dibs.connect() as client:
        # The trigger goes by the wall clock, so that all processes have the same ticks; "interval" counts from start.
        scheduler.add_job(
            job, "cron", (client, database), second="*", max_instances=1, coalesce=True, misfire_grace_time=1
        )  # fmt: skip
        print("scheduled", flush=True)
        try:
            scheduler.start()
        finally:
            scheduler.shutdown()  # waits for a job that is at work, before the client is closed


if __name__ == "__main__":
    main()
