"""A command does not outlive its lock: TERM while there is time, KILL at the deadline, and status 76.

A tenth of a lease is the margin between the holder's deadline and the store's, and the noise that these tests tolerate.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress

import pytest

import dibs
from cli.commands import COMMAND, Cli, Running
from cli.wrapped import BEGUN, WITNESS, Scene, children, gone, is_stopped, members
from cli.wrapped import name as process_name
from process.children import PATIENCE, clock, until
from store.sqlite.places import standstill

LOST = 76
LEASE = 4.0
NOISE = 0.3


class Logged(Running):
    """`dibs run` with a command that keeps a log; `around` is put before it, as `sh -c` is."""

    def __init__(self, cli: Cli, name: str, *options: str, on_term: str = "", around: tuple[str, ...] = ()) -> None:
        self._file = cli.directory / f"{name}.log"
        words = ["run", name, *options, "--", *around, *WITNESS, f"log:{self._file}:{on_term}"]
        super().__init__([*COMMAND, *words], cli.directory, cli.environment())
        cli._keep(self)

    def first(self, word: str) -> float:
        return float(until(lambda: self.times(word), what=f"{word} in the log")[0])

    def times(self, word: str) -> list[float]:
        """The instants at which it noted that word."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [float(at) for said, _, at in (line.partition(" ") for line in lines) if said == word]

    @property
    def last_sign(self) -> float:
        return max(self.times("beat") + self.times("begun") + self.times("TERM"))

    def finish(self) -> None:
        """The command ends by itself, with 0."""
        self.process.stdin.close()


def onlooker(cli: Cli) -> dibs.Client:
    """A client that has used the store before, and can inspect it while it is blocked."""
    client = cli.client()
    client.inspect("x")
    return client


def stores_end(client: dibs.Client, name: str) -> float:
    """The instant from which the store may grant it to another client, if it is not renewed."""
    return clock() + client.inspect(name).holders[0].remaining


@pytest.mark.alone
def test_without_renewal_it_gets_term_at_a_quarter_and_is_killed_at_the_deadline(cli: Cli) -> None:
    """A command that obeys ends at once. Its own status is not used: it was terminated."""
    stubborn, obedient = Logged(cli, "x", "--lease", str(LEASE)), Logged(cli, "y", "--lease", str(LEASE), on_term="0")
    stubborn.first("begun")
    obedient.first("begun")
    client = onlooker(cli)
    with standstill(cli.path):
        end = stores_end(client, "x")
        time.sleep(max(0.0, end - clock()))
    status, said = stubborn.end(), stubborn.errors
    (term,) = stubborn.times("TERM")
    deadline = end - LEASE * 0.1
    assert status == LOST
    assert '"x": the lock was lost because the store did not confirm its renewal; the command was terminated' in said
    assert deadline - LEASE / 4 - NOISE < term < deadline
    assert stubborn.last_sign < end, "it was dead before anybody else could have been granted"
    assert stubborn.last_sign > term + LEASE / 8, "it had its quarter of the lease"
    assert obedient.end() == LOST
    assert obedient.times("TERM") == [obedient.last_sign]
    for name in "xy":
        assert client.lock(name).acquire(timeout=PATIENCE)


@pytest.mark.alone
def test_a_lock_that_is_taken_away_ends_the_command(cli: Cli) -> None:
    """TERM at the next renewal, KILL a quarter of the lease later; the next holder keeps the lock."""
    client = cli.client()
    command = Logged(cli, "x", "--lease", str(LEASE))
    command.first("begun")
    broken = clock()
    client.break_("x", token=client.inspect("x").holders[0].token)
    hold = client.lock("x").acquire(timeout=0)
    status, said = command.end(), command.errors
    (term,) = command.times("TERM")
    assert status == LOST
    assert '"x": the lock was taken away; the command was terminated' in said
    assert term - broken < LEASE, "at the next renewal, not at the end of the lease"
    assert LEASE / 4 - NOISE < command.last_sign - term < LEASE
    hold.check()
    assert [holder.token for holder in client.inspect("x").holders] == [hold.token]


@pytest.mark.gate
def test_max_hold_ends_the_whole_group_and_frees_the_lock(cli: Cli) -> None:
    """Also where a shell ends at TERM, and the program under it does not."""
    under_a_shell = ("sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh")
    x = Logged(cli, "x", "--max-hold", str(LEASE), around=under_a_shell)
    y = Logged(cli, "y", "--max-hold", str(LEASE), on_term="3")
    for name, command in {"x": x, "y": y}.items():
        begun = command.first("begun")
        status, said = command.end(), command.errors
        (term,) = command.times("TERM")
        last = command.last_sign
        assert status == LOST
        assert f'"{name}": the lock reached --max-hold (4 s); the command was terminated' in said
        assert LEASE / 4 < term - begun < LEASE, "a quarter before its end"
        assert last - begun < LEASE + NOISE
        assert cli.client().lock(name).acquire(timeout=PATIENCE)
        assert command.last_sign == last, "nothing happens after the wrapper ended"
    assert x.last_sign > x.first("TERM") + 0.2, "it had its quarter"
    assert y.last_sign == y.first("TERM")


@pytest.mark.alone
def test_a_wrapper_that_was_stopped_past_its_lease_lets_nobody_beside_the_next_holder(scene: Scene) -> None:
    beats = scene.directory / "beats"
    running = scene.run(*WITNESS, "child", "begin", f"beat:{beats}", lease=2)
    command = int(running.hear(BEGUN)[1])
    until(lambda: beats.exists() and beats.stat().st_size > 0, what="a beat")
    running.signal(signal.SIGSTOP)
    stopped = clock()
    with scene.held():
        entered = clock()
        assert members(command) == []
        running.signal(signal.SIGCONT)
        assert running.end() == LOST
        assert scene.counts() == (1, 0)
    assert stopped < float(beats.read_text().split()[-1]) < entered
    why = "the lock was lost because dibs run was stopped for longer than the lease; the command was killed"
    assert why in running.errors
    scene.none_left()


@pytest.mark.alone
def test_a_hold_that_was_waited_for_is_not_taken_for_one_that_is_not_renewed(cli: Cli) -> None:
    """It begins with the 5 s of a waiting claim, less than a quarter of its lease of 30 s, until its first renewal."""
    client = cli.client()
    hold = client.lock("x").acquire()
    command = Logged(cli, "x", "--lease", "30")
    cli.in_queue("x", 1)
    hold.release()
    command.first("begun")
    until(lambda: client.inspect("x").holders[0].remaining > 7.5, what="the first renewal")
    command.finish()
    assert (command.end(), command.errors) == (0, "")
    assert not command.times("TERM")


def test_a_command_that_ends_before_the_loss_is_noticed_is_told_nevertheless(cli: Cli) -> None:
    client = cli.client()
    command = Logged(cli, "x", "--json", "--lease", "300")
    command.first("begun")
    client.break_("x", token=client.inspect("x").holders[0].token)
    command.finish()
    status, said = command.end(), command.errors
    assert status == LOST
    lost = json.loads(said)
    assert '"x": the lock was lost while the command ran; the command ended by itself with status 0' in lost["text"]
    assert (lost["event"], lost["reason"], lost["status"]) == ("lost", "broken", 0)
    assert not command.times("TERM")


@pytest.mark.gate
def test_a_store_that_is_silent_at_the_end_does_not_change_the_status(cli: Cli) -> None:
    """The lock was held as long as the command ran; the message says when others can have it."""
    script = "echo; while [ ! -e go ]; do sleep 0.01; done; exit 7"
    command = cli.start("run", "x", "--lease", "20", "--", "sh", "-c", script)
    command.hear()
    with standstill(cli.path):
        (cli.directory / "go").touch()
        assert "(the lock was not released; it expires within 20 s)" in command.hear_error()
    assert command.end() == 7
    assert cli.client().lock("x").acquire(timeout=PATIENCE)


@pytest.mark.gate
def test_a_full_pipe_on_stderr_does_not_lose_the_lock(cli: Cli) -> None:
    """The store is busy for a while, which is worth a warning; nobody reads it, and the renewals go on."""
    lease = 12.0
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while os.write(writes, b"x" * 4096):
            pass
    os.set_blocking(writes, True)
    script = "echo; while [ ! -e go ]; do sleep 0.01; done; sleep 100 >&2 & exit 7"
    words = [*COMMAND, "run", "x", "--lease", str(lease), "--", "sh", "-c", script]
    command = cli._keep(Running(words, cli.directory, cli.environment(), stderr=writes))
    command.hear()
    client = onlooker(cli)
    with standstill(cli.path):
        end = stores_end(client, "x")
        time.sleep(max(0.0, end - lease / 2 - clock()))
    until(lambda: stores_end(client, "x") > end + lease / 2, what="a renewal after that")
    (cli.directory / "go").touch()
    assert command.end() == 7, "it also left a process behind, and nobody reads that either"
    assert not client.inspect("x").holders
    os.close(reads)
    os.close(writes)


@pytest.mark.gate
def test_a_stopped_command_is_told_and_killed(cli: Cli) -> None:
    client = cli.client()
    command = Logged(cli, "x", "--lease", "8")
    command.first("begun")
    (pid,) = (pid for pid in children(command.pid) if process_name(pid) != "lock-guard")
    os.kill(pid, signal.SIGSTOP)
    until(is_stopped(pid), what="stopped")
    client.break_("x", token=client.inspect("x").holders[0].token)
    assert command.end() == LOST
    assert len(command.times("TERM")) == 1, "it was woken to hear it"
    assert command.first("CONT")
    assert gone(pid)
