"""What `dibs run` says while it waits: one line after two seconds, another when something changed, and not more."""

from __future__ import annotations

import getpass
import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import dibs
from cli.commands import COMMAND, Cli, Running, harmful
from dibs.cli import waiting
from dibs.cli.waiting import Narrator
from dibs.info import LockInfo, Participant

BUSY = 75
ME, HOST = getpass.getuser(), os.uname().nodename


def lines(running: Running) -> list[str]:
    """All that it said on stderr, once it has ended."""
    running.end()
    return running.errors.splitlines()


def hear(running: Running, pattern: str) -> str:
    """The next line on stderr, which must match."""
    line = running.hear_error()
    assert re.fullmatch(pattern, line), line
    return line


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
    if said.endswith("2nd of 2 in the queue"):  # it looked before the other one stood behind it
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


def test_who_is_about_to_get_it_is_not_told_that_it_waits_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder was killed: to whoever looks, the first in line holds it, before that one has learned so."""
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


def test_who_asks_in_vain_is_not_told_that_it_holds_the_lock_itself() -> None:
    """A claim that could not be withdrawn yet, or just became the first: it is no other process."""
    own, other = (Participant(owner="ana", host=HOST, pid=pid, token=pid) for pid in (os.getpid(), 1))
    assert waiting.describe_queue(LockInfo(name="x", holders=(own,))) == "no other process holds it now"
    assert " pid 1 " in waiting.describe_queue(LockInfo(name="x", holders=(own, other)))
    assert " more" not in waiting.describe_queue(LockInfo(name="x", holders=(own, other)))


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


HOSTILE = {
    "owner": "eve\x1b[2J\r\n\u202e" + "o" * 300,
    "host": "h\x07\x9b31m" + "h" * 300,
    "pid": 7,
    "thread": "",
    "info": {"command": "rm \x1b]0;title\x07\nwaiting for nothing\u2028" + "c" * 300},
}


def say_of_itself(path: Path, about: str, *others: str) -> None:
    """What a participant says of itself is whatever it wrote."""
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        (table,) = (name for name, sql in tables if re.search(r"\babout\b", sql))
        but = f"WHERE about NOT IN ({', '.join('?' * len(others))})"
        assert connection.execute(f"UPDATE {table} SET about = ? {but}", (about, *others)).rowcount == 1


def test_what_others_say_of_themselves_steers_no_terminal_and_many_are_counted(cli: Cli) -> None:
    client = cli.client()
    told: list[str] = []
    for name, about in (("x", json.dumps(HOSTILE)), ("y", "no JSON \x1b[2J")):
        assert client.lock(name).acquire()
        say_of_itself(cli.path, about, *told)
        told.append(about)
    many = [client.semaphore("many", 3).acquire(n) for n in (2, 1)]
    waiting = [cli.start("run", name, "--timeout", "8", "--", "true") for name in "xy"]
    third = cli.start("run", "many", "--of", "3", "--timeout", "8", "--", "true")
    for one in waiting:
        said = lines(one)
        assert len(said) == 2, said
        assert harmful("\n".join(said)) == []
        assert all(len(line) < 500 for line in said), said
    assert None not in many
    assert re.search(r" s( \(.*\))? and 1 more; you are 1st of 1 in the queue$", lines(third)[0])
