"""docs/recipes/django.md: the management command, run as processes of their own, also at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest

from recipes.programs import Program, Stage

pytest.importorskip("django", reason="pip install 'dibs[recipes]'")

LOCK = "settle-invoices"
MANAGE = "django_project/manage.py"
Connect = Callable[[], sqlite3.Connection]


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


def test_it_settles_what_is_open_and_no_more(stage: Stage, db: sqlite3.Connection) -> None:
    assert stage.run(MANAGE, "settle_invoices") == "3 settled\n"
    assert stage.run(MANAGE, "settle_invoices") == "0 settled\n"
    assert settled(db) == [1, 1, 1]


def test_a_second_copy_says_who_is_at_work(stage: Stage, db: sqlite3.Connection) -> None:
    first = at_work(stage, db)
    second = stage.start(MANAGE, "settle_invoices")
    assert second.end() == 75
    assert "another copy is at work" in second.text
    assert f"pid {first.pid}" in second.text
    db.execute("ROLLBACK")
    assert first.end() == 0, first.text
    assert settled(db) == [1, 1, 1]


def test_a_second_copy_may_wait(stage: Stage, db: sqlite3.Connection) -> None:
    first = at_work(stage, db)
    second = stage.start(MANAGE, "settle_invoices", "--wait", 30)
    stage.waiting(LOCK, 1)
    db.execute("ROLLBACK")
    assert (first.end(), second.end()) == (0, 0)
    assert (first.text, second.text) == ("3 settled\n", "0 settled\n")


def test_after_a_kill_the_next_copy_goes_on(stage: Stage, db: sqlite3.Connection) -> None:
    first = at_work(stage, db)
    first.kill()
    db.execute("UPDATE shop_invoice SET settled = 1 WHERE id = 1")  # as far as the first one had come
    db.execute("COMMIT")
    assert stage.run(MANAGE, "settle_invoices", "--wait", 10) == "2 settled\n"
    assert settled(db) == [1, 1, 1]


def test_a_stale_copy_changes_nothing(stage: Stage, db: sqlite3.Connection) -> None:
    first = at_work(stage, db)
    stage.client.break_(LOCK, token=stage.client.inspect(LOCK).holders[0].token)
    with stage.client.lock(LOCK, timeout=5) as hold:
        db.execute("UPDATE shop_invoice SET fence = ? WHERE id = 1", (hold.token,))
        db.execute("COMMIT")
        assert first.end() == 1
    assert "invoice 1 was written by a later copy" in first.text
    assert settled(db) == [0, 0, 0]
