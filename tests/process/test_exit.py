"""The end of the interpreter: what nobody can use any more is given back, and nothing is printed."""

from __future__ import annotations

import pytest

from lab.servers import shared
from lab.servers.zookeeper_ensemble import standing
from lab.stopwatch import Stopwatch
from process.children import Crew, clock, until
from process.grounds import STEADY, every_store

STRICT = ("-X", "dev", "-W", "error")


@every_store
@pytest.mark.parametrize(
    ("scenario", "status"),
    [
        ("main_thread", 0), ("ended_thread", 0), ("waiting_thread", 0), ("loop_ended", 0), ("by_sys_exit", 3),
        ("dropped_client", 0),
    ],
)  # fmt: skip
def test_exit_gives_back(crew: Crew, scenario: str, status: int) -> None:
    """By a leave, not by the process's death: the waiter is woken at once, and nothing of the client stays."""
    program, other = crew.start("exits", scenario, crew.url, STEADY, flags=STRICT), crew.worker(STEADY)
    old = int(program.hear("held")[0])
    other.tell("take", "a", 20)
    onlooker = crew.worker(STEADY)
    while onlooker.ask("line", "a", hear="line") != ["1", "1"]:
        pass
    with Stopwatch() as watch:
        program.tell("go")
        token, *_ = other.hear("took")
        took = watch.seconds()
    print(f"figure: {scenario}: given back {took:.3f} s after the end began")
    assert took < 2
    assert int(token) > old
    assert program.end() == status
    assert program.errors == ""


UNCLOSED = ["main_thread", "ended_thread", "loop_ended", "by_sys_exit", "dropped_client"]


@pytest.mark.parametrize("scenario", UNCLOSED)
def test_nothing_of_an_unclosed_client_stays(crew: Crew, scenario: str) -> None:
    program = crew.start("exits", scenario, crew.url, 30, flags=STRICT)
    program.hear("held")
    program.tell("go")
    program.end()
    assert program.errors == ""
    assert [file.name for file in crew.path.with_name("locks.db.d").iterdir()] == ["turn"]


@pytest.mark.parametrize("scenario", ["main_thread", "loop_ended"])
@pytest.mark.parametrize("crew", ["zookeeper"], indirect=True)
def test_the_session_of_an_unclosed_client_is_closed(crew: Crew, scenario: str) -> None:
    """It would last for 30 s."""
    before = standing(shared.zookeeper().ask("dump"))
    program = crew.start("exits", scenario, crew.url, STEADY, flags=STRICT)
    program.hear("held")
    own = set(standing(shared.zookeeper().ask("dump"))) - set(before)
    assert {one.split()[0] for one in own} == {"session", "node"}
    program.tell("go")
    program.end()
    assert program.errors == ""
    until(lambda: not own & set(standing(shared.zookeeper().ask("dump"))), within=10, what="it is closed")


@every_store
def test_a_running_daemon_threads_hold_is_not_given_back_by_the_exit_hook(crew: Crew) -> None:
    program, other = crew.start("exits", "daemon_thread", crew.url, crew.lease, flags=STRICT), crew.worker(STEADY)
    old = int(program.hear("held")[0])
    program.tell("go")
    program.hear("exiting")
    assert other.tries("a")[0] == "busy", "its body still runs"
    program.tell("go")
    assert program.end() == 0
    dead = clock()
    token, _, got = other.ask("take", "a", 20, hear="took")
    print(f"figure: a daemon thread's lock was free {float(got) - dead:.3f} s after the process's end")
    assert float(got) - dead < crew.noticed
    assert int(token) > old
    assert program.errors == ""


@pytest.mark.slow
@every_store
def test_a_running_daemon_threads_hold_is_renewed_while_the_interpreter_ends(crew: Crew) -> None:
    """However long the exit takes: the lock is nobody else's while the body runs, and free once the process is dead."""
    program, other = crew.start("exits", "daemon_thread", crew.url, crew.lasting, flags=STRICT), crew.worker(STEADY)
    old = int(program.hear("held")[0])
    program.tell("go")
    program.hear("exiting")
    begun = clock()
    while clock() - begun < 1.5 * crew.lasting:
        assert other.tries("a")[0] == "busy", "its body still runs"
    other.tell("take", "a", 20)
    program.tell("go")
    assert program.end() == 0
    dead = clock()
    token, _, got = other.hear("took")
    assert float(got) - dead < crew.noticed_with(crew.lasting)
    assert int(token) > old
    assert program.errors == ""


@every_store
def test_a_task_in_its_block_when_the_loop_ends(crew: Crew) -> None:
    program, other = crew.start("exits", "loop_cancelled", crew.url, STEADY, flags=STRICT), crew.worker(STEADY)
    program.hear("held")
    assert other.tries("a")[0] == "busy"
    program.tell("go")
    program.hear("ended")
    assert other.take("a", 10), "cancelling the task left the block, while the process lives on"
    program.tell("go")
    assert program.end() == 0
    assert program.errors == ""


@every_store
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_multiprocessing_child_ends_with_an_open_hold(crew: Crew, method: str) -> None:
    """Such a child runs no exit hooks: its lock is free because it died."""
    program = crew.start("exits", f"by_{method}", crew.url, crew.lease)
    old = int(program.hear("held")[0])
    assert program.hear("status") == ["0"]
    dead = clock()
    token, _, got = crew.worker(STEADY).ask("take", "a", 20, hear="took")
    print(f"figure: {method}: free {float(got) - dead:.3f} s after the child's end")
    assert float(got) - dead < crew.noticed
    assert int(token) > old
    program.tell("go")
    assert program.end() == 0
    assert program.errors == ""
