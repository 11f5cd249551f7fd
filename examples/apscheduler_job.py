"""An APScheduler 3 job that runs once per tick, even if many processes have the same schedule.

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
    """A busy lock means that another process works on this tick. A free one may mean that it is done: check."""
    tick = datetime.now(UTC).isoformat(timespec="seconds")
    hold = client.lock("every-second", max_hold=60, info={"tick": tick}).acquire(timeout=0)
    if hold is None:
        return
    with hold, closing(sqlite3.connect(database, timeout=30)) as db:
        if not is_done(db, tick):
            work(db, tick, hold.token)


def is_done(db: sqlite3.Connection, tick: str) -> bool:
    """This tick or a later one: a process that is late, or whose clock is behind, must not repeat it."""
    return db.execute("SELECT 1 FROM runs WHERE tick >= ?", (tick,)).fetchone() is not None


def work(db: sqlite3.Connection, tick: str, token: int) -> None:
    """The work and the record that it is done, in one transaction. The primary key refuses a second record."""
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
        # "cron" uses the wall clock, so all processes have the same ticks; "interval" would count from their start.
        scheduler.add_job(
            job, "cron", (client, database), second="*", max_instances=1, coalesce=True, misfire_grace_time=1
        )  # fmt: skip
        print("scheduled", flush=True)
        try:
            scheduler.start()
        finally:
            scheduler.shutdown()  # waits for a running job, before the client is closed


if __name__ == "__main__":
    main()
