"""`dibs run` as a process: one test for each promise. All signals, instants and shells are in the gate."""

from __future__ import annotations

import os
import re
import shlex
import signal

import pytest

from cli.terminals import CTRL_C, Shell, begun, witness
from cli.wrapped import BEGUN, DIBS, WITNESS, Scene, children, gone, is_stopped, members
from process.children import until


def test_a_signal_reaches_every_process_of_the_command_whose_own_status_comes_back(scene: Scene) -> None:
    running = scene.run(*WITNESS, "exit:TERM:7", "child", "begin", "wait")
    running.hear(BEGUN)
    running.signal(signal.SIGTERM)
    assert running.rest() == "got TERM\ngot TERM\n"
    assert running.end() == 7
    assert scene.counts() == (0, 0)


def test_a_command_that_a_signal_ends_gives_its_number(scene: Scene) -> None:
    running = scene.run(*WITNESS, "child", "begin", "wait")
    running.hear(BEGUN)
    running.signal(signal.SIGINT)
    assert running.end() == 130
    assert "Traceback" not in running.errors  # it may say that the other process takes its time
    scene.none_left()
    assert scene.counts() == (0, 0)


def test_a_waiter_leaves_the_queue_at_a_signal_and_at_its_death(scene: Scene) -> None:
    with scene.held():
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL):
            running = scene.run("echo", "ran")
            scene.waits()
            assert len(children(running.pid)) == 2
            running.signal(number)
            assert running.end() == 128 + number
            assert running.rest() == ""
            assert "Traceback" not in running.errors
            scene.waits(0)
            scene.none_left()
    scene.taken()


def test_a_wrapper_that_is_killed_takes_the_whole_command_with_it(scene: Scene) -> None:
    running = scene.run(*WITNESS, "child", "begin", "wait")
    command = int(running.hear(BEGUN)[1])
    assert len(members(command)) == 2
    running.process.kill()
    until(lambda: not members(command), what="the end of the command's group")
    scene.taken()
    scene.none_left()


def test_without_its_guard_the_command_still_ends_with_the_wrapper(scene: Scene) -> None:
    running = scene.run(*WITNESS, "begin", "wait")
    command, guard = int(running.hear(BEGUN)[1]), running.guard()
    os.kill(guard, signal.SIGKILL)
    until(lambda: gone(guard), what="the guard's end")
    assert not gone(command)
    running.process.kill()
    until(lambda: gone(command), what="the command's end")
    scene.taken()


def test_processes_that_a_command_leaves_behind_are_reported(scene: Scene) -> None:
    running = scene.run("sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!; exit 7")
    left = int(running.hear(r"(\d+)")[1])
    assert running.end() == 7
    assert re.search(r"left processes that continue without the lock: pid \d+ \(sleep\)", running.errors)
    assert not gone(left)
    assert scene.counts() == (0, 0)
    assert scene.left() == [left]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("<&- >&- 2>&- 3</dev/null", "3"),
        pytest.param("7</dev/null", "0 1 2 7", marks=pytest.mark.gate),
        pytest.param("<&-", "1 2", marks=pytest.mark.gate),
        pytest.param("2>&-", "0 1", marks=pytest.mark.gate),
    ],
)
def test_the_command_has_the_open_files_of_its_caller(scene: Scene, given: str, expected: str) -> None:
    seen = scene.directory / "seen"
    line = f"exec {shlex.join(DIBS)} run x -- {shlex.join(WITNESS)} files:{seen} end:7 {given}"
    running = scene.start("sh", "-c", line)
    assert running.end() == 7
    assert seen.read_text() == expected
    assert running.errors == ""
    assert scene.counts() == (0, 0)


def test_a_reader_that_leaves_early_ends_the_command(scene: Scene) -> None:
    line = f"{shlex.join(DIBS)} run x -- yes | head -n 1; echo ${{PIPESTATUS[0]}}"
    running = scene.start("bash", "-c", line)
    assert running.end() == 0
    assert running.rest() == f"y\n{128 + signal.SIGPIPE}\n"
    assert scene.counts() == (0, 0)


def test_the_command_is_the_foreground_of_the_terminal(shell: Shell) -> None:
    seen = "import os; print(*map(os.isatty, (0, 1, 2)), os.tcgetpgrp(0) == os.getpgrp() == os.getpid())"
    shell.enter(f"dibs run x -- {shlex.quote(WITNESS[0])} -c {shlex.quote(seen)}")
    shell.see("True True True True\r\n")
    assert shell.prompt() == 0
    assert shell.foreground == shell.process.pid


def test_ctrl_z_stops_the_job_and_fg_continues_it(shell: Shell, scene: Scene) -> None:
    shell.enter(witness("begin", "read", "read"))
    pid, wrapper = begun(shell)
    assert shell.suspend() == 128 + signal.SIGTSTP
    assert is_stopped(pid)()
    assert is_stopped(wrapper)()
    shell.enter("jobs")
    shell.see("Stopped .*dibs run x")
    shell.works()
    shell.enter("fg")
    until(lambda: shell.foreground == pid, what="the command in the foreground")
    shell.type("once more\n")
    shell.see("heard once more\r\n")
    assert scene.counts() == (1, 0)
    shell.type("and again\n")
    shell.see("heard and again\r\n")
    assert shell.prompt() == 0


@pytest.mark.parametrize(
    "inner",
    [
        "{}",
        pytest.param("sh -c {quoted}", marks=pytest.mark.gate),
        pytest.param("bash -c {quoted}", marks=pytest.mark.gate),
        pytest.param("while :; do dibs run x -- cat /proc/self/stat - >{file}; done", marks=pytest.mark.gate),
    ],
)
def test_ctrl_c_ends_the_loop_of_a_shell(shell: Shell, scene: Scene, inner: str) -> None:
    loop = f"while :; do {witness('begin', 'wait')}; done"
    file = scene.directory / "out"
    shell.enter(inner.format(loop, quoted=shlex.quote(loop), file=file))
    if "{file}" in inner:
        until(lambda: file.exists() and file.read_text(), what="the command begun")
    else:
        begun(shell)
    shell.type(CTRL_C)
    assert shell.prompt() == 130
    assert scene.counts() == (0, 0)
    assert shell.foreground == shell.process.pid


@pytest.mark.parametrize("victim", ["wrapper", pytest.param("command", marks=pytest.mark.gate)])
def test_after_a_kill_the_shell_has_its_terminal_again(shell: Shell, scene: Scene, victim: str) -> None:
    shell.enter(witness("begin", "wait"))
    command, wrapper = begun(shell)
    os.kill(command if victim == "command" else wrapper, signal.SIGKILL)
    assert shell.prompt() == 137
    assert shell.foreground == shell.process.pid
    until(lambda: gone(command), what="the command's end")
    scene.taken()
    shell.works()
