"""`dibs show`: the holders of one lock and its line, in order, and whether it is the reader's own."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime

import pytest

from cli.commands import ASCII, COMMAND, Cli, harmful
from cli.test_ls import HOSTILE

UNDER = "(this command runs under it)"


def test_free(cli: Cli) -> None:
    done = cli.run("show", "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, f'"a" on {cli.url}: free\n', "")
    (info,) = cli.json("show", "a")
    assert info == {"name": "a", "kind": "mutex", "capacity": 1, "holders": [], "waiters": [], "last_break": None}


def test_holders_and_the_line_in_order(cli: Cli) -> None:
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
    assert since is not None
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


def test_hostile_text_steers_no_terminal(cli: Cli) -> None:
    info = {"command": HOSTILE, HOSTILE: HOSTILE, "long": "x" * 12_000}
    cli.holder(owner=HOSTILE, info=info).takes("a\u202eb")
    done = cli.run("show", "a\u202eb")
    assert done.returncode == 0
    assert harmful(done.stdout) == []
    assert r"a\u202eb" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 1100
    line = cli.run("show", "a\u202eb", "--json").stdout
    assert line.isascii()
    assert json.loads(line)["holders"][0]["info"] == info


def test_a_locale_that_cannot_say_a_name(cli: Cli) -> None:
    token = cli.holder(owner="é").takes("é漢")
    done = cli.run("show", "é漢".encode(), DIBS_NAME="é漢", DIBS_TOKEN=str(token), **ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert r'"\xe9\u6f22" on ' in done.stdout
    assert UNDER in done.stdout
