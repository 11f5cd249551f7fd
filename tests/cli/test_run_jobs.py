"""Job control around `dibs run`: Ctrl-Z, fg and bg stop and continue the command and us together, or do no harm."""

from __future__ import annotations

import signal

from cli.terminals import CTRL_C, CTRL_D, CTRL_Z, Shell, Terminal, begun, witness
from cli.wrapped import DIBS, WITNESS, Scene, gone, is_stopped
from process.children import until


def test_ctrl_z_stops_the_job_and_fg_goes_on(shell: Shell, scene: Scene) -> None:
    shell.enter(witness("begin", "read", "read"))
    pid, wrapper = begun(shell)
    shell.type(CTRL_Z)
    shell.see("Stopped")
    assert shell.prompt() == 128 + signal.SIGTSTP
    assert is_stopped(pid)()
    assert is_stopped(wrapper)()
    assert shell.foreground == shell.leader.pid
    shell.enter("jobs")
    shell.see("Stopped .*dibs run x")
    shell.enter("echo it wo''rks")
    shell.see("it works\r\n")
    shell.enter("fg")
    until(lambda: shell.foreground == pid, what="the command in front")
    shell.type("once more\n")
    shell.see("heard once more\r\n")
    assert scene.line() == (1, 0)
    shell.type("and again\n")
    shell.see("heard and again\r\n")
    assert shell.prompt() == 0


def test_bg_goes_on_behind(shell: Shell, scene: Scene) -> None:
    shell.enter(witness("exit:TERM:5", "begin", "wait"))
    pid, wrapper = begun(shell)
    shell.type(CTRL_Z)
    shell.see("Stopped")
    shell.prompt()
    shell.enter("bg")
    shell.prompt()
    until(lambda: not is_stopped(pid)() and not is_stopped(wrapper)(), what="both going on")
    assert shell.foreground == shell.leader.pid
    shell.enter("jobs")
    shell.see("Running .*dibs run x")
    shell.enter("kill %1")
    shell.see("got TERM\r\n")
    shell.see("Exit 5")
    assert scene.line() == (0, 0)


def test_a_stopped_job_can_be_killed(shell: Shell, scene: Scene) -> None:
    shell.enter(witness("begin", "wait"))
    pid, _ = begun(shell)
    shell.type(CTRL_Z)
    shell.see("Stopped")
    shell.prompt()
    shell.enter("kill %1")
    shell.see("Exit 143|Terminated")
    assert gone(pid)
    assert scene.line() == (0, 0)


def test_ctrl_z_reaches_a_command_whose_output_goes_to_a_file(shell: Shell, scene: Scene) -> None:
    shell.enter(f"dibs run x -- sh -c 'echo begun $$ $$ $PPID >/dev/tty; exec cat' > {scene.directory}/out.txt")
    pid, _ = begun(shell)
    shell.type(CTRL_Z)
    shell.see("Stopped")
    shell.prompt()
    until(is_stopped(pid), what="the command stopped")
    shell.enter("fg")
    shell.type("typed\n" + CTRL_D)
    assert shell.prompt() == 0
    assert (scene.directory / "out.txt").read_text() == "typed\n"


def test_fg_of_a_job_that_runs_behind_and_then_ctrl_z(shell: Shell) -> None:
    shell.enter(witness("begin", "wait") + " &")
    pid, _ = begun(shell)
    shell.enter("fg")
    until(lambda: shell.foreground != shell.leader.pid, what="the job in front")
    shell.type(CTRL_Z)
    shell.see("Stopped")
    shell.prompt()
    until(is_stopped(pid), what="the command stopped")
    shell.enter("fg")
    until(lambda: not is_stopped(pid)(), what="the command going on")
    shell.type(CTRL_C)
    assert shell.prompt() == 130


def test_stopped_longer_than_its_lease_the_command_is_over(shell: Shell, scene: Scene) -> None:
    shell.enter(witness("on:CONT", "on:TERM", "begin", "wait", lease=5))
    pid, _ = begun(shell)
    shell.type(CTRL_Z)
    shell.see("Stopped")
    shell.prompt()
    with scene.held():
        assert gone(pid)
        shell.enter("fg")
        text = shell.see(r"(?s)dibs run x(.*)<(\d+)> ")
        assert text[2] == "76"
        assert "got" not in text[1]
        assert "lost" in text[1]
        assert scene.line() == (1, 0)


def test_a_job_that_reads_from_behind_is_stopped_and_reads_after_fg(shell: Shell) -> None:
    shell.enter(witness("begin", "read") + " &")
    pid, _ = begun(shell)
    shell.see("Stopped")
    until(is_stopped(pid), what="the command stopped")
    shell.enter("fg")
    shell.see("dibs run x")
    shell.type("now\n")
    shell.see("heard now\r\n")
    assert shell.prompt() == 0


def test_where_no_shell_could_continue_it_ctrl_z_does_no_harm(scene: Scene) -> None:
    with Terminal(scene, *DIBS, "run", "x", "--", *WITNESS, "on:CONT", "begin", "read") as terminal:
        begun(terminal)
        terminal.type(CTRL_Z)
        terminal.type("still here\n")
        terminal.see("got CONT\r\n")
        terminal.see("heard still here\r\n")
        assert terminal.leader.end() == 0


# While it waits for the lock.


def test_ctrl_c_leaves_the_line_and_ends_the_loop_of_a_shell(shell: Shell, scene: Scene) -> None:
    with scene.held():
        shell.enter("while :; do dibs run x -- echo ra''n; done")
        scene.waits()
        shell.type(CTRL_C)
        assert shell.see(r"(?s)^(.*)<130> ")[1].count("ran") == 0
        scene.waits(0)
    assert scene.line() == (0, 0)


def test_ctrl_z_while_waiting_and_fg_waits_again(shell: Shell, scene: Scene) -> None:
    with scene.held():
        shell.enter("dibs run x -- echo r''an")
        scene.waits()
        shell.type(CTRL_Z)
        shell.see("Stopped")
        shell.prompt()
        shell.enter("fg")
        shell.see("dibs run x")
        scene.waits()
    shell.see("ran\r\n")
    assert shell.prompt() == 0


# One in another.


def test_one_in_another_ctrl_z_fg_and_ctrl_c(shell: Shell, scene: Scene) -> None:
    shell.enter("dibs run a -- " + witness("on:CONT", "begin", "read", "wait", name="b"))
    pid, _ = begun(shell)
    shell.type(CTRL_Z)
    shell.see("Stopped")
    assert shell.prompt() == 128 + signal.SIGTSTP
    assert is_stopped(pid)()
    shell.enter("fg")
    until(lambda: shell.foreground == pid, what="the command in front")
    shell.type("more\n")
    shell.see("got CONT\r\n")
    shell.see("heard more\r\n")
    shell.type(CTRL_C)
    assert shell.prompt() == 130
    assert scene.line("a") == scene.line("b") == (0, 0)
    assert scene.left() == [shell.leader.pid]
