"""The processes of `dibs run`, killed, stopped and signalled at every instant: none outlives its lock."""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from cli.commands import Cli
from cli.instants import INSTANTS
from cli.terminals import CTRL_C, Terminal
from cli.wrapped import BEGUN, DIBS, HERE, WITNESS, Scene, children, is_stopped, members
from process.children import PATIENCE, clock, until

pytestmark = pytest.mark.gate


@pytest.mark.parametrize("instant", INSTANTS)
def test_killed_at_any_instant(scene: Scene, instant: str) -> None:
    argv = [sys.executable, str(HERE / "instants.py"), instant, "KILL", "run", "x", "--lease", "20", "--"]
    words = {"leaving": [], "closing": [], "ended": ["child"]}.get(instant, ["child", "wait"])
    assert scene.start(*argv, *WITNESS, *words).end() == 137
    scene.none_left()
    scene.taken()


def test_the_guard_stays_through_what_ends_a_session(scene: Scene) -> None:
    running = scene.run(*WITNESS, "child", "begin", "wait")
    command, guard = int(running.hear(BEGUN)[1]), running.guard()
    assert os.getsid(guard) == guard
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        os.kill(guard, number)
    running.process.kill()
    until(lambda: not members(command), what="the end of the command's group")


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


@pytest.fixture
def first(scene: Scene) -> list[str]:
    """A command prefix that starts `dibs run` as process 1 of a new PID namespace."""
    argv = ["unshare", "--pid", "--fork", "--mount-proc"]
    if os.environ.get("DIBS_REQUIRE_SERVERS") != "1" and scene.start(*argv, "true").end() != 0:
        pytest.skip("this kernel or user may not make a process namespace")
    return [*argv, *DIBS, "run", "x", "--lease", "20", "--"]


def test_as_process_1_it_reaps_orphans_and_passes_signals_on(scene: Scene, first: list[str]) -> None:
    running = scene.start(*first, *WITNESS, "exit:TERM:7", "begin", "orphans", "wait")
    assert running.hear(BEGUN)[3] == "1"
    running.hear("reaped")
    (wrapper,) = children(running.pid)
    os.kill(wrapper, signal.SIGTERM)
    running.hear("got TERM")
    assert (running.end(), running.errors) == (7, "")
    assert scene.counts() == (0, 0)


def test_as_process_1_ctrl_c_ends_it(scene: Scene, first: list[str]) -> None:
    """Which SIGINT cannot do: the kernel keeps from process 1 what it does not handle."""
    with Terminal([*first, *WITNESS, "begin", "wait"], scene.environment, scene.directory) as terminal:
        terminal.see(BEGUN)
        terminal.type(CTRL_C)
        assert terminal.end() == 130


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


# Signals: while it waits they end the wait, then they are the command's.

PASSED_ON = ["INT", "HUP", "QUIT", "USR1", "USR2"]
"""And TERM: see test_run.py."""


def number(name: str) -> int:
    return int(signal.Signals[f"SIG{name}"])


def started_with(setting: str) -> list[str]:
    """A parent that changes its signals and then executes the words that follow."""
    program = f"import os, sys; from signal import *; {setting}; os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-S", "-c", program]


@pytest.mark.parametrize("name", PASSED_ON)
def test_it_reaches_every_process_of_the_command_whose_own_status_comes_back(scene: Scene, name: str) -> None:
    running = scene.run(*WITNESS, f"exit:{name}:7", "child", "begin", "wait")
    running.hear(BEGUN)
    running.signal(number(name))
    assert running.rest().split("\n") == [f"got {name}", f"got {name}", ""]
    assert running.end() == 7
    assert "Traceback" not in running.errors  # it may say that the other one takes its time
    assert scene.counts() == (0, 0)


def test_a_command_that_goes_on_is_waited_for(scene: Scene) -> None:
    running = scene.run(*WITNESS, "on:TERM", "exit:USR1:3", "begin", "wait")
    running.hear(BEGUN)
    for _ in range(3):
        running.signal(signal.SIGTERM)
        running.hear("got TERM")
    assert scene.counts() == (1, 0)
    running.signal(signal.SIGUSR1)
    assert running.end() == 3


def test_a_stopped_command_hears_them_too(scene: Scene) -> None:
    running = scene.run(*WITNESS, "exit:TERM:7", "begin", "wait")
    command = int(running.hear(BEGUN)[1])
    running.signal(signal.SIGTSTP)
    until(is_stopped(command), what="the command stopped")
    assert not is_stopped(running.pid)(), "without a terminal the wrapper goes on renewing"
    running.signal(signal.SIGTERM)
    running.hear("got TERM")
    assert running.end() == 7


@pytest.mark.parametrize(("instant", "name"), [*product(INSTANTS, ["TERM"]), ("forked", "INT"), ("ordered", "INT")])
def test_at_every_instant_it_is_heard_or_too_late(scene: Scene, instant: str, name: str) -> None:
    argv = [sys.executable, str(HERE / "instants.py"), instant, name, "run", "x", "--lease", "20", "--"]
    ends = instant not in ("ended", "leaving", "closing")
    running = scene.start(*argv, *WITNESS, *(("begin", "wait") if ends else ("begin",)))
    assert running.end() == (128 + number(name) if ends else 0)
    assert running.errors == ""
    scene.none_left()
    assert scene.counts() == (0, 0)


@pytest.mark.parametrize("instant", ["granted", "ordering", "ordered"])
def test_a_wrapper_that_stands_still_at_that_instant_lets_nothing_happen_later(scene: Scene, instant: str) -> None:
    beats = scene.directory / "beats"
    argv = [sys.executable, str(HERE / "instants.py"), instant, "STOP", "run", "x", "--lease", "5", "--"]
    running = scene.start(*argv, *WITNESS, f"beat:{beats}")
    until(is_stopped(running.pid), what="the wrapper stopped")
    with scene.held():
        entered = clock()
        running.signal(signal.SIGCONT)
        assert running.end() == 76
    assert ("lost before the command started" if instant == "granted" else "lost") in running.errors
    assert beats.exists() == (instant == "ordered")
    if beats.exists():
        assert float(beats.read_text().split()[-1]) < entered
    scene.none_left()


def seen_signals(scene: Scene, *before: str) -> str:
    """As a program sees them that is executed by what stands before it. A shell between them would set its own."""
    running = scene.start(*before, "grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status")
    assert running.end() == 0
    return running.rest()


@pytest.mark.parametrize(
    "setting",
    [
        "None",
        "[signal(n, SIG_IGN) for n in (SIGHUP, SIGINT, SIGCHLD)]",
        "[signal(n, SIG_IGN) for n in (SIGTERM, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGCONT)]",
        "pthread_sigmask(SIG_BLOCK, [SIGTERM, SIGUSR2, SIGCHLD, SIGINT, SIGTSTP])",
    ],
)
def test_the_command_has_its_signals_as_if_it_stood_alone(scene: Scene, setting: str) -> None:
    default = "[signal(n, SIG_DFL) for n in (SIGPIPE, SIGXFSZ)]"  # what the Python that plays the parent set
    parent = started_with(f"{default}; {setting}")
    alone = seen_signals(scene, *parent)
    assert seen_signals(scene, *parent, *DIBS, "run", "x", "--") == alone
    assert alone.count("Sig") == 3


def test_under_nohup_nobody_minds_a_hang_up(scene: Scene) -> None:
    """Neither while it waits nor later."""
    with scene.held():
        running = scene.start("nohup", *DIBS, "run", "x", "--", *WITNESS, "on:USR1", "begin", "wait")
        scene.waits()
        running.signal(signal.SIGHUP)
    command = int(running.hear(BEGUN)[1])
    for pid in (running.pid, command):
        os.kill(pid, signal.SIGHUP)
        running.signal(signal.SIGUSR1)
        running.hear("got USR1")
    running.signal(signal.SIGTERM)
    assert running.end() == 143


def test_a_parent_that_blocks_the_news_of_children_does_not_keep_them_from_us(scene: Scene) -> None:
    """Or the end of the command would only be seen at the next look at the hold."""
    parent = started_with("pthread_sigmask(SIG_BLOCK, [SIGCHLD])")
    running = scene.start(*parent, *DIBS, "run", "x", "--", "sh", "-c", "grep SigBlk /proc/$PPID/status")
    blocked = int(running.hear(r"SigBlk:\s+([0-9a-f]+)")[1], 16)
    assert not blocked >> (signal.SIGCHLD - 1) & 1
    assert running.end() == 0


def test_a_crowd_in_which_some_are_killed(cli: Cli) -> None:
    """The kernel's lock on a file ends with the command that has it. A command that finds it taken ends with 9."""
    chance = random.Random(5)
    command = ("flock", "--nonblock", "--no-fork", "-E", "9", str(cli.directory / "busy"), "sleep", "0.3")
    crowd = {one.process.pid: one for one in (cli.start("run", "x", "--", *command) for _ in range(9))}
    client = cli.client()
    killed: set[int] = set()
    seen: set[int] = set()
    end = clock() + 2 * PATIENCE
    while alive := [pid for pid, one in crowd.items() if one.process.poll() is None]:
        assert clock() < end, f"stuck: {client.inspect('x')}"
        time.sleep(0.01)
        holders = client.inspect("x").holders
        if holders and holders[0].token not in seen:
            seen.add(holders[0].token)
            if len(killed) < 4 and len(seen) % 2:
                killed.add(pid := chance.choice([holders[0].pid, *alive]))
                crowd[pid].process.kill()
    statuses = {pid: one.end() for pid, one in crowd.items() if pid not in killed}
    assert len(killed) > 1
    assert set(statuses.values()) == {0}, statuses
    until(lambda: not client.inspect("x").holders and not client.inspect("x").waiters, what="an empty queue")
