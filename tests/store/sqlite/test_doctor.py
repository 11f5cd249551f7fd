"""`doctor` on the embedded store: each finding appears with its condition, and goes with it.

What needs another machine than this one (file systems, namespaces, no /proc) is in tests/cli/test_doctor.py.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

import dibs
from dibs.backends.sqlite import doctor
from store.sqlite.places import PATIENCE, beside, change, held, names_in

Connect = Callable[..., dibs.Client]
ALONE = "at most one valid holder"
NOTICED = "is free within"
"""The size of the largest value of a cell."""


def said(client: dibs.Client, level: str) -> list[str]:
    return [finding.what for finding in client.doctor() if finding.level == level]


def dangers(client: dibs.Client) -> list[str]:
    """But for the room that is left on the machine that runs this."""
    found = [finding for finding in client.doctor() if finding.level == "danger"]
    assert all(finding.fix for finding in found), found
    return [finding.what for finding in found if "on the disk" not in finding.what]


def says(texts: list[str], *words: str) -> list[str]:
    return [text for text in texts if all(word in text for word in words)]


def on(kind: str, path: Path) -> str:
    """A text of /proc/self/mountinfo that says so."""
    device = path.parent.stat().st_dev
    return f"1 0 {os.major(device)}:{os.minor(device)} / / rw - {kind} x rw\n"


def test_a_good_place(path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.backends.sqlite.files._mounts", lambda: on("ext4", path))
    client = connect()
    assert dangers(client) == []
    promises = said(client, "promise")
    for words in (ALONE, "first come", NOTICED, "over reboots and power cuts", "cells and fences", "wall clock"):
        assert says(promises, words), words
    assert client.doctor()[0].what == f"sqlite:///{path}, SQLite {sqlite3.sqlite_version}"


def test_nothing_of_it_stays(path: Path, connect: Connect) -> None:
    client = connect()
    client.doctor()  # SQLite closes no file that it has locked elsewhere in the process; it opens it again from there
    before = names_in(beside(path)), names_in(Path("/proc/self/fd"))
    for _ in range(5):
        client.doctor()
    assert (names_in(beside(path)), names_in(Path("/proc/self/fd"))) == before


def kernel_locks(path: Path) -> list[str]:
    """The locks of this process on the database itself."""
    wanted = f":{path.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return sorted(line.partition(": ")[2] for line in lines if wanted in line and f" {os.getpid()} " in line)


def test_sqlites_own_locks_stay(path: Path, connect: Connect) -> None:
    """They are this process's: whoever opens and closes the file by himself drops them all."""
    client = connect()
    with client.lock("a", timeout=PATIENCE):
        before = kernel_locks(path)
        assert before, "SQLite keeps one on a database that is open"
        client.doctor()
        assert kernel_locks(path) == before


def test_a_liveness_file_that_is_gone(path: Path, connect: Connect) -> None:
    holder, other = connect(), connect()
    hold = held(holder)
    assert dangers(other) == []
    live = beside(path) / f"{holder._core.me.id.hex()}.live"
    aside = live.with_suffix(".aside")
    live.rename(aside)
    for client in (holder, other):
        assert says(dangers(client), "1 holders or waiters", str(beside(path)))
    live.write_bytes(b"")
    assert dangers(other), "another file is no better than none"
    aside.rename(live)
    assert dangers(other) == []
    live.unlink()
    hold.release()
    assert dangers(other) == [], "nothing depends on it"


def test_who_leaves_while_the_doctor_looks_is_not_missed(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving, client = connect(), connect()
    assert leaving.lock("a").acquire(timeout=PATIENCE) is not None
    look, looked = doctor._is_there, []

    def leave_first(path: Path, inode: tuple[int, int]) -> bool:
        leaving.close()
        looked.append(look(path, inode))
        return looked[-1]

    monkeypatch.setattr(doctor, "_is_there", leave_first)
    assert dangers(client) == []
    assert looked == [False], "it stood in the database and its file was gone: the case that is meant"


@pytest.mark.parametrize("excludes", ["nobody", "everybody"])
def test_locks_on_files_that_do_not_work(connect: Connect, monkeypatch: pytest.MonkeyPatch, excludes: str) -> None:
    client, real = connect(), fcntl.flock
    client.inspect("a")

    def broken(file: int, how: int) -> None:
        if excludes == "everybody":
            if how & fcntl.LOCK_SH:
                raise BlockingIOError
            real(file, how)

    words = ("live holders are taken for dead",) if excludes == "nobody" else ("death", "not noticed")
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", broken)
        assert says(dangers(client), *words)
        assert bool(says(said(client, "promise"), ALONE)) == (excludes == "everybody"), "then the lease decides"
        assert not says(said(client, "promise"), NOTICED)
    assert dangers(client) == []


def test_a_table_that_was_meddled_with(path: Path, connect: Connect) -> None:
    client = connect()
    client.inspect("a")
    change(path, "CREATE TRIGGER t AFTER INSERT ON claims BEGIN DELETE FROM claims; END")
    assert says(dangers(client), "not those of dibs", "refused")
    assert not says(said(client, "promise"), ALONE)
    with pytest.raises(dibs.StoreError, match="not those of dibs"):
        connect().doctor()
    change(path, "DROP TRIGGER t")
    assert dangers(client) == []


def test_damage_since_it_was_opened(path: Path, connect: Connect) -> None:
    client = connect()
    holds = [client.lock(f"held {number:02}").acquire(timeout=PATIENCE) for number in range(20)]
    assert all(holds)
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    assert content.count(b"dibs:held 17") == 1
    with path.open("r+b") as file:
        file.seek(content.index(b"dibs:held 17"))
        file.write(b"di`s:held 17")
    assert says(dangers(client), "SQLite's own check fails")
    assert not says(said(client, "promise"), ALONE)


@pytest.mark.parametrize(("kind", "level"), [("fuse.newfs", "note"), ("tmpfs", "danger")])
def test_tokens_that_a_new_file_would_begin_below(
    path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch, kind: str, level: str
) -> None:
    """As after a wall clock that was a day ahead when the file was made."""
    monkeypatch.setattr("dibs.backends.sqlite.files._mounts", lambda: on(kind, path))
    client = connect()
    client.inspect("a")
    if level == "note":
        assert says(said(client, "note"), "fuse.newfs"), "a file system that nobody knows"
    change(path, "UPDATE store SET base = base + 120000000, reserved = reserved + 120000000")
    assert not says(said(client, level), "ahead of the wall clock"), "a few minutes are nothing"
    change(path, "UPDATE store SET base = base + 86280000000, reserved = reserved + 86280000000")
    assert says(said(client, level), "tokens are 24h0m ahead of the wall clock")


def test_a_directory_that_others_may_write_to(path: Path, connect: Connect) -> None:
    client, words = connect(), ("other users may remove", str(path.parent))
    client.inspect("a")
    assert not says(said(client, "note"), *words)
    path.parent.chmod(0o770)
    assert says(said(client, "note"), *words)
    path.parent.chmod(0o700)
    if os.geteuid() == 0:  # only root can give directories away
        os.chown(path.parent, 65534, 65534)
        assert says(said(client, "note"), *words)


def test_a_directory_for_temporary_files(tmp_path: Path, connect: Connect) -> None:
    above, directory = tmp_path / "above", tmp_path / "above" / "place"
    directory.mkdir(parents=True, mode=0o700)
    client = connect(directory / "locks.db")
    words = (str(directory), "temporary files")
    assert not says(said(client, "note"), *words)
    directory.chmod(0o1777)
    assert says(said(client, "note"), *words)
    above.chmod(0o1777)
    assert len(says(said(client, "note"), "temporary files")) == 1, "once is enough"
    assert not says(said(client, "note"), "other users may remove")


def test_libraries_with_a_known_fault() -> None:
    for version in ((3, 40, 1), (3, 44, 5), (3, 45, 0), (3, 50, 6), (3, 51, 2)):
        assert list(doctor._library(version)), version
    for version in ((3, 44, 6), (3, 50, 7), (3, 51, 3), (3, 53, 0)):
        assert not list(doctor._library(version)), version


@pytest.mark.parametrize("field", ["f_bavail", "f_favail"])
def test_little_room_is_told_before_it_is_gone(connect: Connect, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """The edge itself; tests/cli/test_doctor.py has real file systems."""
    client, least = connect(), doctor.LEAST_ROOM if field == "f_bavail" else doctor.LEAST_FILES
    for left, expected in ((least, []), (least - 1, ["danger"])):
        room = {"f_frsize": 1, "f_bavail": 10**12, "f_files": 10**9, "f_favail": 10**9, field: left}
        with monkeypatch.context() as patched:
            patched.setattr(os, "statvfs", lambda _, room=room: SimpleNamespace(**room))
            assert [one.level for one in client.doctor() if "on the disk" in one.what] == expected


def test_a_standstill_is_an_error_with_an_end(path: Path, connect: Connect) -> None:
    """A client that is there already may look at any time; one that comes must write first."""
    client = connect()
    client.inspect("a")
    newcomer = connect(retry=0.3)
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert dangers(client) == []
        with pytest.raises(dibs.StoreUnavailable, match="stayed busy"):
            newcomer.doctor()
