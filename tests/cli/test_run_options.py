"""The arguments of `dibs run`: the command gets its own verbatim, and each option does what it says."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import COMMAND, Cli, run_here
from process.children import clock

USAGE, UNREACHABLE, BUSY, CANNOT_RUN, NOT_FOUND = 64, 69, 75, 126, 127
ECHO = (sys.executable, "-S", "-c", r"import os,sys; os.write(1, b'\0'.join(map(os.fsencode, sys.argv[1:])))")


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


def test_a_name_that_looks_like_an_option_and_options_up_to_the_first_dashes(cli: Cli) -> None:
    done = cli.run("run", "--lease", "50", "x", "--info", "a=b", "--", "echo", "--lease", "7", "--", "--help")
    assert (done.returncode, done.stdout) == (0, "--lease 7 -- --help\n")
    name = ("--", "--force", "--", "sh", "-c", 'echo "$DIBS_NAME $*"', "sh", "--", "a", "--")
    done = cli.run("run", "--lease", "50", *name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "--force -- a --\n", "")
    done = cli.run("run", "x", "--", "--force")
    assert done.returncode == 127
    assert "'--force' cannot be run" in done.stderr


def test_what_happens_when_it_is_busy(cli: Cli) -> None:
    hold = cli.client().lock("x").acquire()
    assert hold is not None
    expected = {
        ("-n",): (BUSY, '"x": not free: held by'),
        ("--try-once", "--busy-exit-code", "9"): (9, '"x": not free: held by'),
        ("--timeout", "400ms"): (BUSY, '"x": not free after 0.4 s: held by'),
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


def tries(cli: Cli, *options: str) -> int:
    return cli.run("run", "x", "-n", *options, "--", "true").returncode


def test_readers_share_and_a_writer_does_not_and_a_namespace_is_apart(cli: Cli) -> None:
    lock = cli.client().rwlock("x")
    with lock.read:
        assert tries(cli, "--shared") == 0
        assert tries(cli, "--exclusive") == BUSY
    with lock.write:
        assert tries(cli, "--shared") == BUSY
        assert tries(cli, "--namespace", "other") == 0


def test_permits_are_counted(cli: Cli) -> None:
    hold = cli.client().semaphore("x", 5).acquire(3)
    assert tries(cli, "--of", "5", "--permits", "3") == BUSY
    assert tries(cli, "--of", "5", "--permits", "2") == 0
    assert tries(cli, "--of", "5") == 0
    second = cli.start("run", "x", "--of", "5", "--permits", "3", "--", "echo", "ran")
    (waiter,) = cli.in_queue("x", 1).waiters
    assert waiter.weight == 3
    second.process.terminate()
    assert (second.end(), second.rest()[0]) == (143, [])
    hold.release()


def test_one_name_is_one_kind(cli: Cli) -> None:
    with cli.client().lock("x"):
        done = cli.run("run", "x", "--shared", "--", "true")
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert "busy as mutex, not as rw" in done.stderr
        assert "Next: " in done.stderr
    with cli.client().semaphore("x", 5):
        done = cli.run("run", "x", "--of", "4", "-n", "--", "true")
        assert done.returncode == USAGE
        assert "busy as semaphore of 5, not as semaphore of 4" in done.stderr


def test_others_see_the_owner_the_command_and_the_info(cli: Cli) -> None:
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


@pytest.mark.gate
def test_a_password_in_the_url_is_not_the_commands(cli: Cli) -> None:
    secret = "redis://ana:hunter2@cache:6379/0"
    assert seen(cli, "--url", cli.url, DIBS_URL=secret)["DIBS_URL"] == "redis://ana@cache:6379/0"
    assert seen(cli, "--url", cli.url, DIBS_URL="redis://cache/0?password=hunter2")["DIBS_URL"] == "redis://cache/0"
    assert seen(cli, "--url", cli.url, "--pass-url", DIBS_URL=secret)["DIBS_URL"] == secret
    assert "hunter2" not in seen(cli, "--url", cli.url, DIBS_URL="ana:hunter2@cache")["DIBS_URL"]
    odd = "redis://cache/0?p%61ssword=hunter2&auth=hunter2&ssl=1"
    assert seen(cli, "--url", cli.url, DIBS_URL=odd)["DIBS_URL"] == "redis://cache/0?ssl=1"
    assert "DIBS_URL" not in seen(cli, "--url", cli.url, DIBS_URL=None)


def test_a_password_on_the_command_line_is_warned_of_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--url=etcd://:hunter2@cache/0"],
        ["--url", "ana:hunter2@cache"],
        ["--url", "redis://ana:hunter2/2@cache:99999"],
        ["--ulr", "a://:hunter2@h"],
        ["--timeout", "a://:hunter2@h"],
        ["a://b:hunter2@h"],
    ):
        assert run_here("x", *words, "--", "true") == USAGE
        said = capsys.readouterr()
        if any(word.startswith("--url") for word in words):  # not behind a mistake
            assert "can see the password in --url" in said.err
            assert "DIBS_URL or --url-file" in said.err
        assert "hunter2" not in said.err + said.out


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


def test_a_file_that_does_not_say_which_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "url"
    for content, says in (
        (None, "No such file or directory"),
        (b"", "must contain one line, the URL"),
        (b" \n\n", "must contain one line, the URL"),
        (b"sqlite:///hunter2\nsqlite:///b\n", "must contain one line, the URL"),
        (b"sqlite:///hunter2\xff\n", ": not UTF-8"),
        (b"hunter2", "a store's URL looks like scheme://"),
        (b"memory://hunter2", "private to one process"),
    ):
        if content is not None:
            file.write_bytes(content)
            file.chmod(0o600)
        assert run_here("x", "--url-file", str(file), "--", "true") == USAGE
        said = capsys.readouterr()
        assert says in said.err
        assert "hunter2" not in said.err + said.out


@pytest.mark.gate
def test_it_works_without_the_directory_it_was_started_in(cli: Cli) -> None:
    gone = cli.directory / "gone"
    script = f'mkdir {gone} && cd {gone} && rmdir {gone} && exec "$@"'
    done = cli.process("sh", "-c", script, "sh", *COMMAND, "run", "x", "--", *ECHO, "here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "here", "")


# Exit statuses: the command's own, or one of the few of `dibs run`, with a message that helps.


def test_the_status_is_the_commands(cli: Cli) -> None:
    for script, status in (("exit 76", 76), (f"kill -{signal.SIGKILL:d} $$", 128 + signal.SIGKILL)):
        done = cli.run("run", "x", "--", "sh", "-c", script)
        assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.gate
def test_a_command_that_cannot_be_executed_ends_as_under_env_and_with_a_hint(cli: Cli) -> None:
    def put(name: str, text: str, mode: int) -> str:
        file = cli.directory / name
        file.write_text(text)
        file.chmod(mode)
        return str(file)

    commands = {
        "no-such-command": (NOT_FOUND, ""),
        "": (NOT_FOUND, ""),
        str(cli.directory): (CANNOT_RUN, ""),
        put("no-x", "#!/bin/sh\n", 0o600): (CANNOT_RUN, ""),
        put("lost", "#!/no/such/interpreter\n", 0o700): (NOT_FOUND, "the interpreter in its #! line does not exist"),
        put("file", "", 0o600) + "/under": (CANNOT_RUN, ""),
        "echo hi": (NOT_FOUND, "dibs run uses no shell"),
    }
    for command, (status, _) in commands.items():
        assert subprocess.run(["env", command], capture_output=True, check=False).returncode == status
    put("here", "#!/bin/sh\n", 0o700)
    own = {  # env hands the first to a shell, and takes the last for a variable
        put("text", "exit 3\n", 0o700): (CANNOT_RUN, "it has no #! line"),
        "here": (NOT_FOUND, "write ./here"),
        "A=1": (NOT_FOUND, "env A=B"),
    }
    for command, (status, hint) in {**commands, **own}.items():
        done = cli.run("run", "x", "--", command)
        assert (command, done.returncode) == (command, status)
        assert done.stderr.startswith(f"dibs run: {command!a} cannot be run: ")
        assert hint in done.stderr
        assert done.stderr.count("\n") == 1
    assert cli.client().inspect("x").holders == ()


def test_a_command_is_looked_for_where_env_looks(cli: Cli) -> None:
    script = cli.directory / "bin" / "hello"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho found\n")
    script.chmod(0o700)
    long = ":".join([f"/nowhere/{n:06}" for n in range(7000)] + [str(script.parent), os.environ["PATH"]])
    assert len(long) > 100_000
    assert cli.run("run", "x", "--", "hello", PATH=long).stdout == "found\n"
    assert cli.run("run", "x", "--", "hello").returncode == NOT_FOUND


BAD = [
    (["x", "--timeout", "-1", "--", "true"], "'-1' is not a duration"),
    (["x", "--timeout", "nan", "--", "true"], "'nan' is not a duration"),
    (["x", "--timeout", "9" * 400, "--", "true"], "finite"),
    (["x", "--timeout", "5 minutes", "--", "true"], "write 30, 0.5, 500ms, 30s, 5m, 2h or 1d"),
    (["x", "--timeout", "1", "-n", "--", "true"], "-n and --timeout exclude each other"),
    (["x", "--lease", "0.1", "--", "true"], "at least 0.5 s"),
    (["x", "--lease", "many", "--", "true"], "is not a duration"),
    (["x", "--max-hold", "0", "--", "true"], "max_hold must be at least"),
    (["x", "--permits", "2", "--", "true"], "--permits N needs --of M"),
    (["x", "--permits", "two", "--of", "3", "--", "true"], "--permits"),
    (["x", "--of", "0", "--", "true"], "from 1 to"),
    (["x", "--of", "1.5", "--", "true"], "--of"),
    (["x", "--of", "2", "--shared", "--", "true"], "--of M means a semaphore"),
    (["x", "--shared", "--exclusive", "--", "true"], "not allowed with"),
    (["x", "--info", "nothing", "--", "true"], "--info takes key=value, not 'nothing'"),
    (["x", "--info", "=v", "--", "true"], "--info takes key=value"),
    (["x", "--info", f"k={'v' * 20_000}", "--", "true"], "info is too large"),
    (["x", "--busy-exit-code", "256", "--", "true"], "0 to 255, not '256'"),
    (["x", "--busy-exit-code", "-1", "--", "true"], "0 to 255, not '-1'"),
    (["x", "--url", "", "--", "true"], "looks like scheme://"),
    (["x", "--url", "sqlite://host/locks.db", "--", "true"], "sqlite"),
    (["x", "--url", "nothing://host", "--", "true"], "nothing://"),
    (["x", "--url", "memory://", "--", "true"], "private to one process"),
    (["x", "--url", "Memory://", "--", "true"], "private to one process"),
    (["x", "--url", "a://b", "--url-file", "c", "--", "true"], "not allowed with"),
    (["x", "--namespace", "a\nb", "--", "true"], "control character"),
    (["", "--", "true"], "the name is empty"),
    (["a\nb", "--", "true"], "control character"),
    (["a" * 513, "--", "true"], "513 bytes long"),
    (["\udcff", "--", "true"], "is not UTF-8"),
    (["x", "--force", "--", "true"], "--force"),
    (["x", "--tim", "3", "--", "true"], "--tim"),
    (["x", "--json=1", "--", "true"], "--json"),
    (["x", "--timeout"], "expected one argument"),
    ([], "give the name of the lock, then -- and the command"),
    (["x"], "give the command after --"),
    (["x", "true"], "write the command after --"),
    (["--"], "give the name of the lock"),
    (["--", "x", "--"], "give the command after --"),
]


def test_a_bad_command_line_is_64_and_says_why(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIBS_URL", cli.url)
    for words, says in BAD:
        assert (words, run_here(*words)) == (words, USAGE)
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("dibs run: ")
        assert says in said.err
        assert said.err.count("\n") == 1
    assert not cli.path.exists(), "the store was not touched"
    for permits, of in (("3", "2"), ("0", "5")):  # which the store knows
        done = cli.run("run", "x", "--permits", permits, "--of", of, "--", "true")
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert f"{permits} of {of} permits" in done.stderr


def test_a_store_that_cannot_be_used_is_69(cli: Cli) -> None:
    foreign = cli.directory / "foreign.db"
    foreign.write_text("something else entirely\n" * 100)
    foreign.chmod(0o600)
    nowhere = cli.directory / "nowhere" / "locks.db"
    for path, says in ((foreign, "foreign.db"), (nowhere, f"create {nowhere.parent}"), (cli.directory, "regular file")):
        done = cli.run("run", "x", "-n", "--", "echo", "ran", DIBS_URL=f"sqlite:///{path}")
        assert (done.returncode, done.stdout) == (UNREACHABLE, "")
        assert f'dibs run: "x" on sqlite:///{path}: ' in done.stderr
        assert says in done.stderr
        assert "Next: " in done.stderr
    assert foreign.read_text().startswith("something else")


def test_with_json_all_that_is_said_is_json(cli: Cli) -> None:
    hold = cli.client().lock("held").acquire()
    assert hold is not None
    url = cli.directory / "url"
    url.write_text(cli.url)
    url.chmod(0o644)
    expected = [
        (["held", "-n", "--", "true"], BUSY, "busy", "not free"),
        (["x", "--", "no-such-command"], NOT_FOUND, "cannot-run", "'no-such-command' cannot be run"),
        (["x", "--lease", "0.1", "--", "true"], USAGE, "error", "at least 0.5 s"),
        (["x", "--url", f"sqlite:///{cli.path}/x", "--", "true"], UNREACHABLE, "error", "locks.db"),
        (["x", "--url-file", str(url), "--", "true"], 0, "warning", "chmod 600"),
    ]
    for words, status, event, says in expected:
        done = cli.run("run", "--json", *words)
        (said,) = map(json.loads, done.stderr.splitlines())
        assert (done.returncode, done.stdout, said["event"]) == (status, "", event)
        assert says in said["text"]
        if event == "busy":
            assert said["name"] == "held"
            assert [(holder["token"], holder["pid"]) for holder in said["holders"]] == [(hold.token, os.getpid())]
    assert cli.run("run", "held", "--json", "--skip", "--", "true").stderr == ""


def test_a_store_whose_driver_is_missing(cli: Cli) -> None:
    """A supervisor that starts it again would do so in vain."""
    (cli.directory / "redis.py").write_text("raise ImportError('there is none')")
    done = cli.run("run", "x", "--", "true", DIBS_URL="redis://cache", PYTHONPATH=str(cli.directory))
    assert done.returncode == USAGE
    assert "Next: pip install 'dibs[redis]'" in done.stderr
