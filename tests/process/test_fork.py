"""After a fork the child holds nothing, releases nothing of its parent's, and works with its own connections."""

from __future__ import annotations

import os
import signal

import pytest

from process.children import Child, Crew, clock, until
from process.grounds import STEADY, every_store

HOLDS = ["ok", "valid", "owned", "True"]
LOST = ["LockLost", "lost", "not", "False"]


def run(crew: Crew, scenario: str, detail: object, lease: float = STEADY) -> Child:
    return crew.start("forks", scenario, crew.url, lease, detail)


@every_store
@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_a_child_holds_nothing_and_works(crew: Crew, how: str) -> None:
    program, other = run(crew, "holds_nothing", how), crew.worker(STEADY)
    assert program.hear("child") == LOST
    assert program.hear("released") == ["LockLost"]
    assert program.hear("unlocked")[0] in ("LockLost", "NotHeld")
    assert program.hear("other")[1:] == HOLDS
    assert program.hear("mine") == ["busy"], "the parent's lock is busy for its child"
    assert program.hear("status") == ["0"]
    assert program.hear("parent") == HOLDS
    assert other.tries("a")[0] == "busy", "what the child did and its end freed nothing"
    assert other.take("b", 5), "what the child took ended with it"
    assert program.ask("go", hear="gave") == ["ok"]
    assert other.take("a", 0)
    assert program.end() == 0
    assert program.errors == ""


@every_store
@pytest.mark.parametrize(
    ("how", "status"), [("exit", "7"), ("close", "0"), ("raise", "1"), ("end", "1"), ("drop", "3")]
)
def test_a_child_goes_out_through_its_parents_with(crew: Crew, how: str, status: str) -> None:
    """Leaving the block raises LockLost in the child, where no other exception is on its way."""
    program, other = run(crew, "leaves_with", how), crew.worker(STEADY)
    assert program.hear("status") == [status]
    assert program.hear("parent") == HOLDS
    assert other.tries("a")[0] == "busy"
    program.tell("go")
    program.hear("left")
    assert other.take("a", 0)


@every_store
@pytest.mark.parametrize("how", ["forget", "hook"])
def test_finalisers_and_exit_hooks_of_a_child_free_nothing(crew: Crew, how: str) -> None:
    program, other = run(crew, "ends", how), crew.worker(STEADY)
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
    assert other.tries("a")[0] == "busy"
    assert program.ask("go", hear="gave") == ["ok"]
    assert other.take("a", 0)
    assert program.errors == ""


@pytest.mark.slow
@every_store
def test_a_childs_keeper_does_not_keep_what_its_parent_holds(crew: Crew) -> None:
    """The parent is stopped past its lease while its child renews: the child's own hold only."""
    lease = crew.lasting
    program, waiter = run(crew, "child_works_on", "", lease), crew.worker(STEADY)
    old = int(program.hear("held")[0])
    child = int(program.hear("child")[0])
    try:
        program.freeze()
        stopped = clock()
        token, _, got = waiter.ask("take", "a", 20, hear="took")
        assert int(token) > old
        assert float(got) - stopped < max(lease + 2, crew.noticed_with(lease)), "the child kept its parent's hold alive"
        until(lambda: clock() - stopped > 1.5 * lease, what="more than a lease of the child's own hold")
        assert crew.worker().tries("b")[0] == "busy", "the child's own hold is renewed"
        program.signal(signal.SIGCONT)
        program.tell("go")
        assert program.hear("parent") == LOST
        assert program.hear("gave") == ["LockLost"]
        assert waiter.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    finally:
        os.kill(child, signal.SIGKILL)


@every_store
@pytest.mark.parametrize("how", ["idle", "user"])
def test_a_parent_killed_while_its_child_lives(crew: Crew, how: str) -> None:
    """The child closed its copy of what the parent is known to live by, a file or a socket: its death is seen as any
    other's."""
    program, other = run(crew, "leaves_child", how, crew.lasting), crew.worker(STEADY)
    old = int(program.hear("held")[0])
    child = int(program.hear("child")[0])
    try:
        dead = program.kill()
        token, _, got = other.ask("take", "a", 20, hear="took")
        print(f"figure: parent killed, forked child alive: free after {float(got) - dead:.3f} s")
        assert float(got) - dead < crew.noticed_with(crew.lasting)
        assert int(token) > old
        if how == "user":
            assert other.tries("b")[0] == "busy", "the child lives, and so does its hold"
    finally:
        os.kill(child, signal.SIGKILL)
    if how == "user":
        assert other.take("b", 10)


@pytest.mark.slow
@every_store
def test_fork_while_other_threads_acquire(crew: Crew) -> None:
    begun = clock()
    program = run(crew, "beside_threads", 20)
    for number in range(20):
        assert program.hear("round", within=15) == [str(number), "0"]
    assert program.hear("gave") == ["ok"]
    assert program.end() == 0
    print(f"figure: 20 forks beside 3 busy threads in {clock() - begun:.2f} s")
    assert program.errors == ""


@every_store
def test_generations(crew: Crew) -> None:
    program = run(crew, "grandchildren", "")
    for _ in range(3):
        assert program.hear("own")[1:] == ["LockLost", "ok"]
    for word in ["status", "still", "status", "still", "status"]:
        assert program.hear(word) == (["0"] if word == "status" else ["ok"])
    assert program.hear("parent") == HOLDS
