"""The messages of `dibs run` while it waits: one after two seconds, another only when something changed."""

from __future__ import annotations

import getpass
import os
import re
from queue import SimpleQueue
from typing import Any

import pytest

import dibs
from cli.commands import COMMAND, Cli, Running
from dibs.cli import waiting
from dibs.cli.waiting import Narrator
from dibs.info import LockInfo, Participant

BUSY = 75
ME, HOST = getpass.getuser(), os.uname().nodename


def lines(running: Running) -> list[str]:
    """Everything it wrote to stderr, once it has ended."""
    running.end()
    return running.errors.splitlines()


def hear(running: Running, pattern: str) -> str:
    """The next line on stderr, which must match."""
    line = running.hear_error()
    assert re.fullmatch(pattern, line), line
    return line


@pytest.mark.gate
def test_one_line_and_another_only_when_something_changed(cli: Cli) -> None:
    """The places change as others go, the holder when it gives way."""
    holder, next_one = cli.holder(info={"command": "deploy.sh"}), cli.holder(owner="ben")
    holder.takes("x")
    next_one.asks("x")
    cli.in_queue("x", 1)
    first = cli.start("run", "x", "--", "echo", "ran")
    cli.in_queue("x", 2)
    second = cli.start("run", "x", "--timeout", "120", "--", "true")
    cli.in_queue("x", 3)
    held = rf'waiting for "x": held by {ME}@{HOST} pid {holder.pid} \(deploy.sh\) for \d+(\.\d+)? s'
    you = r" \(same login on this host\)"
    said = first.hear_error()
    if said.endswith("2nd of 2 in the queue"):  # it looked before the other one had queued
        said = first.hear_error()
    assert re.fullmatch(rf"{held}{you}; you are 2nd of 3 in the queue", said), said
    hear(second, rf"{held}{you}; you are 3rd of 3 in the queue")
    first.process.terminate()
    hear(second, rf"{held}{you}; you are 2nd of 2 in the queue")
    holder.gives()
    next_one.took()
    other = rf"held by ben@{HOST} pid {next_one.pid} for \S+ s \(same host\)"
    hear(second, rf'waiting for "x": {other}; you are 1st of 1 in the queue')
    next_one.gives()
    assert second.end() == 0
    assert second.rest() == ([], [])
    assert (first.end(), first.rest()) == (143, ([], []))


def test_the_next_holder_is_not_told_that_it_waits_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill, others see the first waiter as the holder before that waiter has learned of it."""
    monkeypatch.setattr(waiting, "_FIRST", 0.001)
    monkeypatch.setattr(waiting, "_AGAIN", 0.001)
    said: list[str] = []
    looks: SimpleQueue[None] = SimpleQueue()

    class Looked:
        def inspect(self, name: str) -> dibs.LockInfo:
            looks.put(None)
            return client.inspect(name)

    with dibs.connect("memory://") as client, client.lock("x"):
        looked: Any = Looked()
        with Narrator(looked, "x", "", said.append):
            for _ in range(3):
                looks.get(timeout=60)
    assert said == []


def test_a_waiter_is_not_told_that_it_holds_the_lock_itself() -> None:
    """A claim that could not be withdrawn yet, or just became the first: it is no other process."""
    own, other = (Participant(owner="ana", host=HOST, pid=pid, token=pid) for pid in (os.getpid(), 1))
    assert waiting.describe_queue(LockInfo(name="x", holders=(own,))) == "no other process holds it now"
    assert " pid 1 " in waiting.describe_queue(LockInfo(name="x", holders=(own, other)))
    assert " more" not in waiting.describe_queue(LockInfo(name="x", holders=(own, other)))
    assert " and 1 more" in waiting.describe_queue(LockInfo(name="x", holders=(other, other)))


@pytest.mark.gate
def test_time_alone_is_no_news_and_json_and_skip_are_quiet(cli: Cli) -> None:
    """Each waits for several looks, and alone: another waiter is news."""
    ben = cli.client(owner="ben")
    with ben.lock("x"), ben.lock("y"), ben.lock("z"):
        wait = ("--timeout", "8", "--", "true")
        ways = {"x": (), "y": ("--json",), "z": ("--skip",)}
        plain, as_json, skipping = (cli.start("run", name, *more, *wait) for name, more in ways.items())
        said = lines(plain)
        assert [line.partition(": ")[0] for line in said] == ['waiting for "x"', "dibs run"]
        assert "(same host)" in said[0]
        (only,) = lines(as_json)
        assert only.startswith('{"event": "busy"')
        assert lines(skipping) == []
        assert [running.end() for running in (plain, as_json, skipping)] == [BUSY, BUSY, 0]


def test_a_command_under_the_lock_that_asks_for_it_is_told_so_on_this_machine(cli: Cli) -> None:
    """It would wait for itself. The store is the default one, which nobody named."""
    state = cli.directory / "state"
    nested = (*COMMAND, "run", "x", "--", "true")
    running = cli.start("run", "x", "--", *nested, DIBS_URL=None, XDG_STATE_HOME=str(state))
    line = running.hear_error()
    held = f"held by {ME}@{HOST} pid {running.process.pid} ({COMMAND[0]} "
    assert line.startswith(f'waiting for "x" (this machine only): {held}')
    assert line.endswith(
        " (this command runs under it); you are 1st of 1 in the queue; "
        "this command waits for itself and will never get the lock"
    )
    assert (state / "dibs" / "locks.db").exists()
    running.process.terminate()
    assert running.end() == 143
