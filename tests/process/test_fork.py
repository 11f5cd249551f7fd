"""After a fork the child holds nothing, releases nothing of its parent's, and works with its own connections."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from process.children import PATIENCE, STEADY, Child, Crew, clock
from process.stores import EVERY, IN_EVERY_MODE, each

HOLDS = ["ok", "valid", "owned", "True"]
LOST = ["LockLost", "lost", "not", "False"]


def run(crew: Crew, scenario: str, detail: object, lease: float = STEADY) -> Child:
    return crew.start("forks", scenario, crew.url, lease, detail)


def busy(crew: Crew, name: str = "a") -> bool:
    return crew.client.lock(name).acquire(timeout=0) is None


@contextmanager
def ended(program: Child) -> Iterator[int]:
    """The child of a program, which may outlive it."""
    pid = int(program.hear("child")[0])
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


@each(*IN_EVERY_MODE, first="sqlite redis")
def test_a_child_holds_nothing_and_works(crew: Crew) -> None:
    program = run(crew, "holds_nothing", "")
    assert program.hear("child") == LOST
    assert program.hear("released") == ["LockLost"]
    assert program.hear("unlocked")[0] in ("LockLost", "NotHeld")
    assert program.hear("other")[1:] == HOLDS
    assert program.hear("mine") == ["busy"], "the parent's lock is busy for its child"
    assert program.hear("status") == ["0"]
    assert program.hear("parent") == HOLDS
    assert busy(crew), "what the child did and its end freed nothing"
    assert crew.client.lock("b").acquire(timeout=PATIENCE), "what the child took ended with it"
    assert program.ask("go", hear="gave") == ["ok"]
    assert not busy(crew)
    assert program.end() == 0
    assert program.errors == ""


@each(*EVERY, names="how,status", cases=[("exit", "7"), ("close", "0")])
def test_a_child_goes_out_through_its_parents_with(crew: Crew, how: str, status: str) -> None:
    program = run(crew, "leaves_with", how)
    assert program.hear("status") == [status]
    assert program.hear("parent") == HOLDS
    assert busy(crew)
    program.tell("go")
    program.hear("left")
    assert not busy(crew)


@each(*EVERY, names="how", cases=["hook"], more=["forget"])
def test_finalisers_and_exit_hooks_of_a_child_free_nothing(crew: Crew, how: str) -> None:
    program = run(crew, "ends", how)
    if how == "hook":
        released, unlocked, closed = program.hear("hook")
        assert (released, closed) == ("LockLost", "ok")
        assert unlocked in ("LockLost", "NotHeld")
    else:
        program.hear("finalised")
    assert program.hear("status") == ["0"]
    assert program.hear("parent") == HOLDS
    if crew.url.startswith("sqlite:"):
        assert [file.suffix for file in crew.path.with_name("locks.db.d").iterdir()].count(".live") == 1
    assert busy(crew)
    assert program.ask("go", hear="gave") == ["ok"]
    assert not busy(crew)
    assert program.errors == ""


@pytest.mark.alone
@each(*EVERY)
def test_a_childs_watchdog_does_not_keep_what_its_parent_holds(crew: Crew) -> None:
    """The parent is stopped past its lease while its child renews: the child's own hold only."""
    program, waiter = run(crew, "child_works_on", "", crew.lasting), crew.worker(STEADY)
    old = int(program.hear("held")[0])
    with ended(program):
        program.freeze()
        stopped = clock()
        token, _, _ = waiter.ask("take", "a", PATIENCE, hear="took")
        assert int(token) > old
        time.sleep(max(0.0, stopped + 1.5 * crew.lasting - clock()))  # more than a lease of the child's own hold
        assert busy(crew, "b"), "the child's own hold is renewed"
        program.signal(signal.SIGCONT)
        program.tell("go")
        assert program.hear("parent") == LOST
        assert program.hear("gave") == ["LockLost"]
        assert waiter.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]


@each(*EVERY)
def test_a_parent_killed_while_its_child_lives(crew: Crew) -> None:
    """The child has closed its copy of the file or socket by which the parent is known to live."""
    program = run(crew, "leaves_child", "", crew.lease)
    old = int(program.hear("held")[0])
    with ended(program):
        program.kill()
        hold = crew.client.lock("a").acquire(timeout=PATIENCE)
        assert hold is not None
        assert hold.token > old
        assert busy(crew, "b"), "the child lives, and so does its hold"
    assert crew.client.lock("b").acquire(timeout=PATIENCE)


@pytest.mark.gate
@each(*EVERY)
def test_fork_while_other_threads_acquire(crew: Crew) -> None:
    program = run(crew, "beside_threads", 10)
    for number in range(10):
        assert program.hear("round") == [str(number), "0"]
    assert program.hear("gave") == ["ok"]
    assert program.end() == 0
    assert program.errors == ""


def test_fork_while_another_thread_imports_logging(crew: Crew) -> None:
    program = run(crew, "while_logging_is_imported", "")
    assert program.hear("status") == ["0"]
    assert program.end() == 0
    assert program.errors == ""
