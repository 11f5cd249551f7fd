"""`dibs run` at a real terminal: the command has it, its keys, and the shell's loops, as without."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator

import pytest

from cli.terminals import CTRL_BACKSLASH, CTRL_C, Shell, Tmux, begun, installed, witness
from cli.wrapped import WITNESS, Scene, gone
from process.children import until

# What the command has.


def test_the_command_is_the_foreground_of_the_terminal(shell: Shell) -> None:
    seen = "import os; print(*map(os.isatty, (0, 1, 2)), os.tcgetpgrp(0) == os.getpgrp() == os.getpid())"
    shell.enter(f"dibs run x -- {shlex.quote(WITNESS[0])} -c {shlex.quote(seen)}")
    shell.see("True True True True\r\n")
    assert shell.prompt() == 0
    assert shell.foreground == shell.leader.pid


def test_it_is_told_when_the_window_changes(shell: Shell) -> None:
    shell.enter(witness("on:WINCH", "begin", "wait"))
    begun(shell)
    shell.resize(50, 120)
    shell.see("got WINCH\r\n")


def test_a_pager_behind_it_has_the_keyboard(shell: Shell) -> None:
    shell.enter(f"dibs run x -- seq 100000 | {installed('less')}")
    shell.see("5\r\n6\r\n")
    shell.type(" ")
    shell.see("30\r\n31\r\n")
    shell.type("q")
    assert shell.prompt() == 0
    shell.enter("echo ended ${PIPESTATUS[0]}")
    shell.see(f"ended {128 + signal.SIGPIPE}\r\n")


def test_a_pager_under_it_reads_a_pipe_and_the_keyboard(shell: Shell) -> None:
    shell.enter(f"dibs run a -- seq 100000 | dibs run b -- {installed('less')}")
    shell.see("5\r\n6\r\n")
    shell.type(" ")
    shell.see("30\r\n31\r\n")
    shell.type("q")
    assert shell.prompt() == 0


# Ctrl-C, Ctrl-\.


def test_a_command_that_minds_ctrl_c_says_how_it_ends(shell: Shell) -> None:
    shell.enter(witness("exit:INT:7", "begin", "wait"))
    begun(shell)
    shell.type(CTRL_C)
    shell.see("got INT\r\n")
    assert shell.prompt() == 7


@pytest.mark.parametrize(
    "inner",
    ["{}", "sh -c {quoted}", "bash -c {quoted}", "while :; do dibs run x -- cat /proc/self/stat - >{file}; done"],
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
    assert scene.line() == (0, 0)
    assert shell.foreground == shell.leader.pid


def test_ctrl_backslash(shell: Shell) -> None:
    shell.enter("ulimit -c 0; " + witness("begin", "wait"))
    begun(shell)
    shell.type(CTRL_BACKSLASH)
    assert shell.prompt() == 128 + signal.SIGQUIT


# Ends.


def test_a_terminal_that_hangs_up(shell: Shell, scene: Scene) -> None:
    said = scene.directory / "said.txt"
    shell.enter(f"dibs run x -- sh -c 'trap \"echo HUP >{said}; exit\" HUP; echo begun; while :; do sleep 0.01; done'")
    shell.see("begun\r\n")
    shell.hang_up()
    until(lambda: said.exists() and said.read_text() == "HUP\n", what="HUP")
    scene.none_left()
    assert scene.line() == (0, 0)


@pytest.mark.parametrize("victim", ["command", "wrapper"])
def test_after_a_kill_the_shell_has_its_terminal_again(shell: Shell, scene: Scene, victim: str) -> None:
    shell.enter(witness("begin", "wait"))
    command, wrapper = begun(shell)
    os.kill(command if victim == "command" else wrapper, signal.SIGKILL)
    assert shell.prompt() == 137
    assert shell.foreground == shell.leader.pid
    until(lambda: gone(command), what="the command's end")
    scene.taken()
    shell.enter("echo it wo''rks")
    shell.see("it works\r\n")


def test_a_command_that_is_killed_leaves_a_terminal_to_work_with(shell: Shell) -> None:
    """A shell that sees its job end by a status, not by a signal, does not tidy up behind it."""
    shell.enter("stty -a | cksum")
    before = shell.see(r"(\d+ \d+)\r\n")[1]
    shell.prompt()
    shell.enter("dibs run x -- sh -c 'stty raw; echo begun $$; exec sleep 100'")
    os.kill(int(shell.see(r"begun (\d+)")[1]), signal.SIGKILL)
    assert shell.prompt() == 137
    shell.enter("stty -a | cksum")
    assert shell.see(r"(\d+ \d+)\r\n")[1] == before


# The same in a terminal that people use.


@pytest.fixture
def tmux(scene: Scene) -> Iterator[Tmux]:
    with Tmux(scene, installed("tmux")) as made:
        yield made


def test_an_editor_in_tmux_with_ctrl_z_and_fg(tmux: Tmux, scene: Scene) -> None:
    tmux.type(f"dibs run x -- {installed('vim', 'vim.tiny')} -u NONE -N -n notes.txt", "Enter")
    tmux.see(r"\[New")
    tmux.type("ibegun", "Escape", "C-z")
    tmux.see("Stopped")
    tmux.type("clear; echo in be''tween", "Enter")
    tmux.see("in between")
    tmux.type("fg", "Enter")
    tmux.see("(?s)begun.*~")
    tmux.type("a and ended", "Escape", ":wq", "Enter")
    tmux.see("<0>")
    until(lambda: scene.line() == (0, 0), what="the lock given back")
    assert (scene.directory / "notes.txt").read_text() == "begun and ended\n"
