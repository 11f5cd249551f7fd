"""docs/recipes/leader.md: there is one leader, and when it goes there is another."""

from __future__ import annotations

import runpy
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

import dibs
from process.children import until
from recipes.programs import EXAMPLES, Program, Stage

NAME = "dispatcher"
LEASE = 5
Connect = Callable[[], sqlite3.Connection]


@pytest.fixture
def copies(stage: Stage) -> list[Program]:
    """Three of them, in the order in which they stand in line; the first one leads."""
    started: list[Program] = []
    for number in range(3):
        copy = stage.start("leader.py", "--lease", LEASE, "shop.db")
        if number:
            stage.waiting(NAME, number)
        else:
            copy.hear("leading")
        started.append(copy)
    return started


def dispatches(db: sqlite3.Connection, by: Program) -> None:
    """Wait until that one has done something."""
    done = "SELECT count(*) FROM dispatched WHERE pid = ?"
    until(lambda: db.execute(done, (by.pid,)).fetchone()[0] > 0, what="work of the leader")


def assert_nobody_came_late(db: sqlite3.Connection) -> None:
    tokens = [token for (token,) in db.execute("SELECT token FROM dispatched ORDER BY id")]
    assert tokens == sorted(tokens)


def test_after_a_kill_the_next_one_leads(stage: Stage, copies: list[Program], shop: Connect) -> None:
    first, second, third = copies
    old = int(first.text.splitlines()[-1].rsplit(" ", 1)[1])
    dispatches(shop(), first)
    for other in (second, third):
        other.hear(f"standing by, .* pid {first.pid} leads")
        assert "leading" not in other.text
    first.kill()
    assert int(second.hear(r"leading, token (\d+)")[1]) > old
    dispatches(shop(), second)
    stage.client.election(NAME).lead().revoke()
    second.hear("stepped down, as asked")
    third.hear("leading")
    dispatches(shop(), third)
    third.signal(signal.SIGTERM)
    assert third.end() == 0, third.text
    second.hear("leading")
    assert_nobody_came_late(shop())


def test_a_leader_that_was_stopped_finds_another_and_stands_by(
    stage: Stage, copies: list[Program], shop: Connect
) -> None:
    first, second, _ = copies
    dispatches(shop(), first)
    db = shop()
    db.execute("BEGIN IMMEDIATE")  # nor is it stopped inside a transaction of its own
    stage.freeze(first)
    db.execute("ROLLBACK")
    second.hear("leading")
    dispatches(db, second)
    first.signal(signal.SIGCONT)
    first.hear("lost the lead")
    first.hear("standing by")
    stage.waiting(NAME, 2)
    assert_nobody_came_late(db)


def test_what_a_stale_leader_dispatches_is_refused(stage: Stage, shop: Connect) -> None:
    """By the program's own function: the program itself looks first, and gets this far only if it is stopped between
    its look and its write."""
    program = runpy.run_path(str(EXAMPLES / "leader.py"))
    db, fence, election = shop(), stage.client.fence(NAME), stage.client.election(NAME)
    db.execute(program["SCHEMA"])
    tokens = []
    for _ in range(2):
        with election.lead() as hold:
            tokens.append(hold.token)
    with closing(sqlite3.connect(stage.directory / "shop.db")) as plain:
        program["dispatch"](plain, fence, tokens[1])
        with pytest.raises(dibs.StaleToken):
            program["dispatch"](plain, fence, tokens[0])
    assert db.execute("SELECT token FROM dispatched").fetchall() == [(tokens[1],)]
