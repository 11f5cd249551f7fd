"""A Celery task that settles an invoice: never two workers at once, and never twice.

celery -A celery_task worker
celery -A celery_task call celery_task.settle --args '[42]'
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from celery import Celery, Task
from celery.utils.log import get_task_logger

import dibs

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
log = get_task_logger(__name__)

app = Celery("shop")
app.conf.update(
    task_acks_late=True,  # a task whose worker dies is delivered again ...
    task_reject_on_worker_lost=True,  # ... also if the whole process died
    worker_prefetch_multiplier=1,
)

# Created once, before the worker forks: each child process has its own connections and its own holds.
client = dibs.connect()


@app.task(bind=True, max_retries=20, soft_time_limit=60, time_limit=90)
def settle(self: Task, invoice: int) -> str:
    """A duplicate that arrives while the first runs goes back to the broker. If the first one dies, the duplicate
    does the work; if not, it finds the work done. A task also goes back while the store cannot be reached."""
    try:
        with client.lock(f"invoice:{invoice}", timeout=1, info={"task": self.request.id}) as hold:
            outcome = pay(invoice, hold.token)
    except (dibs.AcquireTimeout, dibs.StoreUnavailable, dibs.LockLost, dibs.StaleToken) as later:
        log.info("%s", later)
        raise self.retry(exc=later, countdown=2) from None
    log.info("invoice %s: %s, token %s", invoice, outcome, hold.token)
    return outcome


def pay(invoice: int, token: int) -> str:
    """The part that must not happen twice. The statement that changes the row also compares the token."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as db, db:
        change = "UPDATE invoices SET paid = 1, fence = :token WHERE id = :id AND NOT paid AND fence <= :token"
        if db.execute(change, {"id": invoice, "token": token}).rowcount == 1:
            db.execute("INSERT INTO payments (invoice, token) VALUES (?, ?)", (invoice, token))
            return "paid"
        row = db.execute("SELECT paid FROM invoices WHERE id = ?", (invoice,)).fetchone()
        if row is not None and not row[0]:
            raise dibs.StaleToken(f"token {token} is stale", name=f"invoice:{invoice}", step="take the lock again")
        return "paid before" if row else "no such invoice"
