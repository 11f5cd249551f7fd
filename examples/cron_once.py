"""The nightly report, written once a day, even if cron starts it on many machines.

cron_once.py DATABASE [DAY]
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime

import dibs

SCHEMA = """
CREATE TABLE IF NOT EXISTS sales (day TEXT NOT NULL, amount INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reports (day TEXT PRIMARY KEY, total INTEGER NOT NULL, token INTEGER NOT NULL);
"""


def is_done(db: sqlite3.Connection, day: str) -> bool:
    return db.execute("SELECT 1 FROM reports WHERE day = ?", (day,)).fetchone() is not None


def work_out(db: sqlite3.Connection, day: str) -> int:
    """The slow part, which the lock is for."""
    (total,) = db.execute("SELECT coalesce(sum(amount), 0) FROM sales WHERE day = ?", (day,)).fetchone()
    return int(total)


def write(db: sqlite3.Connection, day: str, total: int, token: int) -> None:
    """The result also records that this day is done. The primary key refuses a second result for the day."""
    with db:
        db.execute("INSERT INTO reports (day, total, token) VALUES (?, ?, ?)", (day, total, token))


def run(client: dibs.Client, db: sqlite3.Connection, day: str) -> str:
    # max_hold: a copy that hangs must not block tomorrow's.
    lock = client.lock("report:nightly", max_hold=3600, info={"day": day})
    hold = lock.acquire(timeout=0)
    if hold is None:
        others = [holder.label for holder in client.inspect(lock.name).holders]
        return f"skipped: {', '.join(others) or 'another copy'} is at work"
    with hold:
        if is_done(db, day):
            return "skipped: written before"
        total = work_out(db, day)
        hold.check()  # raises LockLost: better no report now than two at once
        write(db, day, total, hold.token)
        return f"written: {total}"


def main() -> None:
    database, *rest = sys.argv[1:]
    day = rest[0] if rest else datetime.now(UTC).date().isoformat()
    with closing(sqlite3.connect(database, timeout=30)) as db, dibs.connect() as client:
        db.executescript(SCHEMA)
        print(day, run(client, db, day))


if __name__ == "__main__":
    main()
