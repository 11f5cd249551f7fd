"""The end of the interpreter: holds that nobody can use any more are given back, and nothing is printed."""

from __future__ import annotations

import pytest

from lab.servers import shared
from lab.servers.zookeeper_ensemble import standing
from process.children import PATIENCE, STEADY, Crew, until
from process.stores import each

STRICT = ("-X", "dev", "-W", "error", "-W", 'ignore:"a" on:ResourceWarning')
"""The hold of "a" is left to the exit on purpose."""
STORES = ("sqlite", "redis", "zookeeper")


def sessions(crew: Crew) -> set[str]:
    """ZooKeeper's list of its clients."""
    return set(standing(shared.zookeeper().ask("dump"))) if crew.url.startswith("zookeeper:") else set()


@each(
    *STORES,
    names="scenario,status",
    cases=[("main_thread", 0), ("loop_ended", 0)],
    more=[("waiting_thread", 0), ("by_sys_exit", 3), ("dropped_client", 0)],
    first="sqlite redis",
)
def test_exit_gives_back(crew: Crew, scenario: str, status: int) -> None:
    """By a leave, long before the lease ends; nothing of the client stays."""
    elsewhere = crew.client.lock("elsewhere").acquire(timeout=0)
    assert elsewhere is not None
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
    if crew.url.startswith("sqlite:") and scenario != "waiting_thread":
        elsewhere.release()
        crew.client.close()
        assert [file.name for file in crew.path.with_name("locks.db.d").iterdir()] == ["turn"]


@pytest.mark.gate
@each(*STORES)
def test_a_running_daemon_threads_hold_is_kept_while_the_interpreter_ends(crew: Crew) -> None:
    """However long the exit takes: the lock is nobody else's while the body runs, and free once the process is dead."""
    program = crew.start("exits", "daemon_thread", crew.url, crew.lasting, flags=STRICT)
    old = int(program.hear("held")[0])
    program.tell("go")
    program.hear("exiting")
    assert crew.client.lock("a").acquire(timeout=1.5 * crew.lasting) is None, "its body still runs"
    program.tell("go")
    assert program.end() == 0
    hold = crew.client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    assert hold.token > old
    assert program.errors == ""


@each(*STORES)
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


@each(*STORES, names="method", cases=["fork"], more=["spawn", "forkserver"])
def test_a_multiprocessing_child_ends_with_an_open_hold(crew: Crew, method: str) -> None:
    """Such a child runs no exit hooks: its lock is free because it died."""
    program = crew.start("exits", f"by_{method}", crew.url, crew.lease)
    old = int(program.hear("held")[0])
    assert program.hear("status") == ["0"]
    hold = crew.client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    assert hold.token > old
    program.tell("go")
    assert program.end() == 0
    assert program.errors == ""
