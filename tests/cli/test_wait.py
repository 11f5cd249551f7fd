"""`dibs wait`: until nobody holds a lock; it takes nothing and stands in nobody's way."""

from __future__ import annotations

import json

import pytest

import dibs
from cli.commands import Cli, harmful
from cli.test_ls import HOSTILE
from dibs.cli.polling import poll
from process.children import until
from store.sqlite.places import standstill


def test_a_free_lock(cli: Cli) -> None:
    done = cli.run("wait", "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert cli.json("wait", "a", "--timeout", "0")[0]["holders"] == []


def test_it_waits_until_the_lock_is_given_back_and_takes_nothing(cli: Cli) -> None:
    ana = cli.holder()
    ana.takes("a")
    running = cli.start("wait", "a", "--json", "--timeout", "1h")
    bob = cli.holder()
    bob.asks("a")
    info = cli.in_queue("a", 1)
    assert (len(info.holders), running.process.poll()) == (1, None)
    ana.gives()
    bob.took()
    assert running.process.poll() is None, "somebody else has it now"
    bob.gives()
    said = json.loads(running.hear())
    assert (said["name"], said["holders"], said["waiters"]) == ("a", [], [])
    assert running.end() == 0
    assert running.rest() == ([], [])


@pytest.mark.parametrize("timeout", ["0", "300ms"])
def test_the_time_is_over(cli: Cli, timeout: str) -> None:
    ana = cli.holder(owner=HOSTILE, info={"command": "deploy.sh"})
    token = ana.takes("a")
    done = cli.run("wait", "a", "--timeout", timeout, "--json")
    assert done.returncode == 75
    assert json.loads(done.stdout)["holders"][0]["token"] == token
    after = "" if timeout == "0" else " after 0.3 s"
    assert done.stderr.startswith(f'dibs wait: "a" on {cli.url}: not free{after}: held by ')
    assert f"pid {ana.pid} (deploy.sh) for " in done.stderr
    assert done.stderr.endswith(". Next: dibs show a\n")
    assert harmful(done.stderr) == []


def test_several_hold_it(cli: Cli) -> None:
    ana = cli.holder()
    for key in ("x", "y", "z"):
        ana.takes("a", "semaphore", 5, key=key)
    assert " and 2 more. Next" in cli.run("wait", "a", "--timeout", "0").stderr


@pytest.mark.parametrize("timeout", ["-1", "soon", "inf", "", "1w"])
def test_a_time_that_is_none(cli: Cli, timeout: str) -> None:
    done = cli.run("wait", "a", f"--timeout={timeout}")
    assert (done.returncode, done.stdout) == (64, "")
    assert "not a duration" in done.stderr


def test_ctrl_c(cli: Cli) -> None:
    cli.holder().takes("a")
    terminal = cli.terminal("wait", "a")
    cli.in_queue("a", 0)
    directory = cli.path.with_name(cli.path.name + ".d")
    until(lambda: len(list(directory.glob("*.sock"))) == 3, what="the third client of the store")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text


def test_a_store_that_does_not_answer(cli: Cli) -> None:
    cli.holder().takes("a")
    with standstill(cli.path):
        done = cli.run("wait", "a", "--timeout", "0")
        assert done.returncode == 69
        assert done.stderr.startswith(f'dibs wait: "a" on {cli.url}: ')
        assert "retrying" not in done.stderr, "its time was over"


def test_patience_with_a_silent_store_ends(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dibs.cli.polling.PATIENCE", 0.5)
    cli.holder().takes("a")
    with standstill(cli.path), dibs.connect(cli.url, retry=0.1) as client, pytest.raises(dibs.StoreUnavailable):
        next(poll(lambda: client.inspect("a"), "wait"))
    assert capsys.readouterr().err.count(" (retrying)\n") == 1, "it is said once"
