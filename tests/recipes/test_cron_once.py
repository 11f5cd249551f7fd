"""docs/recipes/cron-once.md: one report a day, whatever is started and killed."""

from __future__ import annotations

import runpy
import sqlite3

import pytest

from recipes.programs import EXAMPLES, Connect, Stage

DAY = "2026-11-15"
LOCK = "report:nightly"


@pytest.fixture
def db(stage: Stage, shop: Connect) -> sqlite3.Connection:
    """With the tables, made by a run for another day, and three sales."""
    assert "written: 0" in stage.run("cron_once.py", "shop.db", "2026-11-14")
    db = shop()
    db.executemany("INSERT INTO sales VALUES (?, ?)", [(DAY, 5), (DAY, 7), ("2026-11-13", 100)])
    return db


def reports(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    return db.execute("SELECT day, total FROM reports WHERE day = ?", (DAY,)).fetchall()


def test_many_copies_write_one_report(stage: Stage, db: sqlite3.Connection) -> None:
    """At once, and later."""
    copies = [stage.start("cron_once.py", "shop.db", DAY) for _ in range(3)]
    assert [copy.end() for copy in copies] == [0] * 3
    said = [copy.text for copy in copies]
    assert sum("written: 12" in text for text in said) == 1, said
    assert sum("skipped: " in text for text in said) == 2, said
    assert "skipped: written before" in stage.run("cron_once.py", "shop.db", DAY)
    assert reports(db) == [(DAY, 12)]


@pytest.mark.gate
def test_a_copy_that_finds_another_at_work_says_who_and_after_a_kill_does_it(
    stage: Stage, db: sqlite3.Connection
) -> None:
    db.execute("BEGIN IMMEDIATE")  # whoever wants to write now waits
    first = stage.start("cron_once.py", "shop.db", DAY)
    stage.taken(LOCK, first)
    assert f"pid {first.pid} is at work" in stage.run("cron_once.py", "shop.db", DAY)
    first.kill()
    db.execute("ROLLBACK")
    stage.free(LOCK)
    assert "written: 12" in stage.run("cron_once.py", "shop.db", DAY)
    assert reports(db) == [(DAY, 12)]


def test_a_second_report_for_a_day_is_refused(db: sqlite3.Connection) -> None:
    """By the program's own function, as a copy calls it that lost its lock after its last look."""
    write = runpy.run_path(str(EXAMPLES / "cron_once.py"))["write"]
    write(db, DAY, 12, 7)
    with pytest.raises(sqlite3.IntegrityError):
        write(db, DAY, 13, 6)
    assert reports(db) == [(DAY, 12)]
