"""docs/recipes/django.md: the management command, run as processes of their own, also at once."""

from __future__ import annotations

import sqlite3

import pytest

from recipes.programs import Connect, Program, Stage

pytest.importorskip("django", reason="pip install 'dibs[recipes]'")

LOCK = "settle-invoices"
MANAGE = "django_project/manage.py"


@pytest.fixture
def db(stage: Stage, shop: Connect) -> sqlite3.Connection:
    """Migrated, with three open invoices."""
    stage.run(MANAGE, "migrate", "--run-syncdb")
    db = shop()
    db.executemany("INSERT INTO shop_invoice (settled, fence) VALUES (0, 0)", [()] * 3)
    return db


def settled(db: sqlite3.Connection) -> list[int]:
    return [flag for (flag,) in db.execute("SELECT settled FROM shop_invoice ORDER BY id")]


def at_work(stage: Stage, db: sqlite3.Connection) -> Program:
    """A copy that has the lock and waits for the database."""
    db.execute("BEGIN IMMEDIATE")
    copy = stage.start(MANAGE, "settle_invoices")
    stage.taken(LOCK, copy)
    return copy


def test_copies_take_turns(stage: Stage, db: sqlite3.Connection) -> None:
    first = at_work(stage, db)
    hasty = stage.start(MANAGE, "settle_invoices")
    assert hasty.end() == 75
    assert "another copy is at work" in hasty.text
    assert f"pid {first.pid}" in hasty.text
    patient = stage.start(MANAGE, "settle_invoices", "--wait", 60)
    stage.waiting(LOCK, 1)
    db.execute("ROLLBACK")
    assert (first.end(), patient.end()) == (0, 0)
    assert (first.text, patient.text) == ("3 settled\n", "0 settled\n")
    assert settled(db) == [1, 1, 1]


@pytest.mark.gate
def test_a_stale_copy_changes_nothing_and_after_a_kill_the_next_one_goes_on(
    stage: Stage, db: sqlite3.Connection
) -> None:
    stale = at_work(stage, db)
    stage.client.break_(LOCK, token=stage.client.inspect(LOCK).holders[0].token)
    with stage.client.lock(LOCK, timeout=60) as hold:
        db.execute("UPDATE shop_invoice SET fence = ? WHERE id = 1", (hold.token,))
        db.execute("COMMIT")
        assert stale.end() == 1
    assert "invoice 1 was written by a later copy" in stale.text
    assert settled(db) == [0, 0, 0]
    killed = at_work(stage, db)
    killed.kill()
    db.execute("UPDATE shop_invoice SET settled = 1 WHERE id = 1")  # as far as the killed one had come
    db.execute("COMMIT")
    assert stage.run(MANAGE, "settle_invoices", "--wait", 25) == "2 settled\n"
    assert settled(db) == [1, 1, 1]
