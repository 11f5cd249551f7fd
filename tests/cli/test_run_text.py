"""Texts of `dibs run`: help, names in every locale, the description of a command; no reader, no home, no user name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dibs
from cli.commands import ASCII, COMMAND, Cli
from dibs._shared import login
from dibs.cli.description import describe_command
from process.children import PATIENCE

OPTIONS = [
    "--url", "--url-file", "--namespace", "--json", "--timeout", "-n", "--skip", "--busy-exit-code", "--shared",
    "--exclusive", "--permits", "--of", "--lease", "--max-hold", "--info", "--pass-url",
]  # fmt: skip
"""The options of `run`, in the contract and beyond it."""
OTHERS = {
    "ls": ["PREFIX"],
    "show": ["NAME"],
    "watch": ["NAME", "--prefix"],
    "top": ["PREFIX", "--once", "--interval"],
    "wait": ["NAME"],
    "break": ["NAME", "--token", "--reason", "--yes"],
    "doctor": ["--ddl", "--timeout"],
    "exporter": ["--port", "--bind"],
    "demo": [],
    "completion": ["bash", "zsh", "fish"],
}


def test_help(cli: Cli) -> None:
    for words in ([], ["--help"], ["-h"], ["help"], ["help", "nothing"]):
        done = cli.run(*words)
        assert (words, done.returncode, done.stderr) == (words, 0 if words else 64, "")
        for command in ("run", *OTHERS):
            assert re.search(rf"^  {command} +\w", done.stdout, re.MULTILINE), command


def test_the_help_of_run_names_every_option(cli: Cli) -> None:
    done = cli.run("run", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(OPTIONS) <= set(re.findall(r"(?<!\S)--?[a-z-]+", done.stdout))
    statuses, variables = (
        ["64", "69", "75", "76", "126", "127"],
        ["DIBS_NAME", "DIBS_TOKEN", "DIBS_OWNER", "DIBS_LEASE"],
    )
    for word in [*statuses, *variables, "$DIBS_URL"]:
        assert word in done.stdout
    assert cli.run("help", "run").stdout == done.stdout
    assert cli.run("run", "--help", "--", "true").stdout == done.stdout


def test_each_command_has_help(cli: Cli) -> None:
    shared = ["--url", "--url-file", "--namespace", "--json"]
    fewer = {"demo": ["--url", "--json"], "completion": [], "exporter": shared[:-1]}
    for command, words in OTHERS.items():
        done = cli.run(command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        for word in (f"usage: dibs {command}", *words, *fewer.get(command, shared)):
            assert word in done.stdout


def test_version_and_unknown_commands(cli: Cli) -> None:
    assert cli.run("--version").stdout == f"dibs {dibs.__version__}\n"
    done = cli.run("rnu", "x", "--", "true")
    assert (done.returncode, done.stdout) == (64, "")
    assert "unknown command 'rnu'; did you mean run? The commands are run, ls" in done.stderr
    assert "unknown command 'xyz'. The commands are run, ls" in cli.run("xyz").stderr
    done = cli.run("--url", "x", "ls")
    assert (done.returncode, done.stdout) == (64, "")
    assert "options follow the command: dibs COMMAND '--url' ..." in done.stderr


@pytest.mark.gate
def test_the_module_is_the_command(cli: Cli) -> None:
    """python -m dibs and the script dibs say and do the same."""
    script = str(Path(sys.executable).with_name("dibs"))
    for words in ([], ["--version"], ["run", "--help"], ["rnu"], ["show"], ["run", "x", "--", "sh", "-c", "exit 3"]):
        ways = [cli.process(*way, *words) for way in ((script,), COMMAND)]
        said, again = [(done.returncode, done.stdout, done.stderr) for done in ways]
        assert said == again
        assert "__main__" not in said[1] + said[2]


def test_where_there_is_no_fork_it_is_said(cli: Cli) -> None:
    program = "import os, sys; del os.fork; from dibs.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for words in (["run", "x", "--", "true"], ["demo"]):
        done = cli.process(sys.executable, "-c", program, *words)
        said = f"dibs {words[0]}: this command needs a POSIX system, such as Linux\n"
        assert (done.returncode, done.stdout, done.stderr) == (64, "", said)
    assert cli.process(sys.executable, "-c", program, "ls").returncode == 0


def test_what_the_system_refuses_is_71(cli: Cli) -> None:
    for words in (["show", "x"], ["--version"], ["help"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*COMMAND, *words], env=cli.environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert (done.returncode, done.stderr) == (
            71,
            "dibs: the operating system refused: [Errno 28] No space left on device\n",
        )


@pytest.mark.gate
def test_a_name_is_the_same_lock_in_every_locale(cli: Cli) -> None:
    name = "café ☕"
    words = ("run", name, "--namespace", "é")
    command = ("--", "sh", "-c", 'printf %s "$DIBS_NAME" "$@"', "sh", "é")
    for number, more in enumerate(({"LC_ALL": "C.UTF-8"}, ASCII)):
        free = cli.process(*COMMAND, *words, *command, text=False, **more)
        assert (more, free.returncode, free.stdout, free.stderr) == (more, 0, f"{name}é".encode(), b"")
        with cli.client(namespace="é").lock(name):
            busy = cli.process(*COMMAND, *words, "-n", *command, **more)
            assert busy.returncode == 75
            assert busy.stderr.startswith('dibs run: "caf')
        other = f"x{number}"
        cli.start("run", other, "--info", "who=é", "--", "sh", "-c", "echo; sleep 60", "é", **more).hear()
        info = cli.client().inspect(other).holders[0].info
        assert dict(info) == {"command": "sh -c 'echo; sleep 60' 'é'", "who": "é"}


SHOWN = [
    (["backup", "--to", "/srv/a b"], "backup --to '/srv/a b'"),
    (["x", "--password", "hunter2", "y"], "x --password *** y"),
    (["x", "--password=hunter2"], "x '--password=***'"),
    (["x", "--api-key", "hunter2"], "x --api-key ***"),
    (["x", "--AUTH-TOKEN", "hunter2"], "x --AUTH-TOKEN ***"),
    (["x", "--password", "--token", "hunter2"], "x --password *** ***"),
    (["env", "PGPASSWORD=hunter2", "pg_dump"], "env 'PGPASSWORD=***' pg_dump"),
    (["env", "AWS_SECRET_ACCESS_KEY=hunter2"], "env 'AWS_SECRET_ACCESS_KEY=***'"),
    (["x", "redis://:hunter2@h/0"], "x 'redis://***@h/0'"),
    (["x", "--url=postgresql://ana:hunter2@h/db"], "x '--url=postgresql://***@h/db'"),
    (["x", "a://u:hun/ter2@h"], "x 'a://***@h'"),
    (["x", "a://u:p@hunter2@h"], "x 'a://***@h'"),
    (["curl", "-H", "Authorization: Bearer hunter2"], "curl -H 'Authorization:***'"),
    (["curl", "-H", "X-A: Bearer hunter2"], "curl -H 'X-A: Bearer ***'"),
    (["curl", "-u", "ana:hunter2", "h"], "curl -u ana:*** h"),
    (["curl", "--user", "ana:hunter2"], "curl --user ana:***"),
    (["curl", "-uana:hunter2", "h"], "curl '-uana:***' h"),
    (["/usr/bin/mysql", "-phunter2", "db"], "/usr/bin/mysql '-p***' db"),
    (["sshpass", "-p", "hunter2", "ssh", "h"], "sshpass -p *** ssh h"),
    (["redis-cli", "-a", "hunter2"], "redis-cli -a ***"),
    (["env", "DB_PW=hunter2", "x"], "env 'DB_PW=***' x"),
    (["pytest", "tests/test_auth.py::test_x"], "pytest tests/test_auth.py::test_x"),
    (["make", "author=bob"], "make author=bob"),
    (["tar", "-pxf", "a"], "tar -pxf a"),
    (["sh", "-c", "mysql --password hunter2 db"], "sh -c 'mysql --password ***'"),
    (["post", '{"password": "hunter2"}'], "post '{\"password\":***'"),
    (["x", "password: hunter2\nand more"], "x 'password:***'"),
    (["x", "\udcff"], r"x '\xff'"),
    (["x", "y" * 500], "x " + "y" * 195 + "..."),
]


def test_what_is_shown_of_a_command() -> None:
    for words, expected in SHOWN:
        assert describe_command(words) == expected
        assert "hunter2" not in describe_command(words)
    for word in ("a" * 100_000, "pass" * 25_000, "a://" * 25_000, "--" * 50_000, " --token" * 12_000):
        assert len(describe_command([word, word, "--password", word])) <= 200, "and at once"


@pytest.mark.gate
def test_nobody_reads_what_is_said(cli: Cli) -> None:
    """The status stays what it is; a reader that went away is a broken pipe."""
    reads, writes = os.pipe()
    os.close(reads)
    with cli.client().lock("x"), os.fdopen(writes, "w") as broken:
        for words, status in (
            (["run", "x", "-n", "--", "true"], 75),
            (["run", "y", "--", "sh", "-c", "exit 3"], 3),
            (["--help"], 141),
            (["--version"], 141),
        ):
            stderr = subprocess.PIPE if status == 141 else broken
            done = subprocess.run(
                [*COMMAND, *words], env=cli.environment(), stdout=broken, stderr=stderr, timeout=PATIENCE, check=False
            )
            assert (done.returncode, done.stderr) == (status, b"" if status == 141 else None)


def test_an_empty_environment_also_without_a_locale(cli: Cli) -> None:
    """As in a crontab, or by env -i: no HOME, no PATH. The home is that of the user's entry: so the store is named.
    Python chooses a locale for itself, and puts it where its children see it."""
    words = [*COMMAND, "run", "x", "--url", cli.url, "--", "/usr/bin/env"]
    done = subprocess.run(words, env={}, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stderr == ""
    assert {line.partition("=")[0] for line in done.stdout.splitlines()} == {
        "DIBS_NAME", "DIBS_TOKEN", "DIBS_OWNER", "DIBS_LEASE"
    }  # fmt: skip
    done = subprocess.run(words, env={"LC_CTYPE": "C"}, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "LC_CTYPE=C.UTF-8" not in done.stdout


def test_a_user_without_an_entry_is_a_number_and_needs_a_store(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under any number."""

    def no_entry(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    assert login() == f"uid {os.getuid()}"
    assert cli.run("ls", HOME=None, DIBS_URL=None, XDG_STATE_HOME=str(cli.directory)).returncode == 0
    homeless = cli.run("ls", HOME=None, DIBS_URL=None)
    assert homeless.returncode == 64
    assert "set DIBS_URL=sqlite:////" in homeless.stderr


@pytest.mark.gate
def test_a_python_without_ctypes(cli: Cli) -> None:
    """There the command is not tied to us by the kernel; the guard is, as ever."""
    (cli.directory / "ctypes.py").write_text("raise ImportError('not built')\n")
    path = os.pathsep.join([str(cli.directory), os.environ.get("PYTHONPATH", "")])
    done = cli.run("run", "x", "--", "sh", "-c", "exit 3", PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (3, "")


def test_in_a_cluster_a_store_must_be_named(cli: Cli) -> None:
    done = cli.run("run", "x", "--", "true", DIBS_URL=None, KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert (done.returncode, done.stdout) == (64, "")
    assert "DIBS_URL" in done.stderr
    assert not (cli.directory / ".local").exists()
    assert cli.run("run", "x", "--", "true", KUBERNETES_SERVICE_HOST="10.0.0.1").returncode == 0


def test_without_a_url_it_is_this_machine_only(cli: Cli) -> None:
    state = {"XDG_STATE_HOME": str(cli.directory / "state"), "DIBS_URL": None}
    busy = (*COMMAND, "run", "x", "-n", "--", "true")
    done = cli.run("run", "x", "--", *busy, **state)
    assert done.returncode == 75
    assert done.stderr.startswith('dibs run: "x" (this machine only): not free: held by ')
    as_json = cli.run("run", "x", "--", *busy[:-2], "--json", *busy[-2:], **state)
    assert "(this machine only)" in json.loads(as_json.stderr)["text"]
