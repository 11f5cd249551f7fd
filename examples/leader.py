"""One of many copies leads and dispatches work. When it goes, the next in the queue takes over.

leader.py [--lease SECONDS] DATABASE
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
import time
from contextlib import closing

import dibs

PAUSE = 0.2
SCHEMA = "CREATE TABLE IF NOT EXISTS dispatched (id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, token INTEGER NOT NULL)"


def dispatch(db: sqlite3.Connection, fence: dibs.Fence, token: int) -> None:
    """One unit of work, fenced in its own transaction: a leader that was paused cannot finish it later."""
    with db:
        fence.admit(token, within=db)
        db.execute("INSERT INTO dispatched (pid, token) VALUES (?, ?)", (os.getpid(), token))


def lead(hold: dibs.Hold, db: sqlite3.Connection, fence: dibs.Fence) -> None:
    """Work until the lead is lost, or somebody asks for it."""
    while not hold.lost.is_set():
        dispatch(db, fence, hold.token)
        if hold.revoke_requested.wait(PAUSE):
            return


def stand(client: dibs.Client, db: sqlite3.Connection) -> None:
    """Stand for election for ever: after a lost lead, stand again."""
    election, fence = client.election("dispatcher"), client.fence("dispatcher")
    while True:
        try:
            leader = election.leader()
            say(f"standing by, {leader.label if leader else 'nobody'} leads")
            with election.lead() as hold:
                say(f"leading, token {hold.token}")
                lead(hold, db, fence)
            say("stepped down, as asked")
        except (dibs.LockLost, dibs.StaleToken) as lost:
            say(f"lost the lead: {lost}")
        except dibs.StoreUnavailable as silent:
            say(f"no store: {silent}")
            time.sleep(1)


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lease", type=float, default=15.0, help="how long a leader keeps the lead without renewal")
    parser.add_argument("database")
    args = parser.parse_args()
    # On SIGTERM release the lead; otherwise the others would wait until our death is noticed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with closing(sqlite3.connect(args.database, timeout=30)) as db, dibs.connect(lease=args.lease) as client:
        db.execute(SCHEMA)
        stand(client, db)


if __name__ == "__main__":
    main()
