"""The processes of `dibs run`: none outlives its lock, whoever is killed or stopped, and none keeps what is not its."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.instants import INSTANTS
from cli.terminals import CTRL_C, Terminal
from cli.wrapped import DIBS, HERE, WITNESS, Scene, children, gone, is_stopped, members
from process.children import clock, until

BEGUN = r"begun (\d+) (\d+) (\d+)"


# kill -9.


def test_a_wrapper_that_is_killed_takes_the_whole_command_with_it(scene: Scene) -> None:
    running = scene.run(*WITNESS, "child", "begin", "wait")
    command = int(running.hear(BEGUN)[1])
    assert len(members(command)) == 2
    running.process.kill()
    until(lambda: not members(command), what="the end of the command's group")
    scene.taken()
    scene.none_left()


def test_killed_while_it_waits(scene: Scene) -> None:
    with scene.held():
        running = scene.run("echo", "ran")
        scene.waits()
        assert len(children(running.pid)) == 2
        running.process.kill()
        scene.none_left()
    scene.taken()
    assert running.rest() == ""


@pytest.mark.parametrize("instant", INSTANTS)
def test_killed_at_any_instant(scene: Scene, instant: str) -> None:
    argv = [sys.executable, str(HERE / "instants.py"), instant, "KILL", "run", "x", "--lease", "20", "--"]
    words = {"leaving": [], "closing": [], "ended": ["child"]}.get(instant, ["child", "wait"])
    assert scene.start(*argv, *WITNESS, *words).end() == 137
    scene.none_left()
    scene.taken()


def test_one_in_another_goes_with_it(scene: Scene) -> None:
    running = scene.run(*DIBS, "run", "b", "--lease", "20", "--", *WITNESS, "child", "begin", "wait", name="a")
    running.hear(BEGUN)
    running.process.kill()
    scene.none_left()
    scene.taken("a")
    scene.taken("b")


def test_without_its_guard_the_command_still_goes_with_the_wrapper(scene: Scene) -> None:
    running = scene.run(*WITNESS, "begin", "wait")
    command, guard = int(running.hear(BEGUN)[1]), running.guard()
    os.kill(guard, signal.SIGKILL)
    until(lambda: gone(guard), what="the guard's end")
    assert not gone(command)
    running.process.kill()
    until(lambda: gone(command), what="the command's end")
    scene.taken()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_guard_that_is_killed_or_stopped_changes_nothing_else(scene: Scene, number: int) -> None:
    running = scene.run(*WITNESS, "exit:TERM:7", "begin", "wait")
    running.hear(BEGUN)
    guard = running.guard()
    os.kill(guard, number)
    until(lambda: gone(guard) or is_stopped(guard)(), what="the guard killed or stopped")
    running.signal(signal.SIGTERM)
    running.hear("got TERM")
    assert running.end() == 7
    assert running.errors == ""
    scene.none_left()


def test_the_guard_stays_through_what_ends_a_session(scene: Scene) -> None:
    running = scene.run(*WITNESS, "child", "begin", "wait")
    command, guard = int(running.hear(BEGUN)[1]), running.guard()
    assert os.getsid(guard) == guard
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        os.kill(guard, number)
    running.process.kill()
    until(lambda: not members(command), what="the end of the command's group")


def test_a_child_that_somebody_stopped_keeps_nobody(scene: Scene) -> None:
    with scene.held():
        running = scene.run("echo", "ran")
        scene.waits()
        (child,) = set(children(running.pid)) - {running.guard()}
        os.kill(child, signal.SIGSTOP)
        until(is_stopped(child), what="the child stopped")
        running.signal(signal.SIGTERM)
        assert running.end() == 143
    scene.none_left()


def test_a_failure_of_our_own_does_not_leave_the_command_without_the_lock(scene: Scene) -> None:
    """No failure is known; should there be one, the command is over before the lock is."""
    failing = (
        "import sys; from dibs.cli import main, supervise;"
        "supervise.Supervision._check = lambda *_: 1 / 0; sys.exit(main.main(sys.argv[1:]))"
    )
    running = scene.start(sys.executable, "-c", failing, "run", "x", "--", *WITNESS, "child", "wait")
    assert running.end() == 1
    scene.none_left()
    scene.taken()
    assert "ZeroDivisionError" in running.errors


# A wrapper that stands still.


def test_a_wrapper_that_was_stopped_past_its_lease_lets_nobody_beside_the_next_holder(scene: Scene) -> None:
    beats = scene.directory / "beats"
    running = scene.run(*WITNESS, "child", "begin", f"beat:{beats}", lease=5)
    command = int(running.hear(BEGUN)[1])
    until(lambda: beats.exists() and beats.stat().st_size > 0, what="a beat")
    running.signal(signal.SIGSTOP)
    stopped = clock()
    with scene.held():
        entered = clock()
        assert members(command) == []
        running.signal(signal.SIGCONT)
        assert running.end() == 76
        assert scene.line() == (1, 0)
    assert stopped < float(beats.read_text().split()[-1]) < entered
    assert (
        "the lock was lost because dibs run was stopped for longer than the lease; the command was killed"
        in running.errors
    )
    scene.none_left()


# Process 1.


@pytest.fixture
def first(scene: Scene) -> list[str]:
    """What makes a command process 1 of a namespace."""
    argv = ["unshare", "--pid", "--fork", "--mount-proc"]
    if os.environ.get("DIBS_REQUIRE_SERVERS") != "1" and scene.start(*argv, "true").end() != 0:
        pytest.skip("this kernel or user may not make a process namespace")
    return [*argv, *DIBS, "run", "x", "--lease", "20", "--"]


def test_as_process_1_it_reaps_orphans(scene: Scene, first: list[str]) -> None:
    running = scene.start(*first, *WITNESS, "begin", "orphans", "end:7")
    assert running.hear(BEGUN)[3] == "1"
    running.hear("reaped")
    assert running.end() == 7
    assert running.errors == ""


def test_as_process_1_it_passes_signals_on(scene: Scene, first: list[str]) -> None:
    running = scene.start(*first, *WITNESS, "exit:TERM:7", "begin", "wait")
    running.hear(BEGUN)
    (wrapper,) = children(running.pid)
    os.kill(wrapper, signal.SIGTERM)
    running.hear("got TERM")
    assert running.end() == 7
    assert scene.line() == (0, 0)


def test_as_process_1_ctrl_c_ends_it(scene: Scene, first: list[str]) -> None:
    """Which SIGINT cannot do: the kernel keeps from process 1 what it does not handle."""
    with Terminal(scene, *first, *WITNESS, "begin", "wait") as terminal:
        terminal.see(BEGUN)
        terminal.type(CTRL_C)
        assert terminal.leader.end() == 130


# Those who stay behind.


def test_a_command_that_leaves_others_of_its_group_behind_is_told_so(scene: Scene) -> None:
    running = scene.run("sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!; exit 7")
    left = int(running.hear(r"(\d+)")[1])
    assert running.end() == 7
    assert re.search(r"left processes that continue without the lock: pid \d+ \(sleep\)", running.errors)
    assert not gone(left)
    assert scene.line() == (0, 0)
    assert scene.left() == [left]


def test_a_daemon_in_its_own_session_keeps_neither_the_lock_nor_us(scene: Scene) -> None:
    running = scene.run(*WITNESS, "daemon", "end:7")
    left = int(running.hear(r"daemon (\d+)")[1])
    assert running.end() == 7
    assert scene.line() == (0, 0)
    assert scene.left() == [left]


# Descriptors.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("7</dev/null", "0 1 2 7"),
        ("<&-", "1 2"),
        ("2>&-", "0 1"),
        ("<&- >&- 2>&- 3</dev/null", "3"),
    ],
)
def test_the_command_has_those_files_open_that_we_were_given(scene: Scene, given: str, expected: str) -> None:
    seen = scene.directory / "seen"
    line = f"exec {shlex.join(DIBS)} run x -- {shlex.join(WITNESS)} files:{seen} end:7 {given}"
    running = scene.start("sh", "-c", line)
    assert running.end() == 7
    assert seen.read_text() == expected
    assert running.errors == ""
    assert scene.line() == (0, 0)


def test_no_file_of_ours_takes_the_place_of_a_closed_one(scene: Scene) -> None:
    """Or what anybody writes to stderr would go into it."""
    seen = scene.directory / "seen"
    files = " ".join(f"/proc/$PPID/fd/{number}" for number in (0, 1, 2))
    line = f"exec {shlex.join(DIBS)} run x -- sh -c 'readlink {files} >{seen}' <&- >&- 2>&-"
    assert scene.start("sh", "-c", line).end() == 0
    assert seen.read_text().split() == ["/dev/null"] * 3


def test_the_guard_keeps_nothing_open_but_its_pipe(scene: Scene) -> None:
    running = scene.run(*WITNESS, "begin", "wait")
    running.hear(BEGUN)
    files = Path(f"/proc/{running.guard()}/fd")
    until(lambda: [one.name for one in files.iterdir()] == ["0"], what="a guard with one file")
    assert str((files / "0").readlink()).startswith("pipe:")


def test_what_reads_its_output_ends_with_it(scene: Scene) -> None:
    line = f"{shlex.join(DIBS)} run x --lease 20 -- "
    running = scene.start("sh", "-c", f"echo $({line} echo one); {line} echo two | cat", stderr=subprocess.STDOUT)
    assert running.rest() == "one\ntwo\n"
    assert running.end() == 0
