"""Where the embedded store agrees to live, and what it leaves alone."""

from __future__ import annotations

import errno
import os
import pwd
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

import dibs
from dibs.backends.sqlite.files import file_system
from dibs.backends.sqlite.registration import Registration
from dibs.backends.sqlite.table import SqliteTable
from lab.stopwatch import Stopwatch
from store.sqlite.places import PATIENCE, Taking, beside, change, held, names_in, rows, until, url_of

Connect = Callable[..., dibs.Client]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(client: dibs.Client, *words: str, error: type[dibs.DibsError] = dibs.StoreError) -> str:
    """The text of the error; it comes at once, twice, and names the store."""
    texts = []
    for _ in range(2):
        with pytest.raises(error) as caught:
            client.lock("a").acquire(timeout=PATIENCE)
        assert caught.value.store is not None
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    for word in words:
        assert word in texts[0]
    return texts[0]


def works(client: dibs.Client) -> int:
    with client.lock("a", timeout=PATIENCE) as hold:
        assert client.lock("a").acquire(timeout=0) is None
        return hold.token


def test_files_are_private_whatever_the_umask(tmp_path: Path, connect: Connect) -> None:
    for mask in (0o000, 0o022, 0o077):
        path = tmp_path / oct(mask) / "locks.db"
        path.parent.mkdir(mode=0o700)
        old = os.umask(mask)
        try:
            hold = connect(path).lock("a").acquire(timeout=PATIENCE)
        finally:
            os.umask(old)
        assert hold is not None
        for file in path.parent.iterdir():
            assert mode(file) == (0o700 if file.is_dir() else 0o600), file
        assert not any(file.is_symlink() for file in beside(path).iterdir())
        hold.release()


def test_what_others_may_open_or_write_to_is_refused(path: Path, connect: Connect) -> None:
    beside(path).mkdir(mode=0o700)
    beside(path).chmod(0o755)
    refused(connect(), str(beside(path)), "private")
    beside(path).chmod(0o700)
    path.touch(mode=0o600)
    path.chmod(0o640)
    refused(connect(), f"chmod 600 {path}")
    path.chmod(0o600)
    works(connect())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_is_refused(path: Path, connect: Connect) -> None:
    works(connect())
    connect().close()
    os.chown(path, 65534, 65534)
    refused(connect(), "another user")
    os.chown(path, 0, 0)
    os.chown(beside(path), 65534, 65534)
    refused(connect(), str(beside(path)))


def test_a_link_to_a_good_database_is_refused(path: Path, connect: Connect, tmp_path: Path) -> None:
    """Two paths to one file would be two private directories: nobody would wake anybody."""
    other = tmp_path / "other.db"
    other.symlink_to(path)
    refused(connect(other), "symbolic link")
    assert not path.exists(), "a dangling link is not followed"
    works(connect())
    refused(connect(other), "symbolic link")
    other.unlink()
    os.link(path, other)
    refused(connect(other), "hard links")


def test_a_client_that_is_closed_during_its_first_use_says_so(
    path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were made, and are gone again before it is registered."""
    client, register = connect(), Registration.register

    def closed_first(registration: Registration, table: SqliteTable, now: float) -> None:
        registration.close()
        register(registration, table, now)

    monkeypatch.setattr(Registration, "register", closed_first)
    with pytest.raises(dibs.Closed):
        client.lock("a").acquire(timeout=0)


@pytest.mark.alone
def test_a_refused_client_makes_nothing_later_and_closes_at_once(path: Path, connect: Connect) -> None:
    """It asked for nothing that stands anywhere, so there is nothing to give back once the place is free: a client that
    has something to give back waits for 5 s when it closes."""
    path.mkdir(mode=0o700)
    client, other = connect(), connect()
    for one in (client, other):
        refused(one, "regular file")
    with Stopwatch() as watch:
        other.close()
        assert watch.seconds() < 3
    path.rmdir()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert not path.exists(), "a client whose acquire failed made the database behind its user's back"
        time.sleep(0.02)


def test_a_directory_that_everybody_may_write_to(path: Path, connect: Connect) -> None:
    path.parent.chmod(0o777)
    refused(connect(), "everybody", str(path.parent))
    path.parent.chmod(0o1777)
    works(connect())
    path.parent.chmod(0o700)


def test_a_missing_directory_is_named(connect: Connect, tmp_path: Path) -> None:
    where = tmp_path / "no" / "such"
    refused(connect(where / "locks.db"), str(where))
    assert not where.parent.exists()
    file = tmp_path / "file"
    file.touch()
    refused(connect(file / "locks.db"), str(file))


def test_a_foreign_database_is_refused_and_left_alone(path: Path, connect: Connect) -> None:
    for journal in ("delete", "wal"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal}")
            connection.execute("CREATE TABLE IF NOT EXISTS theirs (x)")
            connection.execute("INSERT INTO theirs VALUES (42)")
            connection.commit()
        path.chmod(0o600)
        before = path.read_bytes()
        refused(connect(), "another program")
        assert path.read_bytes() == before
        assert set(names_in(path.parent)) <= {"locks.db", "locks.db.d"}, "no journal, no log was made"
        assert rows(path, "SELECT x FROM theirs")[0] == (42,)


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, connect: Connect) -> None:
    for content in (b"hello\n", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(2000), bytes(4096)):
        path.write_bytes(content)
        path.chmod(0o600)
        client = connect()
        refused(client)
        for look in (lambda: client.inspect("a"), lambda: list(client.locks()), lambda: client.break_("a", token=1)):  # noqa: B023
            with pytest.raises(dibs.StoreError, match="sqlite:") as caught:
                look()
            assert caught.value.store == repr(client).split()[1].rstrip(":")  # type: ignore[attr-defined]
        assert path.read_bytes() == content


def test_another_format_is_refused(path: Path, connect: Connect) -> None:
    client = connect()
    works(client)
    client.close()
    ((ours,),) = rows(path, "PRAGMA user_version")
    for other, step in ((ours + 1, "upgrade dibs"), (ours - 1, "move the file away")):
        change(path, f"PRAGMA user_version = {other}")
        refused(connect(), step, str(other), error=dibs.Mismatch)
        assert rows(path, "PRAGMA user_version") == [(other,)]


@pytest.mark.gate
def test_a_database_that_cannot_be_opened_again(path: Path, connect: Connect) -> None:
    """Opening a second connection fails (here: it is no database any more): that is an error, not the end."""
    client = connect(lease=3)
    hold = held(client)
    with path.open("r+b") as file:
        file.write(b"no longer a database" * 50)
    newcomer, here = Taking(connect().lock("a"), 1), Taking(client.lock("a"), 1)
    for taking in (newcomer, here):
        taking.join(PATIENCE)
        assert not taking.is_alive(), "acquire(timeout=1) hangs"
    assert isinstance(newcomer.error, dibs.StoreError)
    until(hold.lost.is_set, what="the loss")  # the fixture closes both: that does not hang either


def test_names_of_files(tmp_path: Path, connect: Connect) -> None:
    """A socket's address holds about a hundred bytes; wake-ups come on longer paths all the same."""
    deep = tmp_path.joinpath(*["d" * 50] * 8)
    deep.mkdir(parents=True)
    names = [
        "with space.db", "100%25.db", "100%.db", "what?.db", "a#b;c&d=e.db", "grüße-日本.db", "'\".db",
        "x" * 200 + ".db",
    ]  # fmt: skip
    for path in (*(tmp_path / name for name in names), deep / "l.db"):
        first, second = connect(path), connect(path)
        hold = held(first)
        assert second.lock("a").acquire(timeout=0) is None
        hold.release()
        assert works(second) > hold.token
        first.close()
        second.close()
        assert names_in(beside(path)) == ["turn"]
    assert names_in(tmp_path) == sorted(["d" * 50, *names, *(f"{name}.d" for name in names)])


def test_a_relative_path_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with dibs.connect("sqlite:///here.db") as client:
        monkeypatch.chdir("/")
        works(client)
    assert (tmp_path / "here.db").exists()


def test_urls_without_a_usable_path() -> None:
    for rest in ("", "/", "host/x.db", "/x.db?mode=ro", "/a%00b.db"):
        with pytest.raises(ValueError, match=r"sqlite|path|control|null"):
            dibs.connect(f"sqlite://{rest}")


def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_URL", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "")
    with pytest.raises(dibs.Unsupported, match="needs a home directory"):
        dibs.connect()
    monkeypatch.setenv("HOME", "")  # as if it were not set
    with dibs.connect() as client:
        assert f"sqlite:///{pwd.getpwuid(os.getuid()).pw_dir}/.local/state/dibs/locks.db" in repr(client)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    for variable, where in [
        (str(tmp_path / "xdg %"), tmp_path / "xdg %"),
        ("", tmp_path / "home/.local/state"),
        ("relative", tmp_path / "home/.local/state"),
    ]:
        monkeypatch.setenv("XDG_STATE_HOME", variable)
        with dibs.connect() as client:
            works(client)
            assert "this machine only" in repr(client)
            assert mode(where / "dibs") == 0o700
            assert mode(where / "dibs" / "locks.db") == 0o600
    monkeypatch.delenv("XDG_STATE_HOME")
    with dibs.connect() as client:
        works(client)


def test_the_url_of_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", url_of(path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with dibs.connect() as client:
        works(client)
        assert "this machine only" not in repr(client)
    assert path.exists()
    monkeypatch.delenv("DIBS_URL")
    with pytest.raises(dibs.Unsupported, match="DIBS_URL"):
        dibs.connect()


def test_a_file_is_made_also_where_mknod_is_refused(
    path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, error in enumerate((errno.EPERM, errno.ENOSYS)):
        monkeypatch.setattr(os, "mknod", Mock(side_effect=OSError(error, os.strerror(error))))
        where = path.with_name(f"{number}.db")
        assert connect(where).lock("a").acquire(timeout=PATIENCE) is not None
        assert mode(where) == 0o600


# File systems, by real-looking texts of /proc/self/mountinfo.

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
25 22 0:5 / /proc rw,nosuid shared:13 - proc proc rw
30 22 0:50 / /home rw,relatime shared:20 - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /home/local rw - xfs /dev/sda2 rw
32 22 0:61 / /mnt/with\\040space rw - cifs //server/share rw
33 22 0:62 /vol /mnt/sub rw shared:5 master:1 - btrfs /dev/sdb rw
34 22 0:70 / /mnt/m\u00fcll rw - nfs server:/x rw
35 22 0:71 / /mnt/over rw - ext4 /dev/sdc rw
36 22 0:72 / /mnt/over rw - fuse.sshfs host: rw
broken line
"""


def test_the_file_system_of_a_path() -> None:
    cases = [
        ((8, 1), "/var/lib", "ext4"),
        ((0, 50), "/home/ana", "nfs4"),
        ((8, 2), "/home/local/x", "xfs"),
        ((0, 61), "/mnt/with space/x", "cifs"),
        ((0, 99), "/home/ana", "nfs4"),
        ((0, 99), "/homely", "ext4"),
        ((0, 99), "/mnt/with space", "cifs"),
        ((0, 99), "/mnt/sub/x", "btrfs"),
        ((0, 99), "/mnt/m\u00fcll/x", "nfs"),
        ((0, 99), "/mnt/over/x", "fuse.sshfs"),
    ]
    for device, path, kind in cases:
        assert file_system(os.makedev(*device), path, MOUNTS) == kind, path
        assert file_system(os.makedev(*device), path, "") == ""


def test_file_systems_that_reach_other_machines_are_refused(
    path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel has another boot id, so each would throw the other's claims away."""
    device = path.parent.stat().st_dev
    for kind in ("nfs4", "cifs", "9p", "fuse.sshfs", "vboxsf"):
        text = f"1 0 {os.major(device)}:{os.minor(device)} / / rw - {kind} server:/x rw\n"
        monkeypatch.setattr("dibs.backends.sqlite.files._mounts", lambda text=text: text)
        with pytest.raises(dibs.StoreError, match=f"network.*{kind}"):
            connect().lock("a").acquire(timeout=PATIENCE)
        assert not path.exists()


TRY = """
import sys, dibs
try:
    print(dibs.connect(sys.argv[1]).lock("a").acquire(timeout=0))
except dibs.StoreError as error:
    print(error)
"""


def tried(mounts: str, url: str, *places: Path) -> str:
    """The result of a try by another process, in a mount namespace of its own."""
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", mounts, *map(str, places)]
    probe = subprocess.run([*inside, "true"], capture_output=True, text=True, timeout=50, check=False)
    if probe.returncode:
        pytest.skip(f"no mount namespace of one's own here: {probe.stderr.strip()}")
    command = [*inside, sys.executable, "-c", TRY, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=True).stdout


@pytest.mark.gate
def test_a_process_without_proc_beside_one_with_it(path: Path) -> None:
    """It cannot see which boot this is, and must not take the locks of others for old ones."""
    mounts = 'mount --bind "$0" /mnt; mount -t tmpfs tmpfs /proc; exec "$@"'
    with dibs.connect(url_of(path)) as client, client.lock("a", timeout=PATIENCE) as hold:
        said = tried(mounts, "sqlite:////mnt/locks.db", path.parent)  # without /proc sockets need a short path
        hold.check()
    assert "Hold" not in said, said


def test_a_container_into_which_only_the_file_is_mounted_is_refused(path: Path, tmp_path: Path) -> None:
    """It has neither the log nor the liveness files of the others: it would hold what they hold."""
    inside = tmp_path / "a container" / "locks.db"
    inside.parent.mkdir(mode=0o700)
    with dibs.connect(url_of(path)) as client, client.lock("a", timeout=PATIENCE) as hold:
        said = tried('touch "$1"; mount --bind "$0" "$1"; shift; exec "$@"', url_of(inside), path, inside)
        hold.check()
    assert "only the file itself is mounted" in said
    assert "mount its directory" in said
