"""What `dibs run` does with its words: the command gets its own verbatim, and each option does what it says."""

from __future__ import annotations

import getpass
import os
import re
import sys
from pathlib import Path

import pytest

from cli.commands import COMMAND, Cli
from cli.logs import in_this_process
from process.children import clock

USAGE, UNAVAILABLE, BUSY = 64, 69, 75
ECHO = (sys.executable, "-S", "-c", r"import os,sys; os.write(1, b'\0'.join(map(os.fsencode, sys.argv[1:])))")


# The command's words and streams.


def test_the_words_of_the_command_arrive_verbatim(cli: Cli) -> None:
    words = [
        "", " ", "a b", "'", '"', "$HOME", "$(id)", "`id`", ";", "|", "&", "\n", "\t", "*", "~", "\\", "--", "-n",
        "--url", "é", b"\xff\xfe", b"\xc3", "x" * 100_000, "a@b://" * 5_000, "pass" * 25_000,
    ]  # fmt: skip
    done = cli.process(*COMMAND, "run", "x", "--", *ECHO, *words, text=False)
    assert done.stderr == b""
    assert done.stdout.split(b"\0") == [word if isinstance(word, bytes) else word.encode() for word in words]


def test_the_streams_pass_byte_for_byte(cli: Cli) -> None:
    data = bytes(range(256)) * 1000
    done = cli.process(*COMMAND, "run", "x", "--", "tee", "/dev/stderr", text=False, stdin=data)
    assert done.returncode == 0
    assert done.stdout == data
    assert done.stderr == data


@pytest.mark.parametrize("name", ["--force", "-n", "--"])
def test_a_name_that_looks_like_an_option(cli: Cli, name: str) -> None:
    done = cli.run("run", "--lease", "5", "--", name, "--", "sh", "-c", 'echo "$DIBS_NAME $*"', "sh", "--", "a", "--")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} -- a --\n", "")


def test_options_stand_on_both_sides_of_the_name_and_end_at_the_first_dashes(cli: Cli) -> None:
    done = cli.run("run", "--lease", "5", "x", "--info", "a=b", "--", "echo", "--lease", "7", "--", "--help")
    assert (done.returncode, done.stdout) == (0, "--lease 7 -- --help\n")
    done = cli.run("run", "x", "--", "--force")
    assert done.returncode == 127
    assert "'--force' cannot be run" in done.stderr


# When it is busy.


def test_what_happens_when_it_is_busy(cli: Cli) -> None:
    hold = cli.client().lock("x").acquire()
    assert hold is not None
    expected = {
        ("-n",): (BUSY, '"x": not free: held by'),
        ("--try-once", "--busy-exit-code", "9"): (9, '"x": not free: held by'),
        ("--timeout", "0"): (BUSY, '"x": not free: held by'),
        ("--timeout", "400ms"): (BUSY, '"x": not free after 0.4 s: held by'),
        ("--skip",): (0, ""),
        ("--skip", "-n", "--busy-exit-code", "9"): (0, ""),
        ("--skip", "--timeout", "0.4s"): (0, ""),
    }
    for options, (status, says) in expected.items():
        begun = clock()
        done = cli.run("run", "x", *options, "--", "echo", "ran")
        assert clock() - begun > (0.4 if "400ms" in options or "0.4s" in options else 0)
        assert (options, done.returncode, done.stdout) == (options, status, "")
        assert says in done.stderr if says else done.stderr == ""
        if says:
            assert f"pid {os.getpid()} " in done.stderr
            assert done.stderr.endswith("Next: dibs show x\n")
    assert cli.client().inspect("x").waiters == ()


# What is taken.


def tries(cli: Cli, *options: str) -> int:
    return cli.run("run", "x", "-n", *options, "--", "true").returncode


def test_readers_share_and_a_writer_does_not(cli: Cli) -> None:
    lock = cli.client().rwlock("x")
    with lock.read:
        assert tries(cli, "--shared") == 0
        assert tries(cli, "--exclusive") == BUSY
    with lock.write:
        assert tries(cli, "--shared") == BUSY
    assert tries(cli, "--exclusive") == 0


def test_permits_are_counted(cli: Cli) -> None:
    hold = cli.client().semaphore("x", 5).acquire(3)
    assert hold is not None
    assert tries(cli, "--of", "5", "--permits", "3") == BUSY
    assert tries(cli, "--of", "5", "--permits", "2") == 0
    assert tries(cli, "--of", "5") == 0
    second = cli.start("run", "x", "--of", "5", "--permits", "3", "--", "echo", "ran")
    (waiter,) = cli.in_queue("x", 1).waiters
    assert waiter.weight == 3
    hold.release()
    assert second.hear() == "ran"


def test_one_name_is_one_kind(cli: Cli) -> None:
    """Who is told so can put it right: what it is, and what was asked for."""
    with cli.client().lock("x"):
        done = cli.run("run", "x", "--shared", "--", "true")
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert "busy as mutex, not as rw" in done.stderr
        assert "Next: " in done.stderr
    with cli.client().semaphore("x", 5):
        done = cli.run("run", "x", "--of", "4", "-n", "--", "true")
        assert done.returncode == USAGE
        assert "busy as semaphore of 5, not as semaphore of 4" in done.stderr


def test_a_namespace_is_a_world_of_its_own(cli: Cli) -> None:
    with cli.client().lock("x"):
        assert tries(cli) == BUSY
        assert tries(cli, "--namespace", "other") == 0
        assert tries(cli, "--namespace", "") == 0


# What others see of it, and what the command sees.


def test_what_others_see(cli: Cli) -> None:
    client = cli.client()
    words = ("sh", "-c", "echo $DIBS_TOKEN; sleep 60", "--password", "hunter2")
    command = cli.start("run", "x", "--lease", "60", "--info", "run=42", "--info", "who=ci=me", "--", *words)
    token = int(command.hear())
    (holder,) = client.inspect("x").holders
    assert holder.token == token
    assert (holder.owner, holder.host, holder.pid) == (getpass.getuser(), os.uname().nodename, command.process.pid)
    assert dict(holder.info) == {
        "command": "sh -c 'echo $DIBS_TOKEN; sleep 60' --password ***",
        "run": "42",
        "who": "ci=me",
    }
    assert 1 < holder.remaining <= 60
    own = cli.start("run", "y", "--info", "command=a nightly job", "--", "sh", "-c", "echo; sleep 60")
    own.hear()
    assert dict(client.inspect("y").holders[0].info) == {"command": "a nightly job"}


def seen(cli: Cli, *options: str, **more: str | None) -> dict[str, str]:
    """The environment of a command."""
    done = cli.run("run", "x", *options, "--", "env", "-0", **more)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(one.split("=", 1) for one in done.stdout.split("\0")[:-1])


def test_what_the_command_sees(cli: Cli) -> None:
    """Its own environment, and four words: which lock, its token, whose, how long; no id of the claim."""
    client = cli.client()
    hold = client.lock("x").acquire()
    assert hold is not None
    hold.release()
    own = {"KEEP": "this and\nthat", "LC_ALL": "C.UTF-8"}  # without a locale, Python itself adds one to what it starts
    there = seen(cli, "--lease", "30d", **own)
    before = cli.environment(**own)
    added = {name: value for name, value in there.items() if before.get(name) != value}
    token = int(added.pop("DIBS_TOKEN"))
    assert token > hold.token
    assert added == {"DIBS_NAME": "x", "DIBS_OWNER": getpass.getuser(), "DIBS_LEASE": "2592000"}
    assert before.keys() <= there.keys()
    assert not re.search(r"\b[0-9a-f]{32}\b", "\n".join(f"{k}={v}" for k, v in there.items() if k not in before))


def test_a_password_in_the_url_is_not_the_commands(cli: Cli) -> None:
    secret = "redis://ana:hunter2@cache:6379/0"
    assert seen(cli, "--url", cli.url, DIBS_URL=secret)["DIBS_URL"] == "redis://ana@cache:6379/0"
    assert seen(cli, "--url", cli.url, DIBS_URL="redis://cache/0?password=hunter2")["DIBS_URL"] == "redis://cache/0"
    assert seen(cli, "--url", cli.url, "--pass-url", DIBS_URL=secret)["DIBS_URL"] == secret
    assert "hunter2" not in seen(cli, "--url", cli.url, DIBS_URL="ana:hunter2@cache")["DIBS_URL"]
    odd = "redis://cache/0?p%61ssword=hunter2&auth=hunter2&ssl=1"
    assert seen(cli, "--url", cli.url, DIBS_URL=odd)["DIBS_URL"] == "redis://cache/0?ssl=1"
    assert "DIBS_URL" not in seen(cli, "--url", cli.url, DIBS_URL=None)


# Which store.


@pytest.mark.parametrize(
    "words",
    [
        ["--url=etcd://:hunter2@cache/0"],
        ["--url", "ana:hunter2@cache"],
        ["--url", "redis://ana:hunter2/2@cache:99999"],
        ["--ulr", "a://:hunter2@h"],
        ["--timeout", "a://:hunter2@h"],
        ["a://b:hunter2@h"],
    ],
)
def test_a_password_on_the_command_line_is_warned_of_and_not_repeated(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_this_process(["x", *words, "--", "true"]) == USAGE
    said = capsys.readouterr()
    if any(word.startswith("--url") for word in words):  # not behind a mistake
        assert "can see the password in --url" in said.err
        assert "DIBS_URL or --url-file" in said.err
    assert "hunter2" not in said.err + said.out


def test_the_password_of_a_store_that_is_away_is_not_repeated(cli: Cli) -> None:
    done = cli.run("run", "x", "--timeout", "0.1", "--url", "redis://ana:hunter2@127.0.0.1:1/0", "--", "true")
    assert done.returncode == UNAVAILABLE
    assert "can see the password in --url" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_a_file_says_which_store(cli: Cli) -> None:
    file = cli.directory / "url"
    file.write_text(f"{cli.url}\n")
    file.chmod(0o600)
    with cli.client().lock("x"):
        done = cli.run("run", "x", "-n", "--url-file", str(file), "--", "true", DIBS_URL=None)
        assert done.returncode == BUSY
        file.chmod(0o640)
        done = cli.run("run", "x", "--skip", "--url-file", str(file), "--", "true", DIBS_URL=None)
        assert done.returncode == 0
        assert (
            done.stderr
            == f"dibs run: other users can read {str(file)!a}, which holds the URL of the store; run chmod 600 on it\n"
        )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        (b"", "must contain one line, the URL"),
        (b" \n\n", "must contain one line, the URL"),
        (b"sqlite:///hunter2\nsqlite:///b\n", "must contain one line, the URL"),
        (b"sqlite:///hunter2\xff\n", ": not UTF-8"),
        (b"hunter2", "a store's URL looks like scheme://"),
        (b"memory://hunter2", "private to one process"),
    ],
)
def test_a_file_that_does_not_say_which_store(
    tmp_path: Path, content: bytes | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    assert in_this_process(["x", "--url-file", str(file), "--", "true"]) == USAGE
    said = capsys.readouterr()
    assert says in said.err
    assert "hunter2" not in said.err + said.out


def test_it_works_without_the_directory_it_was_started_in(cli: Cli) -> None:
    gone = cli.directory / "gone"
    script = f'mkdir {gone} && cd {gone} && rmdir {gone} && exec "$@"'
    done = cli.process("sh", "-c", script, "sh", *COMMAND, "run", "x", "--", *ECHO, "here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "here", "")
