"""What `dibs run` exits with: the command's own status, and its few own ones, each with a message that helps."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from cli.commands import Cli
from cli.logs import Logged, in_this_process

USAGE, UNREACHABLE, BUSY, LOST, CANNOT_RUN, NOT_FOUND = 64, 69, 75, 76, 126, 127


@pytest.mark.parametrize("status", [0, 76, 255])
def test_the_status_is_the_commands(cli: Cli, status: int) -> None:
    done = cli.run("run", "x", "--", "sh", "-c", f"exit {status}")
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_a_signal_ended(cli: Cli, number: signal.Signals) -> None:
    assert cli.run("run", "x", "--", "sh", "-c", f"kill -{number:d} $$").returncode == 128 + number


def test_what_cannot_be_executed_ends_as_under_env(cli: Cli) -> None:
    def put(name: str, text: str, mode: int) -> str:
        file = cli.directory / name
        file.write_text(text)
        file.chmod(mode)
        return str(file)

    commands = {
        "no-such-command": NOT_FOUND,
        "": NOT_FOUND,
        str(cli.directory): CANNOT_RUN,
        put("no-x", "#!/bin/sh\n", 0o600): CANNOT_RUN,
        put("lost", "#!/no/such/interpreter\n", 0o700): NOT_FOUND,
        put("file", "", 0o600) + "/under": CANNOT_RUN,
    }
    for command, status in commands.items():
        assert subprocess.run(["env", command], capture_output=True, check=False).returncode == status
    no_shell = put("text", "exit 3\n", 0o700)  # which env hands to a shell
    for command, status in {**commands, no_shell: CANNOT_RUN}.items():
        done = cli.run("run", "x", "--", command)
        assert (command, done.returncode) == (command, status)
        assert done.stderr.startswith(f"dibs run: {command!a} cannot be run: ")
        assert done.stderr.count("\n") == 1
    assert cli.client().inspect("x").holders == ()


def test_what_was_probably_meant_is_said(cli: Cli) -> None:
    for name, text in (("odd", "#!/no/such/interpreter\n"), ("bare", "echo\n"), ("here", "#!/bin/sh\n")):
        (cli.directory / name).write_text(text)
        (cli.directory / name).chmod(0o755)
    for word, hint in (
        ("./odd", "the interpreter in its #! line does not exist"),
        ("./bare", "it has no #! line"),
        ("here", "write ./here"),
        ("echo hi", "dibs run uses no shell"),
        ("A=1", "env A=B"),
    ):
        done = cli.run("run", "x", "--", word)
        assert done.returncode in (126, 127)
        assert hint in done.stderr


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


@pytest.mark.parametrize(("words", "says"), BAD, ids=[ascii(" ".join(words))[1:40] for words, _ in BAD])
def test_a_bad_command_line_is_64_and_says_why(
    cli: Cli, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIBS_URL", cli.url)
    assert in_this_process(words) == USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dibs run: ")
    assert says in said.err
    assert said.err.count("\n") == 1
    assert not cli.path.exists(), "the store was not touched"


@pytest.mark.parametrize(("permits", "of"), [("3", "2"), ("0", "5")])
def test_permits_that_can_never_be_held(cli: Cli, permits: str, of: str) -> None:
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
    """Of busy, of what cannot be run, of mistakes and of a store that is not there; warnings too."""
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


def test_with_json_a_loss_is_one_line(cli: Cli) -> None:
    """What the library logs of it does not stand between."""
    client = cli.client()
    command = Logged(cli, "x", "--json", "--lease", "6", on_term="0")
    command.begun()
    for suffix in ("", "-wal", "-shm"):
        cli.path.with_name(f"locks.db{suffix}").unlink(missing_ok=True)
    status, said = command.end()
    assert status == LOST
    assert json.loads(said)["event"] == "lost"
    assert client.inspect("x").holders == ()


def test_a_store_whose_driver_is_missing(cli: Cli) -> None:
    """A supervisor that starts it again would do so in vain."""
    (cli.directory / "redis.py").write_text("raise ImportError('there is none')")
    done = cli.run("run", "x", "--", "true", DIBS_URL="redis://cache", PYTHONPATH=str(cli.directory))
    assert done.returncode == USAGE
    assert "Next: pip install 'dibs[redis]'" in done.stderr
