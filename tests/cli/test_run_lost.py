"""A command does not outlive its lock: TERM while there is time, KILL at the deadline, and status 76.

A tenth of a lease is the margin between the holder's deadline and the store's, and the noise that these tests bear.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress

import pytest

import dibs
from cli.commands import COMMAND, Cli
from cli.logs import Logged
from cli.wrapped import children, gone, is_stopped
from cli.wrapped import name as process_name
from process.children import PATIENCE, clock, until
from store.sqlite.places import standstill

LOST = 76
LEASE = 12.0
NOISE = 0.3


def onlooker(cli: Cli) -> dibs.Client:
    """One that has used the store before, and can look at it when it stands still."""
    client = cli.client()
    client.inspect("x")
    return client


def stores_end(client: dibs.Client, name: str) -> float:
    """The instant from which the store may grant it to another, if nothing is renewed."""
    return clock() + client.inspect(name).holders[0].remaining


def test_without_renewal_it_gets_term_at_a_quarter_and_is_killed_at_the_deadline(cli: Cli) -> None:
    """One that obeys is not waited for longer, and its status is not its own: it was ended by us."""
    stubborn, obedient = Logged(cli, "x", "--lease", str(LEASE)), Logged(cli, "y", "--lease", str(LEASE), on_term="0")
    stubborn.begun()
    obedient.begun()
    client = onlooker(cli)
    with standstill(cli.path):
        end = stores_end(client, "x")
        time.sleep(max(0.0, end - clock()))
    status, said = stubborn.end()
    (term,) = stubborn.times("TERM")
    deadline = end - LEASE * 0.1
    assert status == LOST
    assert '"x": the lock was lost because the store did not confirm its renewal; the command was terminated' in said
    assert deadline - LEASE / 4 - NOISE < term < deadline
    assert stubborn.last_sign < end, "it was dead before anybody else could have been granted"
    assert stubborn.last_sign > term + LEASE / 8, "it had its quarter of the lease"
    assert obedient.end()[0] == LOST
    assert obedient.times("TERM") == [obedient.last_sign]
    for name in "xy":
        assert client.lock(name).acquire(timeout=PATIENCE)


def test_a_lock_that_is_taken_away_ends_the_command(cli: Cli) -> None:
    """TERM as soon as we know, KILL a quarter of the lease later; the next holder keeps what it has."""
    client = cli.client()
    command = Logged(cli, "x", "--lease", "8")
    command.begun()
    broken = clock()
    client.break_("x", token=client.inspect("x").holders[0].token)
    hold = client.lock("x").acquire(timeout=0)
    assert hold is not None
    status, said = command.end()
    (term,) = command.times("TERM")
    assert status == LOST
    assert '"x": the lock was taken away; the command was terminated' in said
    assert term - broken < 8, "at the next renewal, not at the end of the lease"
    assert 2 - NOISE < command.last_sign - term < 8
    hold.check()
    assert [holder.token for holder in client.inspect("x").holders] == [hold.token]


def test_a_store_that_is_removed_has_taken_the_lock_away(cli: Cli) -> None:
    command = Logged(cli, "x", "--lease", "9")
    command.begun()
    removed = clock()
    for suffix in ("", "-wal", "-shm"):
        cli.path.with_name(f"locks.db{suffix}").unlink(missing_ok=True)
    status, _ = command.end()
    assert status == LOST
    assert command.first("TERM") < command.last_sign < removed + 9


@pytest.mark.parametrize("remove", [False, True], ids=["broken", "removed"])
def test_a_command_that_ends_before_the_loss_is_noticed_is_told_nevertheless(cli: Cli, remove: bool) -> None:
    client = cli.client()
    command = Logged(cli, "x", "--json")
    command.begun()
    if remove:
        cli.path.unlink()
    else:
        client.break_("x", token=client.inspect("x").holders[0].token)
    command.finish()
    status, said = command.end()
    assert status == LOST
    lost = json.loads(said)
    assert '"x": the lock was lost while the command ran; the command ended by itself with status 0' in lost["text"]
    assert (lost["event"], lost["reason"], lost["status"]) == ("lost", "broken", 0)
    assert not command.times("TERM")


def test_a_store_that_is_silent_at_the_end_does_not_change_the_status(cli: Cli) -> None:
    """The lock was held as long as the command ran; when it is free for others is said."""
    go = cli.directory / "go"
    script = 'echo; while [ ! -e "$0" ]; do sleep 0.01; done; exit 7'
    command = cli.start("run", "x", "--lease", "20", "--", "sh", "-c", script, str(go))
    command.hear()
    with standstill(cli.path):
        go.touch()
        assert "(the lock was not released; it expires within 20 s)" in command.hear_error()
    assert command.end() == 7
    assert cli.client().lock("x").acquire(timeout=PATIENCE)


def test_that_nobody_reads_what_is_said_loses_no_lock(cli: Cli) -> None:
    """The store is busy for a while, which is worth a warning; the pipe for it is full, and the renewals go on."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while os.write(writes, b"x" * 4096):
            pass
    os.set_blocking(writes, True)
    go = cli.directory / "go"
    script = 'echo $$; while [ ! -e "$0" ]; do sleep 0.01; done; sleep 100 & exit 7'
    words = [*COMMAND, "run", "x", "--lease", str(LEASE), "--", "sh", "-c", script, str(go)]
    command = subprocess.Popen(words, env=cli.environment(), cwd=cli.directory, stdout=subprocess.PIPE, stderr=writes)
    assert command.stdout is not None
    group = int(command.stdout.readline())
    try:
        client = onlooker(cli)
        with standstill(cli.path):
            end = stores_end(client, "x")
            time.sleep(max(0.0, end - LEASE / 2 - clock()))  # half of the lease
        until(lambda: stores_end(client, "x") > end + LEASE / 2, what="a renewal after that")
        go.touch()
        assert command.wait(PATIENCE) == 7, "it also left somebody behind, which nobody reads either"
        assert not client.inspect("x").holders
    finally:
        command.kill()
        command.wait()
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        command.stdout.close()
        os.close(reads)
        os.close(writes)


def test_a_command_that_ends_just_when_it_is_lost_ends_once(cli: Cli) -> None:
    """Whatever comes first: 76, one message, nobody left."""
    client = onlooker(cli)
    for number in range(2):
        command = Logged(cli, f"x{number}", "--lease", "4")
        command.begun()
        with standstill(cli.path):
            end = stores_end(client, f"x{number}")
            time.sleep(max(0.0, end - 0.41 - 0.02 * number - clock()))
            command.finish()
            time.sleep(max(0.0, end - clock()))
        status, said = command.end()
        assert status == LOST
        assert said.count(f'"x{number}": the lock was lost') == 1


def test_the_whole_group_is_ended(cli: Cli) -> None:
    """A shell that ends at TERM does not save the program under it, which goes on."""
    command = Logged(cli, "x", "--max-hold", "8", around=("sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh"))
    command.begun()
    status, _ = command.end()
    assert status == LOST
    assert len(command.times("TERM")) == 1
    last = command.last_sign
    client = cli.client()
    with client.lock("x", timeout=PATIENCE):
        assert command.last_sign == last, "nothing happens after the wrapper ended"


def test_a_stopped_command_is_told_and_killed(cli: Cli) -> None:
    client = cli.client()
    command = Logged(cli, "x", "--lease", "8")
    command.begun()
    (pid,) = (pid for pid in children(command.process.pid) if process_name(pid) != "lock-guard")
    os.kill(pid, signal.SIGSTOP)
    until(is_stopped(pid), what="stopped")
    client.break_("x", token=client.inspect("x").holders[0].token)
    status, _ = command.end()
    assert status == LOST
    assert len(command.times("TERM")) == 1, "it was woken to hear it"
    assert command.first("CONT")
    assert gone(pid)


def test_max_hold_ends_the_command_and_frees_the_lock(cli: Cli) -> None:
    commands = {
        name: Logged(cli, name, "--max-hold", str(LEASE), on_term=how) for name, how in (("x", "ignore"), ("y", "3"))
    }
    for name, command in commands.items():
        begun = command.begun()
        status, said = command.end()
        (term,) = command.times("TERM")
        assert status == LOST
        assert f'"{name}": the lock reached --max-hold (12 s); the command was terminated' in said
        assert LEASE / 4 < term - begun < LEASE, "a quarter before its end"
        assert command.last_sign - begun < LEASE + NOISE
        hold = cli.client().lock(name).acquire(timeout=PATIENCE)
        assert hold is not None
    assert commands["x"].last_sign > commands["x"].first("TERM") + 0.2, "it had its quarter"
    assert commands["y"].last_sign == commands["y"].first("TERM")


def test_a_hold_that_was_waited_for_is_not_taken_for_one_that_is_not_renewed(cli: Cli) -> None:
    """It begins with the 5 s of a waiting claim, less than a quarter of its lease of 30 s, until its first renewal."""
    client = cli.client()
    hold = client.lock("x").acquire()
    assert hold is not None
    command = Logged(cli, "x", "--lease", "30")
    cli.in_queue("x", 1)
    hold.release()
    command.begun()
    until(lambda: client.inspect("x").holders[0].remaining > 7.5, what="the first renewal")
    command.finish()
    assert command.end() == (0, "")
    assert not command.times("TERM")
