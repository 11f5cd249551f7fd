"""`dibs show`: the holders and the queue of one lock; and the rules that all commands for a lock share."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.commands import ASCII, COMMAND, Cli, harmful
from cli.test_ls import HOSTILE

UNDER = "(this command runs under it)"


def test_free(cli: Cli) -> None:
    done = cli.run("show", "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, f'"a" on {cli.url}: free\n', "")
    (info,) = cli.json("show", "a")
    assert info == {"name": "a", "kind": "mutex", "capacity": 1, "holders": [], "waiters": [], "last_break": None}


@pytest.mark.gate  # a standstill longer than the waiting lease may change the order
def test_holders_and_the_queue_in_order(cli: Cli) -> None:
    ana, bob = cli.holder(owner="ana", info={"command": "deploy.sh", "run": 7}), cli.holder(owner="bob")
    token = ana.takes("a", info={"note": "é b", "tags": ["x"]})
    for place, key in enumerate(("first", "second"), 1):
        bob.asks("a", key=key)
        info = cli.in_queue("a", place)
    done = cli.run("show", "a", TZ="XYZ-3")
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head == f'"a" on {cli.url}: mutex, 1 holding, 2 waiting'
    host = os.uname().nodename
    assert [line for line in lines if not line.startswith(" ")] == [
        f"holds  ana@{host} pid {ana.pid} (same host)",
        f"1st    bob@{host} pid {bob.pid} thread first (same host)",
        f"2nd    bob@{host} pid {bob.pid} thread second (same host)",
    ]
    assert lines[1] == "       command  deploy.sh"
    since = re.fullmatch(r"       since    (.+) ago \((.+) XYZ\)", lines[2])
    local = datetime.fromisoformat(f"{since[2]}+03:00")
    assert abs((local - info.holders[0].since).total_seconds()) <= 1.1
    assert abs((local - datetime.now(UTC)).total_seconds()) < 60
    assert re.fullmatch(r"       lease    [\d.]+ s left", lines[3])
    assert lines[4:6] == [f"       token    {token}", '       info     run=7 note=é b tags=["x"]']
    assert not any(str(waiter.token) in done.stdout for waiter in info.waiters), "what waits cannot be broken"


def test_json(cli: Cli) -> None:
    ana = cli.holder(owner="ana", lease=20, info={"command": "deploy.sh"})
    token = ana.takes("a")
    (info,) = cli.json("show", "a")
    (holder,) = info.pop("holders")
    assert info == {"name": "a", "kind": "mutex", "capacity": 1, "waiters": [], "last_break": None}
    assert 0 < holder.pop("remaining") <= 20
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", holder.pop("since"))
    assert holder == {
        "owner": "ana", "host": os.uname().nodename, "pid": ana.pid, "thread": "MainThread", "token": token,
        "weight": 1, "info": {"command": "deploy.sh"},
    }  # fmt: skip


def test_how_much_each_has_of_a_semaphore(cli: Cli) -> None:
    cli.holder().takes("a", "semaphore", 5, permits=2)
    done = cli.run("show", "a")
    assert "semaphore 2/5, 1 holding, 0 waiting" in done.stdout
    assert "permits  2 of 5" in done.stdout


def test_it_says_which_identity_is_the_same(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login is a label, and so is a host: the one of another machine is put on."""
    mine, other = cli.holder(), cli.holder(owner="somebody-else")
    token = mine.takes("mine")
    theirs = other.takes("theirs")

    def shown(name: str, **more: str) -> str:
        """The first line of its holder, as another process prints it."""
        lines = cli.process(*COMMAND, "show", name, **more).stdout.splitlines()
        return lines[1]

    assert shown("mine").endswith(f" pid {os.getpid()} (same login on this host)")
    assert shown("theirs").endswith(f" pid {os.getpid()} (same host)")
    assert shown("theirs", DIBS_NAME="theirs", DIBS_TOKEN=str(theirs)).endswith(UNDER)
    for wrong in ({"DIBS_NAME": "mine", "DIBS_TOKEN": str(theirs)}, {"DIBS_NAME": "theirs", "DIBS_TOKEN": str(token)}):
        assert shown("theirs", **wrong).endswith("(same host)")
    assert "(same process)" in cli.run("show", "theirs").stdout
    monkeypatch.setattr("dibs.cli.output.host", lambda: "another")
    assert "(same login on another host)" in cli.run("show", "mine").stdout
    assert "(same" not in cli.run("show", "theirs").stdout


@pytest.mark.parametrize("more", [{}, pytest.param(ASCII, marks=pytest.mark.gate)], ids=["UTF-8", "ASCII"])
def test_hostile_text_steers_no_terminal(cli: Cli, more: dict[str, Any]) -> None:
    name = "a\u202eb"
    info = {"command": HOSTILE, HOSTILE: HOSTILE, "long": "x" * 12_000}
    cli.holder(owner=HOSTILE, info=info).takes(name)
    for words, longest in {
        ("ls",): 250,
        ("show", name): 1100,
        ("wait", name, "--timeout", "0"): 500,
        ("run", name, "-n", "--", "true"): 500,
        ("break", name): 500,
    }.items():
        done = cli.run(*words, **more)
        said = done.stdout + done.stderr
        assert harmful(said) == []
        assert r"a\u202eb" in said
        assert r"\x1b" in said
        assert max(map(len, said.splitlines())) < longest
    watching = cli.start("watch", name, **more).hear()
    assert harmful(watching) == []
    assert r"\x1b" in watching
    assert len(watching) < 400
    for command in (("ls",), ("show", name)):
        line = cli.run(*command, "--json", **more).stdout
        assert line.isascii()
        assert json.loads(line)["holders"][0]["info"] == info


# Shared by the commands for a lock.

COMMANDS = {
    "ls": ("ls",),
    "show": ("show", "a"),
    "watch": ("watch", "a"),
    "wait": ("wait", "a"),
    "break": ("break", "a", "--token", "1", "--yes"),
    "top": ("top",),
    "doctor": ("doctor",),
}


def test_a_store_that_cannot_be_used(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/not-there/locks.db"
    for command, words in COMMANDS.items():
        done = cli.run(*words, DIBS_URL=url)
        assert (done.returncode, done.stdout) == (69, "")
        assert done.stderr.startswith(f"dibs {command}: ")
        assert url in done.stderr
        assert "Next: " in done.stderr
        done = cli.run(*words, DIBS_URL="memory://")
        assert (done.returncode, done.stdout) == (64, "")
        assert "private to one process" in done.stderr


def test_invalid_names_and_options(cli: Cli) -> None:
    for name in ("", " ", "a\nb", "a\x1b[2J", "x" * 513, b"\xff"):
        done = cli.run("show", name)
        assert (name, done.returncode, done.stdout) == (name, 64, "")
        assert done.stderr.startswith("dibs show: ")
        assert harmful(done.stderr) == []
    for command, words in COMMANDS.items():
        done = cli.run(*words, "--jsn")
        assert (done.returncode, done.stdout) == (64, "")
        assert f"see dibs {command} --help" in done.stderr
        if "a" in words:
            assert cli.run(*("a\tb" if word == "a" else word for word in words)).returncode == 64
            assert cli.run(*(word for word in words if word != "a")).returncode == 64
