"""Signals to `dibs run`: while it waits they end the waiting, from then on they are the command's, at every instant."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from itertools import product

import pytest

from cli.instants import INSTANTS
from cli.wrapped import DIBS, HERE, WITNESS, Running, Scene, is_stopped
from process.children import PATIENCE, clock, until

PASSED_ON = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]
BEGUN = r"begun (\d+) (\d+) (\d+)"


def number(name: str) -> int:
    return int(signal.Signals[f"SIG{name}"])


def started_with(setting: str) -> list[str]:
    """A parent that does something to its signals, and then becomes what follows."""
    program = f"import os, sys; from signal import *; {setting}; os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-S", "-c", program]


# To the command.


@pytest.mark.parametrize("name", PASSED_ON)
def test_it_reaches_every_process_of_the_command_whose_own_status_comes_back(scene: Scene, name: str) -> None:
    running = scene.run(*WITNESS, f"exit:{name}:7", "child", "begin", "wait")
    running.hear(BEGUN)
    running.signal(number(name))
    assert running.rest().split("\n") == [f"got {name}", f"got {name}", ""]
    assert running.end() == 7
    assert "Traceback" not in running.errors  # it may say that the other one takes its time
    assert scene.line() == (0, 0)


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_command_that_it_ends_gives_its_number(scene: Scene, name: str) -> None:
    running = scene.run(*WITNESS, "child", "begin", "wait")
    running.hear(BEGUN)
    running.signal(number(name))
    assert running.end() == 128 + number(name)
    assert "Traceback" not in running.errors  # it may say that the other one takes its time
    scene.none_left()
    assert scene.line() == (0, 0)


def test_a_command_that_goes_on_is_waited_for(scene: Scene) -> None:
    running = scene.run(*WITNESS, "on:TERM", "exit:USR1:3", "begin", "wait")
    running.hear(BEGUN)
    for _ in range(3):
        running.signal(signal.SIGTERM)
        running.hear("got TERM")
    assert scene.line() == (1, 0)
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


STOPPED_UNNOTICED = """
import os, signal, time
from pathlib import Path
from dibs.cli.child import Child

child = Child(["sleep", "1000"])
child.execute({})
os.kill(child.group, signal.SIGSTOP)
while Path(f"/proc/{child.group}/stat").read_text().split()[2] != "T":
    time.sleep(0.01)
child.send(signal.SIGTERM)
print(os.WTERMSIG(os.waitpid(child.group, 0)[1]))
"""


def test_a_command_that_stopped_unnoticed_hears_that_it_is_to_end() -> None:
    said = subprocess.check_output([sys.executable, "-c", STOPPED_UNNOTICED], timeout=PATIENCE)
    assert int(said) == signal.SIGTERM


# While it waits.


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
def test_whoever_waits_leaves_the_line(scene: Scene, name: str) -> None:
    with scene.held():
        running = scene.run("echo", "ran")
        scene.waits()
        running.signal(number(name))
        assert running.end() == 128 + number(name)
        assert scene.line() == (1, 0)
        assert (running.rest(), running.errors) == ("", "")
        scene.none_left()


# At any instant.


@pytest.mark.parametrize(("instant", "name"), [*product(INSTANTS, ["TERM"]), ("forked", "INT"), ("ordered", "INT")])
def test_at_every_instant_it_is_heard_or_too_late(scene: Scene, instant: str, name: str) -> None:
    argv = [sys.executable, str(HERE / "instants.py"), instant, name, "run", "x", "--lease", "20", "--"]
    ends = instant not in ("ended", "leaving", "closing")
    running = scene.start(*argv, *WITNESS, *(("begin", "wait") if ends else ("begin",)))
    assert running.end() == (128 + number(name) if ends else 0)
    assert running.errors == ""
    scene.none_left()
    assert scene.line() == (0, 0)


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


@pytest.mark.parametrize("busy", [False, True])
def test_a_storm_of_them_leaves_nothing_and_says_nothing(scene: Scene, busy: bool) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    for settled in (True, False) * 2:
        with scene.held("x" if busy else "another"):
            running = scene.run(*WITNESS, "begin", "wait")
            if not settled:
                time.sleep(chance.uniform(0.0, 0.25))  # the storm begins somewhere in its start
            elif busy:
                scene.waits()
            else:
                running.hear(BEGUN)
            batter(running, chance)
            status = running.end()
        assert status in (128 + signal.SIGTERM, 128 + signal.SIGUSR1), seed
        assert running.errors == "", seed
        scene.none_left()
        assert scene.line() == (0, 0), seed


def batter(running: Running, chance: random.Random) -> None:
    for _ in range(200):
        if running.process.poll() is not None:
            return
        running.signal(chance.choice([signal.SIGTERM, signal.SIGUSR1]))
        time.sleep(chance.choice([0.0, chance.expovariate(2000)]))


# What was ignored, blocked or is Python's own.


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


def test_a_parent_that_ignores_its_children_hears_the_status(scene: Scene) -> None:
    """As some daemons do: the wrapper inherits that, and would not be told how its own child ended."""
    running = scene.start(*started_with("signal(SIGCHLD, SIG_IGN)"), *DIBS, "run", "x", "--", *WITNESS, "begin")
    running.hear(BEGUN)
    assert running.end() == 0
    assert scene.line() == (0, 0)


def test_a_parent_that_blocks_the_news_of_children_does_not_keep_them_from_us(scene: Scene) -> None:
    """Or the end of the command would only be seen at the next look at the hold."""
    parent = started_with("pthread_sigmask(SIG_BLOCK, [SIGCHLD])")
    running = scene.start(*parent, *DIBS, "run", "x", "--", "sh", "-c", "grep SigBlk /proc/$PPID/status")
    blocked = int(running.hear(r"SigBlk:\s+([0-9a-f]+)")[1], 16)
    assert not blocked >> (signal.SIGCHLD - 1) & 1
    assert running.end() == 0


def test_a_reader_that_leaves_early_ends_the_command(scene: Scene) -> None:
    line = f"{shlex.join(DIBS)} run x -- yes | head -n 1; echo ${{PIPESTATUS[0]}}"
    running = scene.start("bash", "-c", line, stderr=subprocess.STDOUT)
    assert running.end(PATIENCE) == 0
    assert running.rest() == f"y\n{128 + signal.SIGPIPE}\n"
    assert scene.line() == (0, 0)
