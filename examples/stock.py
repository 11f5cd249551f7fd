"""A stock with many concurrent buyers, split into 100 segments with one lock each.

stock.py DATABASE fill AMOUNT     spread AMOUNT evenly over the segments
stock.py DATABASE sell            read lines "ORDER USER", sell one piece for each
stock.py DATABASE total           count what is left, while nobody sells
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from itertools import count

import dibs

SEGMENTS = 100
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS stock
    (segment TEXT PRIMARY KEY, key INTEGER NOT NULL, n INTEGER NOT NULL, fence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, user TEXT NOT NULL, segment TEXT NOT NULL);
"""


def keys_of(stock: dibs.Striped) -> dict[str, int]:
    """Map each stripe's name to one key of that stripe."""
    found: dict[str, int] = {}
    keys = count()
    while len(found) < SEGMENTS:
        key = next(keys)
        found.setdefault(stock.at(key).name, key)
    return found


def fill(db: sqlite3.Connection, stock: dibs.Striped, amount: int) -> None:
    """A segment has the name of its stripe, so no code needs to know how users map to stripes."""
    keys = keys_of(stock)
    with stock.all() as every, db:
        share, rest = divmod(amount, SEGMENTS)
        db.executemany(
            "INSERT INTO stock (segment, key, n, fence) VALUES (?, ?, ?, ?)",
            [(hold.name, keys[hold.name], share + (i < rest), hold.token) for i, hold in enumerate(every.holds)],
        )


def total(db: sqlite3.Connection, stock: dibs.Striped) -> int:
    with stock.all() as every:
        (counted,) = db.execute("SELECT coalesce(sum(n), 0) FROM stock").fetchone()
        every.check()
        return int(counted)


def take(db: sqlite3.Connection, hold: dibs.Hold, order: str, user: str) -> bool:
    """Take one piece and record its order, in one transaction. Return False if the segment is empty.

    A repeated order takes nothing: its id is recorded already.
    """
    with db:
        new = "INSERT INTO orders (id, user, segment) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        if db.execute(new, (order, user, hold.name)).rowcount == 0:
            return True
        n, fence = db.execute("SELECT n, fence FROM stock WHERE segment = ?", (hold.name,)).fetchone()
        if fence > hold.token:
            raise dibs.StaleToken(f"token {hold.token} is older than {fence}", name=hold.name, step="take it again")
        if n == 0:
            db.rollback()
            return False
        db.execute("UPDATE stock SET n = ?, fence = ? WHERE segment = ?", (n - 1, hold.token, hold.name))
        return True


def sell(db: sqlite3.Connection, stock: dibs.Striped, order: str, user: str) -> bool:
    """Sell from the user's segment or, if it is empty, from another one. Return False if sold out."""
    key: str | int | None = user
    while key is not None:
        with stock.at(key) as hold:
            if take(db, hold, order, user):
                return True
        key = not_empty(db)
    return False


def not_empty(db: sqlite3.Connection) -> int | None:
    """A hint, read without a lock: the caller takes the lock and looks again. The stock only falls, so None is
    final."""
    row = db.execute("SELECT key FROM stock WHERE n > 0 ORDER BY random() LIMIT 1").fetchone()
    return None if row is None else int(row[0])


def main() -> None:
    database, verb, *rest = sys.argv[1:]
    with closing(sqlite3.connect(database, timeout=30)) as db, dibs.connect() as client:
        db.executescript(SCHEMA)
        stock = client.striped("stock", SEGMENTS, timeout=30)
        if verb == "fill":
            fill(db, stock, int(rest[0]))
        elif verb == "total":
            print(total(db, stock))
        elif verb == "sell":
            for line in sys.stdin:
                order, user = line.split()
                print(order, "sold" if sell(db, stock, order, user) else "sold-out", flush=True)


if __name__ == "__main__":
    main()
