"""`dibs` on a server: the commands that look and the one that runs, and a password that is seen by nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import Cli
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from process.children import until

SECRET = "s3cr3t-w0rd"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    with Server(Redis(password=SECRET)) as made:
        yield made


@pytest.fixture
def cli(tmp_path: Path, server: Server) -> Iterator[Cli]:
    made = Cli(tmp_path)
    made.url = f"{server.url()}?prefix={tmp_path.name}:"
    try:
        yield made
    finally:
        made.close()


def test_run_look_and_break(cli: Cli) -> None:
    """The whole way: somebody holds, somebody waits, both are shown, one is broken and the other runs."""
    holder = cli.holder()
    token = holder.takes("job")
    waiting = cli.start("run", "job", "--timeout", "40", "--", "sh", "-c", "echo token $DIBS_TOKEN; env")
    cli.in_line("job", 1)
    (listed,) = cli.json("ls")
    assert (listed["name"], listed["kind"], len(listed["waiters"])) == ("job", "mutex", 1)
    shown = json.loads(cli.run("show", "job", "--json").stdout)
    assert shown["holders"][0]["token"] == token
    assert "job" in cli.run("show", "job").stdout
    broken = cli.run("break", "job", "--token", str(token), "--yes")
    assert broken.returncode == 0, broken.stderr
    word, own = waiting.hear().split()
    assert word == "token"
    assert int(own) > token
    assert waiting.end() == 0
    out, err = waiting.rest()
    said = "\n".join([*out, *err, broken.stdout, broken.stderr])
    assert SECRET not in said, "the command, or whoever looks at the terminal, sees the password"
    assert cli.run("ls").stdout.count("job") == 0


def test_a_password_from_a_file_is_seen_by_nobody(cli: Cli, tmp_path: Path) -> None:
    """Neither in the list of processes nor in the environment of what is run."""
    file = tmp_path / "url"
    file.write_text(f"{cli.url}\n")
    file.chmod(0o600)
    running = cli.start("run", "job", "--url-file", str(file), "--", "sh", "-c", "echo here; sleep 30", DIBS_URL=None)
    assert running.hear() == "here"
    group = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _belongs(path, running.process.pid)]
    assert len(group) >= 2, "the wrapper and its command"
    for path in group:
        assert SECRET.encode() not in path.read_bytes()
    (child,) = [path for path in group if b"sleep 30" in path.read_bytes() and b"--url-file" not in path.read_bytes()]
    assert SECRET.encode() not in child.with_name("environ").read_bytes()
    assert cli.client().inspect("job").holders
    running.process.terminate()
    assert running.end() == 128 + 15
    until(lambda: not cli.client().inspect("job").holders, what="it is given back")


def _belongs(path: Path, pid: int) -> bool:
    """It is that process, or a child of it."""
    try:
        fields = path.with_name("stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return path.parent.name == str(pid) or fields[1] == str(pid)


def test_a_server_that_is_not_there(cli: Cli, server: Server) -> None:
    done = cli.run("run", "job", "--timeout", "1", "--", "true", DIBS_URL=f"redis://:{SECRET}@127.0.0.1:1")
    assert done.returncode == 69
    assert "redis://127.0.0.1:1" in done.stderr
    assert SECRET not in done.stderr
