"""Pay an invoice and check the fence in the same transaction: `client.fence` instead of a column.

fenced_within.py DATABASE INVOICE
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import dibs

SCHEMA = """
CREATE TABLE IF NOT EXISTS invoices (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS payments (invoice INTEGER NOT NULL, token INTEGER NOT NULL);
"""


def pay(client: dibs.Client, db: sqlite3.Connection, invoice: int) -> bool:
    """Return False if it was paid before."""
    name = f"invoice:{invoice}"
    with client.lock(name, timeout=10) as hold, db:
        db.execute("BEGIN IMMEDIATE")
        client.fence(name).admit(hold.token, within=db)  # StaleToken rolls the transaction back
        if db.execute("UPDATE invoices SET paid = 1 WHERE id = ? AND NOT paid", (invoice,)).rowcount == 0:
            return False
        db.execute("INSERT INTO payments VALUES (?, ?)", (invoice, hold.token))
        return True


def main() -> None:
    database, invoice = sys.argv[1:]
    with closing(sqlite3.connect(database, timeout=30)) as db, dibs.connect() as client:
        db.executescript(SCHEMA)
        try:
            print("paid" if pay(client, db, int(invoice)) else "nothing to pay")
        except dibs.AcquireTimeout as busy:
            sys.exit(str(busy))
        except (dibs.StaleToken, dibs.LockLost) as refused:
            sys.exit(f"refused: {refused}")


if __name__ == "__main__":
    main()
