"""The end of the interpreter: what nobody can use any more is given back, and nothing is printed."""

from __future__ import annotations

import pytest

from lab.servers import shared
from lab.servers.zookeeper_ensemble import standing
from process.children import PATIENCE, STEADY, Crew, clock, until
from process.grounds import SELDOM, on_servers, usual_stores

STRICT = ("-X", "dev", "-W", "error", "-W", 'ignore:"a" on:ResourceWarning')
"""The hold of "a" is left to the exit on purpose."""


def sessions(crew: Crew) -> set[str]:
    """What ZooKeeper knows of its clients."""
    return set(standing(shared.zookeeper().ask("dump"))) if crew.url.startswith("zookeeper:") else set()


@on_servers(
    "scenario,status",
    [("main_thread", 0), ("loop_ended", 0)],
    more=[("ended_thread", 0), ("by_sys_exit", 3), ("dropped_client", 0)],
    seldom=SELDOM,
)
def test_exit_gives_back(crew: Crew, scenario: str, status: int) -> None:
    """By a leave, long before the lease ends; nothing of the client stays."""
    before = sessions(crew)
    program = crew.start("exits", scenario, crew.url, 2 * STEADY, flags=STRICT)
    old = int(program.hear("held")[0])
    own = sessions(crew) - before
    assert {one.split()[0] for one in own} == ({"session", "node"} if crew.url.startswith("zookeeper:") else set())
    program.tell("go")
    hold = crew.client.lock("a").acquire(timeout=STEADY)
    assert hold is not None
    assert hold.token > old
    assert program.end() == status
    assert program.errors == ""
    until(lambda: not own & sessions(crew), 15, what="its session is closed, which would last for 30 s or more")
    if crew.url.startswith("sqlite:"):
        crew.client.close()
        assert [file.name for file in crew.path.with_name("locks.db.d").iterdir()] == ["turn"]


@pytest.mark.slow
@usual_stores
def test_exit_gives_back_while_another_thread_waits(crew: Crew) -> None:
    with crew.client.lock("elsewhere"):
        program = crew.start("exits", "waiting_thread", crew.url, 2 * STEADY, flags=STRICT)
        old = int(program.hear("held")[0])
        until(lambda: crew.client.inspect("elsewhere").waiters, what="the thread waits")
        program.tell("go")
        hold = crew.client.lock("a").acquire(timeout=STEADY)
        assert hold is not None
        assert hold.token > old
        assert program.end() == 0
        assert program.errors == ""
        if not crew.url.startswith("zookeeper:"):  # there its claim stays as long as the session, twice as long as this
            until(lambda: not crew.client.inspect("elsewhere").waiters, what="the claim of the thread expired")


@pytest.mark.slow
@usual_stores
def test_a_running_daemon_threads_hold_is_kept_while_the_interpreter_ends(crew: Crew) -> None:
    """However long the exit takes: the lock is nobody else's while the body runs, and free once the process is dead."""
    program = crew.start("exits", "daemon_thread", crew.url, crew.lasting, flags=STRICT)
    old = int(program.hear("held")[0])
    program.tell("go")
    program.hear("exiting")
    assert crew.client.lock("a").acquire(timeout=1.5 * crew.lasting) is None, "its body still runs"
    program.tell("go")
    assert program.end() == 0
    dead = clock()
    hold = crew.client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    assert clock() - dead < crew.noticed
    assert hold.token > old
    assert program.errors == ""


@usual_stores
def test_a_task_in_its_block_when_the_loop_ends(crew: Crew) -> None:
    program = crew.start("exits", "loop_cancelled", crew.url, STEADY, flags=STRICT)
    program.hear("held")
    assert crew.client.lock("a").acquire(timeout=0) is None
    program.tell("go")
    program.hear("ended")
    hold = crew.client.lock("a").acquire(timeout=STEADY / 2)
    assert hold, "cancelling the task left the block, while the process lives on"
    program.tell("go")
    assert program.end() == 0
    assert program.errors == ""


@on_servers("method", ["fork"], more=["spawn", "forkserver"], seldom=SELDOM)
def test_a_multiprocessing_child_ends_with_an_open_hold(crew: Crew, method: str) -> None:
    """Such a child runs no exit hooks: its lock is free because it died."""
    program = crew.start("exits", f"by_{method}", crew.url, crew.lease)
    old = int(program.hear("held")[0])
    assert program.hear("status") == ["0"]
    dead = clock()
    hold = crew.client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    assert clock() - dead < crew.noticed
    assert hold.token > old
    program.tell("go")
    assert program.end() == 0
    assert program.errors == ""
