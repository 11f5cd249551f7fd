"""What the commands that look at locks have in common: names, stores, and what is wrong with a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands import Cli, harmful

COMMANDS = {
    "ls": ("ls",),
    "show": ("show", "a"),
    "watch": ("watch", "a"),
    "wait": ("wait", "a"),
    "break": ("break", "a", "--token", "1", "--yes"),
}
OF_ONE = [command for command in COMMANDS if command != "ls"]


def named(command: str, name: str | bytes) -> list[str | bytes]:
    return [name if word == "a" else word for word in COMMANDS[command]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_that_cannot_be_reached(cli: Cli, tmp_path: Path, command: str) -> None:
    url = f"sqlite:///{tmp_path}/not-there/locks.db"
    done = cli.run(*COMMANDS[command], DIBS_URL=url)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith(f"dibs {command}: ")
    assert url in done.stderr
    assert "Next: " in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_of_one_process(cli: Cli, command: str) -> None:
    done = cli.run(*COMMANDS[command], DIBS_URL="memory://")
    assert (done.returncode, done.stdout) == (64, "")
    assert "private to one process" in done.stderr


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[2J", "x" * 513, b"\xff"], ids=repr)
def test_a_name_that_is_none(cli: Cli, name: str | bytes) -> None:
    done = cli.run(*named("show", name))
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("dibs show: ")
    assert harmful(done.stderr) == []


@pytest.mark.parametrize("command", OF_ONE)
def test_a_bad_name_and_none(cli: Cli, command: str) -> None:
    assert cli.run(*named(command, "a\tb")).returncode == 64
    assert cli.run(*[word for word in COMMANDS[command] if word != "a"]).returncode == 64


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_option(cli: Cli, command: str) -> None:
    done = cli.run(*COMMANDS[command], "--jsn")
    assert (done.returncode, done.stdout) == (64, "")
    assert f"see dibs {command} --help" in done.stderr


def test_which_store(cli: Cli, tmp_path: Path) -> None:
    cli.holder(namespace="other").takes("a")
    file = tmp_path / "url"
    file.write_text(cli.url + "\n")
    file.chmod(0o600)
    for words in (["--url", cli.url], ["--url-file", str(file)]):
        (info,) = cli.json("ls", "--namespace", "other", *words, DIBS_URL="sqlite:////not/there")
        assert (info["name"], len(info["holders"])) == ("a", 1)
    assert cli.json("ls") == [], "another namespace"
    done = cli.run("ls", "--url", cli.url, "--url-file", str(file))
    assert done.returncode == 64
