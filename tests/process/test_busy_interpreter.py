"""Renewal depends neither on the event loop nor on an interpreter that other threads leave idle; C that keeps the
interpreter to itself past the lease loses, and says so."""

from __future__ import annotations

import pytest

from process.children import STEADY, Crew, until
from process.grounds import usual_stores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        ("sqlite", "blocked_loop"),
        ("sqlite", "busy_thread"),
        ("zookeeper", "blocked_loop"),
        ("redis", "blocked_loop"),
        # A core for ten seconds each; what renews is the same.
        pytest.param("sqlite", "busy_threads", marks=pytest.mark.soak),
        pytest.param("zookeeper", "busy_thread", marks=pytest.mark.soak),
        pytest.param("redis", "busy_thread", marks=pytest.mark.soak),
    ],
    indirect=["crew"],
)
def test_a_busy_interpreter_keeps_its_lock(crew: Crew, scenario: str) -> None:
    program, other = crew.start("loops", scenario, crew.url, crew.lasting), crew.worker(STEADY)
    program.hear("held")
    said: list[str] = []

    def over() -> bool:
        word, *rest = other.tries("a")
        said.append(f"{word} {rest[0]}" if word == "failed" else word)
        return not program.silent()

    until(over, what="the end of the busy time")
    assert program.hear("after") == ["False", "True"]
    # A thread that waits for its interpreter within a transaction keeps the others out of the store for that long.
    excused = {"failed StoreUnavailable"} if scenario == "busy_threads" else set()
    assert set(said) <= {"busy"} | excused
    assert other.tries("a")[0] == "busy"
    program.tell("go")
    program.hear("left")
    assert other.take("a", 0)
    assert program.end() == 0
    assert program.errors == ""


@pytest.mark.slow
@pytest.mark.parametrize("crew", ["sqlite", "zookeeper"], indirect=True)
def test_c_code_past_the_lease_has_lost_and_knows_it(crew: Crew) -> None:
    """Nobody can renew meanwhile. The next one is served after the holder's own deadline, and its hold is spared."""
    program, waiter = crew.start("loops", "c_code", crew.url, crew.lasting), crew.worker(STEADY)
    old = int(program.hear("held")[0])
    waiter.tell("take", "a", STEADY)
    crew.in_queue("a", 1, 1)
    program.tell("go")
    token, _, got = waiter.hear("took")
    check, lost, deadline, back = program.hear("after")
    assert (check, lost) == ("LockLost", "True")
    assert int(token) > old
    assert float(deadline) < float(got), "two valid holders"
    assert float(got) < float(back), "it was served while the C code still ran"
    assert program.ask("go", hear="gave") == ["LockLost"]
    assert crew.client.lock("a").acquire(timeout=0) is None, "the late release freed nothing"
    assert waiter.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert program.end() == 0
    assert "Traceback" not in program.errors


@usual_stores
def test_many_threads_are_all_served(crew: Crew) -> None:
    size = 200 if crew.url.startswith("sqlite:") else 40
    program = crew.start("loops", "crowd", crew.url, STEADY, size)
    assert program.hear("served", within=150) == [str(3 * size)]
    assert program.hear("alone") == [str(3 * size)], "two were inside at once"
    threads, descriptors = map(int, program.hear("peak"))
    assert threads <= size + 10, "a waiting thread of the user's costs no thread of ours"
    # PostgreSQL and MySQL have at most 8 connections, one that listens and one of the watchdog's. In Redis each request
    # has a connection until its reply, and here all threads ask at the same time.
    assert descriptors <= (size + 10 if crew.url.startswith("redis:") else 10), "nor a descriptor"
    for name in "abcd":
        crew.in_queue(name, 0, 0)
    program.tell("go")
    program.hear("closed")
    assert program.end() == 0
    assert program.errors == ""
    if crew.url.startswith("sqlite:"):
        left = [file.suffix for file in crew.path.with_name("locks.db.d").iterdir()]
        assert sorted(left) == ["", ".live", ".sock"], "what is left is the observer's"
