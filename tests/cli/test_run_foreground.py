"""Who has the terminal, and who is stopped, when others than the keyboard stop and continue parts of a job.

Commands here wait at a gate, so that each step is seen before the next one is taken.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cli.terminals import CTRL_Z, Shell, begun
from cli.wrapped import WITNESS, Scene, children, is_stopped
from process.children import clock, until

HERE_I_AM = "echo begun $$ $$ $PPID >/dev/tty"


class Gate:
    """Whoever reads a line of it is kept until it is opened."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.wait = f"read _ <{shlex.quote(str(path))}"
        """For a shell."""
        self._file = os.open(path, os.O_RDWR)  # so that nobody is kept by opening it

    def open(self) -> None:
        os.write(self._file, b"\n")

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with closing(Gate(tmp_path / "gate")) as made:
        yield made


def locked(*lines: str, lease: float = 20) -> str:
    """To type: these lines of a shell under the lock."""
    return f"dibs run x --lease {lease} -- sh -c {shlex.quote('; '.join(lines))}"


def works(shell: Shell) -> None:
    """It has its terminal, and does what is typed."""
    assert shell.foreground == shell.leader.pid
    shell.enter("echo it wo''rks")
    shell.see("it works\r\n")


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(is_stopped(pid), what=f"{pid} stopped")


def renewed(scene: Scene) -> None:
    """Wait until it ends later than it would have."""

    def end() -> float:
        (holder,) = scene.client.inspect("x").holders
        return clock() + holder.remaining

    before = end()
    until(lambda: end() > before + 0.1, what="the lock renewed")


# The wrapper is stopped (kill -STOP): its command runs on, and the shell takes the terminal.


def test_a_wrapper_stopped_from_outside_and_sent_behind_leaves_the_shell_its_terminal(
    shell: Shell, scene: Scene, gate: Gate
) -> None:
    shell.enter(locked(HERE_I_AM, gate.wait, "echo en''ded"))
    _, wrapper = begun(shell)
    stop(wrapper)
    shell.see("Stopped")
    assert shell.prompt() == 128 + signal.SIGSTOP
    assert shell.status("bg") == 0
    until(lambda: not is_stopped(wrapper)(), what="the wrapper going on")
    gate.open()
    shell.see("ended\r\n")
    shell.see("Done")
    works(shell)
    assert scene.line() == (0, 0)


def test_a_wrapper_stopped_from_outside_lends_the_terminal_again_after_fg(shell: Shell, gate: Gate) -> None:
    shell.enter(locked(HERE_I_AM, gate.wait, "read line", "echo heard $line"))
    pid, wrapper = begun(shell)
    stop(wrapper)
    shell.see("Stopped")
    shell.prompt()
    assert shell.foreground == shell.leader.pid
    shell.enter("fg")
    until(lambda: shell.foreground == pid, what="the command in front")
    gate.open()
    shell.type("some words\n")
    shell.see("heard some words\r\n")
    assert shell.prompt() == 0
    works(shell)


# The command is stopped by somebody who will continue it.


def test_a_command_stopped_from_outside_keeps_its_lock_until_it_is_continued(
    shell: Shell, scene: Scene, gate: Gate
) -> None:
    script = scene.directory / "script.sh"
    script.write_text(f"{locked(HERE_I_AM, gate.wait, 'echo ended', lease=10)}\necho status $?\n")
    shell.enter(f"bash {script}")
    pid, wrapper = begun(shell)
    stop(pid)
    renewed(scene)
    assert is_stopped(pid)()
    assert not is_stopped(wrapper)()
    os.kill(pid, signal.SIGCONT)
    gate.open()
    assert "Stopped" not in shell.see(r"(?s)^(.*)ended\r\nstatus 0\r\n")[1]
    assert shell.prompt() == 0
    assert scene.line() == (0, 0)


def test_a_command_that_was_continued_from_outside_can_be_stopped_by_ctrl_z(shell: Shell, gate: Gate) -> None:
    """Beside a pipe the key comes to the wrapper, which must know that the command runs."""
    shell.enter(locked(HERE_I_AM, gate.wait) + " | cat")
    pid, wrapper = begun(shell)
    stop(pid)
    os.kill(pid, signal.SIGCONT)

    def after_ctrl_z() -> bool:
        shell.type(CTRL_Z)  # again and again: it takes the wrapper a moment to hear that the command runs
        return is_stopped(pid)() and is_stopped(wrapper)()

    until(after_ctrl_z, what="both stopped")
    shell.see("Stopped")
    shell.prompt()
    shell.enter("fg")
    gate.open()
    assert shell.prompt() == 0


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
    assert scene.line() == (0, 0)


# In the background.


def test_a_command_behind_that_interrupts_itself_ends_alone(shell: Shell, scene: Scene) -> None:
    script, out = scene.directory / "script.sh", scene.directory / "out.txt"
    script.write_text(f"{locked('kill -INT $$')}\necho status $?\n")
    shell.enter(f"bash {script} </dev/null >{out} 2>&1 &")
    assert shell.see(r"\[1\]\+ +(\w+)")[1] == "Done"
    assert out.read_text() == "status 130\n"
    assert scene.line() == (0, 0)


def test_a_command_that_reads_where_nobody_could_bring_it_to_the_front_ends(
    shell: Shell, scene: Scene, gate: Gate
) -> None:
    """Its group is orphaned: alone it would get an error from its read (EIO)."""
    shell.enter(f"( ({gate.wait}; {locked('read line </dev/tty')}; echo ended $?) & )")
    shell.prompt()  # whoever started it is gone
    gate.open()
    assert shell.see(r"ended (\d+)\r\n")[1] == str(128 + signal.SIGHUP)
    assert scene.line() == (0, 0)
    works(shell)


# Pipes.


def test_a_shell_under_it_can_suspend_itself(shell: Shell) -> None:
    """By SIGSTOP, with the keyboard in its hands: only we can give it back."""
    shell.enter("dibs run x -- bash --norc --noprofile --noediting -i")
    shell.prompt()
    shell.enter("suspend")
    shell.see("Stopped")
    shell.prompt()
    shell.enter("fg")
    shell.enter("exit 5")
    shell.see("<5> ")


def test_one_that_minds_no_hang_up_ends_too_where_nobody_could_bring_it_to_the_front(
    shell: Shell, scene: Scene
) -> None:
    shell.enter("( (dibs run x -- sh -c 'trap \"\" HUP; read line </dev/tty'; echo ended $?) & )")
    shell.see(r"ended 137")
    scene.taken()


@pytest.mark.parametrize(
    "line",
    [
        "{} | {{ cat; echo pipe clo''sed; }}",
        "{{ yes 2>/dev/null; echo pipe clo''sed >&2; }} | {}",
    ],
    ids=["stdout", "stdin"],
)
def test_a_pipe_is_closed_when_the_command_closes_it(shell: Shell, scene: Scene, gate: Gate, line: str) -> None:
    shell.enter(line.format(locked("exec <&- >&- 2>&-", gate.wait)))
    shell.see("pipe closed\r\n")
    assert scene.line() == (1, 0)
    gate.open()
    assert shell.prompt() == 0
    assert scene.line() == (0, 0)
