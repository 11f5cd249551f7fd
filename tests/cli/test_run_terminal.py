"""`dibs run` at a real terminal: pagers, editors, keys and job control work as they do without it.

Where a command waits for the file `go`, each step is seen before the next one is taken.
"""

from __future__ import annotations

import os
import shlex
import signal

import pytest

from cli.terminals import CTRL_C, CTRL_Z, ESCAPE, Shell, Terminal, begun, installed, witness
from cli.wrapped import DIBS, WITNESS, Scene, children, is_stopped
from process.children import STEADY, clock, until

pytestmark = pytest.mark.gate


def test_an_editor_under_it_has_the_screen_and_the_keyboard(shell: Shell, scene: Scene) -> None:
    shell.enter(f"dibs run x -- {installed('vim.tiny', 'vi')} note.txt")
    shell.see("note.txt")
    shell.type("iwritten" + ESCAPE + ":wq\r")
    assert shell.prompt() == 0
    assert (scene.directory / "note.txt").read_text() == "written\n"
    shell.works()


def test_a_pager_under_it_reads_a_pipe_and_the_keyboard(shell: Shell) -> None:
    shell.enter(f"dibs run a -- seq 100000 | dibs run b -- {installed('less')}")
    shell.see("5\r\n6\r\n")
    shell.type(" ")
    shell.see("30\r\n31\r\n")
    shell.type("q")
    assert shell.prompt() == 0


@pytest.mark.parametrize(("key", "word", "status"), [(CTRL_C, "exit:INT:7", 7), ("\x1c", "exit:QUIT:8", 8)])
def test_a_command_that_handles_ctrl_c_or_quit_says_how_it_ends(shell: Shell, key: str, word: str, status: int) -> None:
    shell.enter(witness(word, "begin", "wait"))
    begun(shell)
    shell.type(key)
    assert shell.prompt() == status


def test_a_terminal_that_hangs_up(shell: Shell, scene: Scene) -> None:
    said = scene.directory / "said.txt"
    shell.enter(f"dibs run x -- sh -c 'trap \"echo HUP >{said}; exit\" HUP; echo begun; while :; do sleep 0.01; done'")
    shell.see("begun\r\n")
    shell.hang_up()
    until(lambda: said.exists() and said.read_text() == "HUP\n", what="HUP")
    scene.none_left()
    assert scene.counts() == (0, 0)


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


# Job control: Ctrl-Z, fg and bg stop and continue the command and the wrapper together, or do no harm.


def test_bg_goes_on_behind(shell: Shell, scene: Scene) -> None:
    shell.enter(witness("exit:TERM:5", "begin", "wait"))
    pid, wrapper = begun(shell)
    shell.suspend()
    shell.enter("bg")
    shell.prompt()
    until(lambda: not is_stopped(pid)() and not is_stopped(wrapper)(), what="both going on")
    assert shell.foreground == shell.process.pid
    shell.enter("jobs")
    shell.see("Running .*dibs run x")
    shell.enter("kill %1")
    shell.see("got TERM\r\n")
    shell.see("Exit 5")
    assert scene.counts() == (0, 0)


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
    argv = [*DIBS, "run", "x", "--", *WITNESS, "on:CONT", "begin", "read"]
    with Terminal(argv, scene.environment, scene.directory) as terminal:
        begun(terminal)
        terminal.type(CTRL_Z)
        terminal.type("still here\n")
        terminal.see("got CONT\r\n")
        terminal.see("heard still here\r\n")
        assert terminal.end() == 0


def test_ctrl_c_leaves_the_queue_and_ends_the_loop_of_a_shell(shell: Shell, scene: Scene) -> None:
    with scene.held():
        shell.enter("while :; do dibs run x -- echo ra''n; done")
        scene.waits()
        shell.type(CTRL_C)
        assert shell.see(r"(?s)^(.*)<130> ")[1].count("ran") == 0
        scene.waits(0)
    assert scene.counts() == (0, 0)


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


# Something other than the keyboard stops and continues parts of a job.


AT_GO = "while [ ! -e go ]; do sleep 0.01; done"
HERE_I_AM = "echo begun $$ $$ $PPID >/dev/tty"


def locked(*lines: str, lease: float = STEADY) -> str:
    """A command line to type: these lines of a shell under the lock."""
    return f"dibs run x --lease {lease} -- sh -c {shlex.quote('; '.join(lines))}"


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(is_stopped(pid), what=f"{pid} stopped")


def renewed(scene: Scene) -> None:
    """Wait until its lease was extended."""

    def end() -> float:
        (holder,) = scene.client.inspect("x").holders
        return clock() + holder.remaining

    before = end()
    until(lambda: end() > before + 0.1, what="the lock renewed")


def test_a_wrapper_stopped_from_outside_lends_the_terminal_only_after_fg(shell: Shell, scene: Scene) -> None:
    shell.enter(locked(HERE_I_AM, AT_GO, "read line", "echo heard $line"))
    _, wrapper = begun(shell)
    stop(wrapper)
    assert shell.stopped() == 128 + signal.SIGSTOP
    assert shell.status("bg") == 0
    until(lambda: not is_stopped(wrapper)(), what="the wrapper continued")
    shell.works()
    shell.enter("fg")
    until(lambda: shell.foreground != shell.process.pid, what="the job in front")
    scene.go()
    shell.type("some words\n")
    shell.see("heard some words\r\n")
    assert shell.prompt() == 0
    shell.works()


def test_a_command_stopped_from_outside_keeps_its_lock_until_it_is_continued(shell: Shell, scene: Scene) -> None:
    script = scene.directory / "script.sh"
    script.write_text(f"{locked(HERE_I_AM, AT_GO, 'echo ended', lease=10)}\necho status $?\n")
    shell.enter(f"bash {script}")
    pid, wrapper = begun(shell)
    stop(pid)
    renewed(scene)
    assert is_stopped(pid)()
    assert not is_stopped(wrapper)()
    os.kill(pid, signal.SIGCONT)
    scene.go()
    assert "Stopped" not in shell.see(r"(?s)^(.*)ended\r\nstatus 0\r\n")[1]
    assert shell.prompt() == 0
    assert scene.counts() == (0, 0)


def test_a_command_stopped_before_it_began_runs_once_the_lock_is_free(scene: Scene) -> None:
    with scene.held():
        running = scene.run(*WITNESS, "exit:TERM:5", "begin", "wait")
        scene.waits()
        (child,) = set(children(running.pid)) - {running.guard()}
        stop(child)
    running.hear(rf"begun {child} .*")
    running.signal(signal.SIGTERM)
    running.hear("got TERM")
    assert running.end() == 5
    assert scene.counts() == (0, 0)


def test_a_command_behind_that_interrupts_itself_ends_alone(shell: Shell, scene: Scene) -> None:
    script, out = scene.directory / "script.sh", scene.directory / "out.txt"
    script.write_text(f"{locked('kill -INT $$')}\necho status $?\n")
    shell.enter(f"bash {script} </dev/null >{out} 2>&1 &")
    assert shell.see(r"\[1\]\+ +(\w+)")[1] == "Done"
    assert out.read_text() == "status 130\n"
    assert scene.counts() == (0, 0)


def test_a_command_that_reads_where_nobody_could_bring_it_to_the_front_ends(shell: Shell, scene: Scene) -> None:
    """Its group is orphaned: alone it would get an error from its read (EIO). One that ignores SIGHUP is killed."""
    shell.enter("( (dibs run x -- sh -c 'trap \"\" HUP; read line </dev/tty'; echo ended $?) & )")
    shell.see(r"ended 137")
    scene.taken()
    shell.enter(f"( ({AT_GO}; {locked('read line </dev/tty')}; echo ended $?) & )")
    shell.prompt()  # the subshell that started it has ended
    scene.go()
    assert shell.see(r"ended (\d+)\r\n")[1] == str(128 + signal.SIGHUP)
    assert scene.counts() == (0, 0)
    shell.works()


def test_a_shell_under_it_can_suspend_itself(shell: Shell) -> None:
    """By SIGSTOP, with the keyboard in its hands: only we can give it back."""
    shell.enter("dibs run x -- bash --norc --noprofile --noediting -i")
    shell.prompt()
    shell.enter("suspend")
    shell.stopped()
    shell.enter("fg")
    shell.enter("exit 5")
    shell.see("<5> ")


@pytest.mark.parametrize(
    "line",
    ["{} | {{ cat; echo pipe clo''sed; }}", "{{ yes 2>/dev/null; echo pipe clo''sed >&2; }} | {}"],
    ids=["stdout", "stdin"],
)
def test_a_pipe_is_closed_when_the_command_closes_it(shell: Shell, scene: Scene, line: str) -> None:
    shell.enter(line.format(locked("exec <&- >&- 2>&-", AT_GO)))
    shell.see("pipe closed\r\n")
    assert scene.counts() == (1, 0)
    scene.go()
    assert shell.prompt() == 0
    assert scene.counts() == (0, 0)
