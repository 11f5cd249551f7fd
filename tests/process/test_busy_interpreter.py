"""Renewal depends neither on the event loop nor on an interpreter that other threads leave idle; C that keeps the
interpreter to itself past the lease loses, and says so."""

from __future__ import annotations

from collections import Counter

import pytest

from process.children import Crew, until
from process.grounds import STEADY, every_store

pytestmark = pytest.mark.xdist_group("busy-interpreter")  # one at a time: each takes a core, and more


@pytest.mark.slow
@pytest.mark.parametrize(
    ("crew", "scenario"),
    [
        ("sqlite", "blocked_loop"),
        ("sqlite", "busy_thread"),
        ("sqlite", "busy_threads"),
        ("zookeeper", "blocked_loop"),
        ("zookeeper", "busy_thread"),
        ("redis", "blocked_loop"),
        ("redis", "busy_thread"),
    ],
    indirect=["crew"],
)
def test_a_busy_interpreter_keeps_its_lock(crew: Crew, scenario: str) -> None:
    program, other = crew.start("loops", scenario, crew.url, crew.lasting), crew.worker(STEADY)
    program.hear("held")
    tries: Counter[str] = Counter()
    while program.silent():
        word, *rest = other.tries("a")
        tries[f"{word} {rest[0]}" if word == "failed" else word] += 1
    print(f"figure: beside {scenario}: {dict(tries)}")
    assert program.hear("after") == ["False", "True"]
    assert tries["busy"] > 20
    # Whoever waits for its interpreter within a transaction keeps the others out of the store for that long.
    excused = {"failed StoreUnavailable"} if scenario == "busy_threads" else set()
    assert tries.keys() <= {"busy"} | excused
    assert other.tries("a")[0] == "busy"
    program.tell("go")
    program.hear("left")
    assert other.take("a", 0)
    assert program.end() == 0
    assert program.errors == ""


@pytest.mark.slow
@every_store
def test_c_code_past_the_lease_has_lost_and_knows_it(crew: Crew) -> None:
    """Nobody can renew meanwhile. The next one is served after the holder's own deadline, and its hold is spared."""
    lease = min(crew.lease, 1.5)
    program, waiter, onlooker = crew.start("loops", "c_code", crew.url, lease), *(crew.worker(STEADY) for _ in range(2))
    old = int(program.hear("held")[0])
    waiter.tell("take", "a", 20)
    until(lambda: onlooker.ask("line", "a", hear="line") == ["1", "1"], what="the line")
    program.tell("go")
    token, _, got = waiter.hear("took")
    check, lost, deadline, back = program.hear("after")
    print(f"figure: C kept the interpreter; the next one held {float(got) - float(deadline):.3f} s past the deadline")
    assert (check, lost) == ("LockLost", "True")
    assert int(token) > old
    assert float(deadline) < float(got), "two valid holders"
    assert float(got) < float(back), "it was served while the C code still ran"
    assert program.ask("go", hear="gave") == ["LockLost"]
    assert onlooker.tries("a")[0] == "busy", "the late release freed nothing"
    assert waiter.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert waiter.ask("give", "a", hear="gave") == ["ok"]
    assert program.end() == 0
    assert "Traceback" not in program.errors


@every_store
def test_two_hundred_threads_are_all_served(crew: Crew) -> None:
    program, onlooker = crew.start("loops", "crowd", crew.url, 10), crew.worker()
    assert program.hear("served", within=50) == ["600"]
    assert program.hear("alone") == ["600"], "two were inside at once"
    threads, descriptors = map(int, program.hear("peak"))
    print(f"figure: 200 threads: {threads} threads and {descriptors} descriptors more than before")
    assert threads <= 200 + 5, "a waiting thread of the user's costs no thread of ours"
    # In Redis each question has a connection while it is asked, and here all threads ask at the same time.
    assert descriptors <= (200 + 10 if crew.url.startswith("redis:") else 10), "nor a descriptor"
    for name in "abcd":
        assert onlooker.ask("line", name, hear="line") == ["0", "0"]
    program.tell("go")
    program.hear("closed")
    assert program.end() == 0
    assert program.errors == ""
    if crew.url.startswith("sqlite:"):
        left = [file.suffix for file in crew.path.with_name("locks.db.d").iterdir()]
        assert sorted(left) == ["", ".live", ".sock"], "what is left is the onlooker's"
