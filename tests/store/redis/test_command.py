"""`dibs run` on a server: from waiting to running, and a password that is seen by nobody. The other commands are the
same on every store: tests/cli."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import Cli
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server

SECRET = "s3cr3t-w0rd"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    require("redis")
    with Server(Redis(password=SECRET)) as server:
        made = Cli(tmp_path)
        made.url = server.url()
        try:
            yield made
        finally:
            made.close()


def test_run_waits_for_the_lock_and_shows_the_password_to_nobody(cli: Cli, tmp_path: Path) -> None:
    """Neither in the list of processes, nor in the environment of the command, nor on the terminal."""
    file = tmp_path / "url"
    file.write_text(f"{cli.url}\n")
    file.chmod(0o600)
    client = cli.client()
    hold = client.lock("job").acquire(timeout=30)
    assert hold is not None
    told = "echo $DIBS_TOKEN; env; echo here; exec sleep 60"
    words = ("run", "job", "--url-file", str(file), "--timeout", "60", "--", "sh", "-c", told)
    running = cli.start(*words, DIBS_URL=None)
    cli.in_queue("job", 1)
    client.break_("job", token=hold.token)
    assert int(running.hear()) > hold.token
    heard = []
    while (line := running.hear()) != "here":
        heard.append(line)
    group = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _belongs(path, running.process.pid)]
    assert len(group) >= 2, "the wrapper and its command"
    assert client.inspect("job").holders
    assert not [path for path in group if SECRET.encode() in path.read_bytes()]
    running.process.terminate()
    assert running.end() == 128 + 15
    out, err = running.rest()
    assert SECRET not in "\n".join([*heard, *out, *err])
    assert not client.inspect("job").holders


def _belongs(path: Path, pid: int) -> bool:
    """It is that process, or a child of it."""
    try:
        fields = path.with_name("stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return path.parent.name == str(pid) or fields[1] == str(pid)
