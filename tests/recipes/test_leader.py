"""docs/recipes/leader.md: there is one leader, and when it goes there is another."""

from __future__ import annotations

import runpy
import signal
import sqlite3
from contextlib import closing

import pytest

import dibs
from process.children import until
from recipes.programs import EXAMPLES, Connect, Program, Stage

NAME = "dispatcher"
LEASE = 5


@pytest.fixture
def copies(stage: Stage) -> list[Program]:
    """Three copies, in the order of the queue; the first one leads."""
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


@pytest.mark.gate
def test_after_a_kill_a_revocation_or_a_loss_the_next_one_leads(
    stage: Stage, copies: list[Program], shop: Connect
) -> None:
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
    stage.client.break_(NAME, token=stage.client.inspect(NAME).holders[0].token)
    third.hear("lost the lead")
    second.hear("leading")
    third.hear("standing by")
    second.signal(signal.SIGTERM)
    assert second.end() == 0, second.text
    third.hear("leading")
    assert_nobody_came_late(shop())


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
