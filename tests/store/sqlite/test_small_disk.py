"""A store on a tiny file system that gets full, or can only be read: never a false grant, and all works again later.

Each scenario is a program in a mount namespace of its own: test_small_disk.py sqlite|readonly|postgresql DIRECTORY
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

import dibs
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.supervisor import Server, until

pytestmark = pytest.mark.gate

_UNSHARED = ["unshare", "--mount", "--propagation", "private"]
_NO_ROOM = ("No space left", "could not extend", "full", "I/O")


def run(scenario: str, place: Path) -> None:
    """It must not fail; skips the test where there are no mount namespaces."""
    probe = [*_UNSHARED, "mount", "-t", "tmpfs", "tmpfs", str(place)]
    if (
        shutil.which("unshare") is None
        or subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode
    ):
        pytest.skip("no mount namespace of one's own here")
    tests = Path(__file__).parents[2]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": f"{tests}:{tests.parent / 'src'}"}
    words = [*_UNSHARED, sys.executable, __file__, scenario, str(place)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=170, check=False, env=env)
    print("figure:", scenario, done.stdout.strip())
    assert (done.returncode, done.stdout[:7]) == (0, "refused"), done.stderr


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def tries(client: dibs.Client, name: str) -> dibs.Hold | dibs.StoreError | None:
    try:
        return client.lock(name).acquire(timeout=0)
    except dibs.StoreError as error:
        return error


def full(directory: Path, url: str, seconds: float) -> None:
    """A name is granted to one, before, while and after the disk is full."""
    one, other = dibs.connect(url, lease=seconds), dibs.connect(url, lease=seconds)
    kept = one.lock("kept").acquire(timeout=10)
    assert kept is not None
    assert other.lock("kept").acquire(timeout=0) is None
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    refused, number, begun = 0, 0, time.monotonic()
    while refused < 5 or time.monotonic() < begun + 1.5 * seconds:
        number += 1
        assert time.monotonic() < begun + 60, "the disk was never full"
        name = f"{'n' * 200}{number}"
        got = tries(one, name)
        if isinstance(got, dibs.Hold):
            rival = tries(other, name)
            assert not isinstance(rival, dibs.Hold) or got.lost.is_set(), "granted twice"
        elif isinstance(got, dibs.StoreError) and any(words in str(got) for words in _NO_ROOM):
            refused += 1
        rival = tries(other, "kept")
        assert not isinstance(rival, dibs.Hold) or kept.lost.is_set(), "taken from a valid holder"
        if isinstance(rival, dibs.Hold):
            with suppress(dibs.StoreError):
                rival.release()
    filler.unlink()
    until(lambda: isinstance(tries(one, "after"), dibs.Hold), what="there is room again")
    assert tries(other, "after") is None
    one.close()
    other.close()
    print(f"refused {refused} of {number}")


def sqlite(directory: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(directory))
    full(directory, f"sqlite:///{directory}/locks.db", 3.0)
    with closing(sqlite3.connect(directory / "locks.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@contextmanager
def only_read(directory: Path) -> Iterator[None]:
    mount("-o", "remount,ro", str(directory))
    yield
    mount("-o", "remount,rw", str(directory))


def readonly(directory: Path) -> None:
    """Before the first use, and with a database that is there."""
    mount("-t", "tmpfs", "-o", "mode=0700", "tmpfs", str(directory))
    tokens = []
    for _ in range(2):
        with dibs.connect(f"sqlite:///{directory}/locks.db") as client:
            with only_read(directory):
                error = tries(client, "a")
                assert isinstance(error, dibs.StoreError), error
                assert str(directory) in str(error)
            with client.lock("a", timeout=5) as hold:
                tokens.append(hold.token)
    assert tokens == sorted(set(tokens))
    print("refused")


def postgresql(directory: Path) -> None:
    """The tables are in a table space there; the log is elsewhere, or the server would stop altogether."""
    directory = directory.resolve()
    mount("-t", "tmpfs", "-o", "size=3m,mode=0755", "tmpfs", str(directory))
    space, kind = directory / "space", PostgreSQL()
    space.mkdir()
    if kind.user is not None:
        shutil.chown(space, kind.user.pw_uid, kind.user.pw_gid)
    with Server(kind) as server:
        server.ask(f"CREATE TABLESPACE small LOCATION '{space}'")
        server.ask("ALTER ROLE dibs SET default_tablespace = small")
        full(directory, server.url(), 4.0)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("scenario", ["sqlite", "readonly", "postgresql"])
def test_a_small_disk(scenario: str) -> None:
    """In a directory of its own: those below pytest's are closed to the user that a server runs as."""
    if scenario == "postgresql":
        require(scenario)
    with tempfile.TemporaryDirectory(prefix="dibs-") as place:
        Path(place).chmod(0o755)
        run(scenario, Path(place))


if __name__ == "__main__":
    assert os.geteuid() == 0
    {"sqlite": sqlite, "readonly": readonly, "postgresql": postgresql}[sys.argv[1]](Path(sys.argv[2]))
