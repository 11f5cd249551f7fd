"""Take goods out of stock: read, let a person decide, write. A stale decision is refused.

fenced_sql.py DATABASE ITEM     the amount is read from the terminal
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import dibs

SCHEMA = """
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, n INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0)
"""


def claim(db: sqlite3.Connection, item: str, token: int) -> int:
    """Write our token into the row, then read it: from here on no earlier holder can change it."""
    change = "UPDATE stock SET fence = :token WHERE item = :item AND fence <= :token RETURNING n"
    with db:
        rows = db.execute(change, {"item": item, "token": token}).fetchall()
    if not rows:
        raise refusal(db, item, token)
    return int(rows[0][0])


def write(db: sqlite3.Connection, item: str, n: int, token: int) -> None:
    """The statement that makes the change also compares the token: nothing can come between."""
    change = "UPDATE stock SET n = :n, fence = :token WHERE item = :item AND fence <= :token"
    with db:
        if db.execute(change, {"n": n, "item": item, "token": token}).rowcount == 0:
            raise refusal(db, item, token)


def refusal(db: sqlite3.Connection, item: str, token: int) -> Exception:
    row = db.execute("SELECT fence FROM stock WHERE item = ?", (item,)).fetchone()
    if row is None:
        return LookupError(f"no item {item!r} in stock")
    return dibs.StaleToken(
        f"token {token} is older than {row[0]}, nothing was changed", name=item, step="start over from the lock"
    )


def main() -> None:
    database, item = sys.argv[1:]
    with closing(sqlite3.connect(database, timeout=30)) as db, dibs.connect() as client:
        db.execute(SCHEMA)
        try:
            with client.lock(f"stock:{item}", timeout=10) as hold:
                n = claim(db, item, hold.token)
                amount = int(input(f"{n} in stock, take how many?\n"))
                if not 0 <= amount <= n:
                    sys.exit(f"not possible: {amount} of {n}")
                write(db, item, n - amount, hold.token)
                print(n - amount, "left")
        except dibs.AcquireTimeout as busy:
            sys.exit(str(busy))
        except (dibs.StaleToken, dibs.LockLost, LookupError) as refused:
            sys.exit(f"refused: {refused}")


if __name__ == "__main__":
    main()
