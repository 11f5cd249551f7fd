"""docs/recipes/apscheduler.md: two schedulers, and each tick is done by one of them."""

from __future__ import annotations

import runpy
import signal
import sqlite3

import pytest

from process.children import until
from recipes.programs import EXAMPLES, Connect, Stage

pytest.importorskip("apscheduler", reason="pip install 'dibs[recipes]'")

LOCK = "every-second"


def ticks(db: sqlite3.Connection) -> int:
    (number,) = db.execute("SELECT count(*) FROM runs").fetchone()
    return int(number)


@pytest.mark.gate
def test_each_tick_is_done_once_and_goes_on_after_a_kill(stage: Stage, shop: Connect) -> None:
    """A second run for a tick would be refused by the primary key, and that failure logged: there is none."""
    first, second = (stage.start("apscheduler_job.py", "shop.db") for _ in range(2))
    for scheduler in (first, second):
        scheduler.hear("scheduled")
    db = shop()
    until(lambda: ticks(db) >= 2, what="two ticks")
    with stage.client.lock(LOCK, timeout=60):
        done = ticks(db)
        until(lambda: second_of(db) >= 2, what="two seconds in which ticks came and nobody worked")
        assert ticks(db) == done
    first.kill()
    until(lambda: ticks(db) >= done + 1, what="another tick, by the one that is left")
    second.signal(signal.SIGTERM)
    assert second.end() == 0, second.text
    assert "UNIQUE" not in first.text + second.text
    assert "Traceback" not in first.text + second.text
    assert db.execute("SELECT count(DISTINCT tick) = count(*) FROM runs").fetchone() == (1,)
    tokens = [token for (token,) in db.execute("SELECT token FROM runs ORDER BY tick")]
    assert tokens == sorted(tokens)


def test_a_tick_that_is_done_is_not_done_again(stage: Stage, shop: Connect) -> None:
    """By the program's own function, as two schedulers call it when one is done before the other has begun."""
    program = runpy.run_path(str(EXAMPLES / "apscheduler_job.py"))
    db = shop()
    db.execute(program["SCHEMA"])
    for _ in range(5):
        program["job"](stage.client, str(stage.directory / "shop.db"))  # a second run in one second would be refused
    assert 1 <= ticks(db) <= 5
    db.execute("INSERT INTO runs VALUES ('9999-12-31T23:59:59+00:00', 0, 0)")
    done = ticks(db)
    program["job"](stage.client, str(stage.directory / "shop.db"))
    assert ticks(db) == done, "whose clock is behind does not go back"


def second_of(db: sqlite3.Connection) -> float:
    """How long ago the last tick was, by the clock of the schedulers."""
    (age,) = db.execute("SELECT (julianday('now') - julianday(max(tick))) * 86400 FROM runs").fetchone()
    return float(age)
