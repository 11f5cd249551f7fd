"""A stock that many buy from at once, split in 100 segments with a lock each.

stock.py DATABASE fill AMOUNT     put AMOUNT into the segments, evenly
stock.py DATABASE sell            reads lines "ORDER USER", sells one piece for each
stock.py DATABASE total           what is left, counted while nobody sells
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
    """For each stripe, by its name, one key that leads to it."""
    found: dict[str, int] = {}
    keys = count()
    while len(found) < SEGMENTS:
        key = next(keys)
        found.setdefault(stock.at(key).name, key)
    return found


def fill(db: sqlite3.Connection, stock: dibs.Striped, amount: int) -> None:
    """A segment is called as its stripe is, so that nobody has to know how users are spread over stripes."""
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
    """One piece out of one segment, and the order that it is for, together or not at all. False: the segment is empty.

    An order that comes again takes nothing: its number is there already.
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
    """From the user's own segment; if that is empty, from one that looks as if it were not. False: sold out."""
    key: str | int | None = user
    while key is not None:
        with stock.at(key) as hold:
            if take(db, hold, order, user):
                return True
        key = not_empty(db)
    return False


def not_empty(db: sqlite3.Connection) -> int | None:
    """A hint, read without a lock: who follows it takes the lock and looks again. The stock only falls, so that an
    end is an end."""
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
