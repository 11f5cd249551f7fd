"""The resource of the demo: each rule on which its proof rests can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dibs import StaleToken
from dibs.cli.demo_show import Outcome
from dibs.cli.demo_worker import Audit, Record, Resource, User, is_dead
from dibs.cli.system import now

PAST, FUTURE = 0.0, 1e12


@pytest.fixture
def resource(tmp_path: Path) -> Iterator[Resource]:
    resource = Resource(tmp_path)
    yield resource
    resource.close()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, not reaped until a test does it."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def user(token: int, worker: str = "a", pid: int = 0) -> User:
    return User(worker, pid or os.getpid(), token)


def verdict(resource: Resource) -> tuple[int, int, int]:
    record = resource.look()
    return record.overlaps, record.takeovers, record.refused


def test_turns_one_after_the_other_are_counted(resource: Resource) -> None:
    for token in (1, 2, 3):
        value = resource.begin(user(token, f"w{token}"), FUTURE)
        resource.write(user(token, f"w{token}"), value + 1, FUTURE)
        resource.end(user(token, f"w{token}"))
    assert verdict(resource) == (0, 0, 0)
    assert resource.look() == Record(highest=3, value=3, turns={"w1": 1, "w2": 1, "w3": 1})
    assert resource.audit() == Audit(writes=3, handovers=2)


def test_each_of_several_inside_counts_and_stays_until_it_leaves(resource: Resource) -> None:
    for worker, pid in ("a", 1), ("b", 2), ("c", os.getpid()):
        resource.begin(user(1, worker, pid), FUTURE)
    assert verdict(resource) == (1 + 2, 0, 0)
    resource.end(user(1, "b", 2))
    assert [mark.user.worker for mark in resource.look().inside] == ["a", "c"]


@pytest.mark.parametrize("case", ["valid", "not higher", "renewed", "written"])
def test_overlaps(resource: Resource, case: str) -> None:
    """A second worker begins beside a valid hold, or with a token that is not higher, whatever the deadline says."""
    resource.begin(user(1, pid=1 if case == "not higher" else 0), FUTURE if case == "valid" else PAST)
    if case == "renewed":
        resource.keep(user(1), FUTURE)
    if case == "written":
        resource.write(user(1), 1, FUTURE)
    resource.begin(user(1 if case == "not higher" else 2, "b"), FUTURE)
    assert verdict(resource) == (1, 0, 0)


def test_a_higher_token_takes_over_past_the_deadline(resource: Resource) -> None:
    resource.begin(user(1), now() - 0.001)
    resource.begin(user(2, "b"), FUTURE)
    assert verdict(resource) == (0, 1, 0)
    assert [mark.user.token for mark in resource.look().inside] == [2]


def test_before_the_deadline_only_the_dead_are_taken_over_from(
    resource: Resource, other: subprocess.Popen[bytes]
) -> None:
    resource.begin(user(1, pid=other.pid), FUTURE)
    resource.begin(user(2, "b"), FUTURE)
    assert verdict(resource) == (1, 0, 0), "it lives"
    other.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, other.pid, os.WSTOPPED)
    resource.begin(user(3, "b"), FUTURE)
    assert verdict(resource) == (1 + 2, 0, 0), "stopped is not dead (and the first newcomer is still inside too)"
    assert not is_dead(1), "alive, though this process may not signal it"
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    resource.end(user(3, "b"))
    resource.begin(user(4, "b"), FUTURE)
    assert resource.look().takeovers == 1, "dead, though it was not reaped"
    other.wait()
    assert is_dead(other.pid)


def test_a_lower_token_is_refused_at_every_step_and_changes_nothing(resource: Resource) -> None:
    resource.begin(user(1), PAST)
    value = resource.begin(user(2, "b"), FUTURE)
    resource.write(user(2, "b"), value + 1, FUTURE)
    expected = resource.look()
    late = {
        "begin": lambda: resource.begin(user(1), FUTURE),
        "keep": lambda: resource.keep(user(1), FUTURE),
        "end": lambda: resource.end(user(1)),
        "write": lambda: resource.write(user(1), 77, FUTURE),
    }
    for step, call in late.items():
        assert resource.audit().refused_writes == []
        with pytest.raises(StaleToken, match=f"{step} with token 1 was refused: token 2 was accepted before"):
            call()
        expected.refused += 1
        assert resource.look() == expected
    assert resource.audit().refused_writes == [user(1)]


def test_a_worker_that_was_overlapped_and_then_refused_is_not_inside(resource: Resource) -> None:
    resource.begin(user(1), FUTURE)
    resource.begin(user(2, "b"), FUTURE)
    with pytest.raises(StaleToken):
        resource.write(user(1), 1, FUTURE)
    assert [mark.user.token for mark in resource.look().inside] == [2]


def test_the_journal_is_judged_without_the_records_word(resource: Resource, tmp_path: Path) -> None:
    """As if the comparison in the resource were broken."""
    entries = [("begin", "a", 5), ("write", "a", 5), ("begin", "b", 4), ("write", "b", 4), ("begin", "b", 6)]
    with (tmp_path / "journal").open("w") as journal:
        for step, worker, token in entries:
            about = {"worker": worker, "pid": 1, "token": token}
            journal.write(json.dumps({"at": 0.0, "step": step, "refused": False, "user": about}) + "\n")
    assert resource.audit() == Audit(writes=2, handovers=1, fell=2)


def test_steps_of_many_processes_are_atomic(resource: Resource, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from dibs.cli.demo_worker import *\n"
        "resource, me = Resource(Path(sys.argv[1])), User(sys.argv[2], os.getpid(), 1)\n"
        "for _ in range(50): resource.write(me, resource.begin(me, 0.0) + 1, 0.0)"
    )
    names = ["a", "b", "c", "d"]
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in names]
    assert [process.wait(timeout=60) for process in running] == [0] * len(names)
    assert resource.look().turns == dict.fromkeys(names, 50)
    assert resource.audit().writes == 200


def good() -> Outcome:
    audit = Audit(writes=4, handovers=3, refused_writes=[user(2)])
    return Outcome(4, Record(highest=6, value=4, turns={"a": 2, "b": 2}), audit, 1.0, 0.5, ["a"], ["b"])


SPOILED: dict[str, Callable[[Outcome], object]] = {
    "3 turns instead of 4": lambda run: run.record.turns.update(a=1),
    "turns instead of 4": lambda run: setattr(run.audit, "writes", 3),
    "1 overlaps": lambda run: setattr(run.record, "overlaps", 1),
    "the counter is 3": lambda run: setattr(run.record, "value", 3),
    "1 accepted tokens were lower": lambda run: setattr(run.audit, "fell", 1),
    "no holder was killed": lambda run: run.kills.clear(),
    "no holder was paused": lambda run: run.stops.clear(),
    "no stale write": lambda run: run.audit.refused_writes.clear(),
}


def test_every_condition_of_the_proof_is_needed() -> None:
    assert good().objections() == []
    for objection, spoil in SPOILED.items():
        run = good()
        spoil(run)
        (only,) = run.objections()
        assert objection in only
