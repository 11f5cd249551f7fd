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
from contextlib import closing, suppress
from pathlib import Path

import pytest

import dibs
from dibs.backends.sqlite.files import file_system
from dibs.backends.sqlite.registration import Registration
from dibs.backends.sqlite.table import SqliteTable
from lab.stopwatch import Stopwatch
from store.sqlite.places import PATIENCE, Taking, beside, change, names_in, rows, until, url_of

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


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_files_are_private_whatever_the_umask(path: Path, connect: Connect, mask: int) -> None:
    old = os.umask(mask)
    try:
        hold = connect().lock("a").acquire(timeout=PATIENCE)
    finally:
        os.umask(old)
    assert hold is not None
    for file in path.parent.iterdir():
        assert mode(file) == (0o700 if file.is_dir() else 0o600), file
    for file in beside(path).iterdir():
        assert not file.is_symlink()
    hold.release()


def test_the_private_directory_must_be_private(path: Path, connect: Connect) -> None:
    beside(path).mkdir(mode=0o700)
    beside(path).chmod(0o755)
    refused(connect(), str(beside(path)), "private")
    beside(path).chmod(0o700)
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


def test_a_symbolic_link_is_refused_and_its_target_left_alone(path: Path, connect: Connect, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    target.chmod(0o600)
    path.symlink_to(target)
    refused(connect(), "symbolic link")
    assert target.read_bytes() == b"precious"
    target.unlink()
    refused(connect(), "symbolic link")
    assert not target.exists(), "a dangling link is not followed either"


def test_a_link_to_a_good_database_is_refused(path: Path, connect: Connect, tmp_path: Path) -> None:
    """Two paths to one file would be two private directories: nobody would wake anybody."""
    works(connect())
    other = tmp_path / "other.db"
    other.symlink_to(path)
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


def test_a_file_that_others_may_open_is_refused(path: Path, connect: Connect) -> None:
    path.touch(mode=0o600)
    path.chmod(0o640)
    refused(connect(), f"chmod 600 {path}")
    path.chmod(0o600)
    works(connect())


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


@pytest.mark.parametrize("content", [b"hello\n", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(2000), bytes(4096)])
def test_what_is_no_database_is_refused_and_left_alone(path: Path, connect: Connect, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    refused(connect())
    assert path.read_bytes() == content


@pytest.mark.parametrize(("other", "step"), [(1, "upgrade dibs"), (-1, "move the file away")])
def test_another_format_is_refused(path: Path, connect: Connect, other: int, step: str) -> None:
    client = connect()
    works(client)
    client.close()
    ((ours,),) = rows(path, "PRAGMA user_version")
    change(path, f"PRAGMA user_version = {ours + other}")
    refused(connect(), step, str(ours + other), error=dibs.Mismatch)
    assert rows(path, "PRAGMA user_version") == [(ours + other,)]


def test_a_database_damaged_in_use_says_so(path: Path, connect: Connect) -> None:
    """Never two: whoever still gets an answer from its cache is alone with it."""
    clients = [connect(), connect()]
    for client in clients:
        works(client)
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:  # every page but the first, in place, as a broken disk would
        file.seek(1024)
        file.write(os.urandom(path.stat().st_size - 1024))
    holds = []
    for client in clients:
        with suppress(dibs.StoreError):
            holds.append(client.lock("b").acquire(timeout=1))
    assert len([hold for hold in holds if hold is not None]) <= 1
    with pytest.raises(dibs.StoreError):
        connect().lock("b").acquire(timeout=1)


def test_a_database_that_cannot_be_opened_again(path: Path, connect: Connect) -> None:
    """Opening a second connection fails (here: it is no database any more): that is an error, not the end."""
    client = connect(lease=3)
    hold = client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    with path.open("r+b") as file:
        file.write(b"no longer a database" * 50)
    newcomer, here = Taking(connect().lock("a"), 1), Taking(client.lock("a"), 1)
    for taking in (newcomer, here):
        taking.join(PATIENCE)
        assert not taking.is_alive(), "acquire(timeout=1) hangs"
    assert isinstance(newcomer.error, dibs.StoreError)
    until(hold.lost.is_set, what="the loss")  # the fixture closes both: that does not hang either


@pytest.mark.parametrize(
    "name",
    [
        "with space.db",
        "100%25.db",
        "100%.db",
        "what?.db",
        "a#b;c&d=e.db",
        "gr\u00fc\u00dfe-\u65e5\u672c.db",
        "'\".db",
        "x" * 200 + ".db",
    ],
)
def test_names_of_files(tmp_path: Path, connect: Connect, name: str) -> None:
    first, second = connect(tmp_path / name), connect(tmp_path / name)
    hold = first.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    assert second.lock("a").acquire(timeout=0) is None
    hold.release()
    assert works(second) > hold.token
    first.close()
    second.close()
    assert names_in(tmp_path) == [name, f"{name}.d"]


@pytest.mark.parametrize("length", [100, 400])
def test_long_paths(tmp_path: Path, connect: Connect, length: int) -> None:
    """A socket's address holds about a hundred bytes; wake-ups come all the same."""
    where = tmp_path
    while len(str(where)) < length:
        where /= "d" * 50
    where.mkdir(parents=True)
    first, second = connect(where / "l.db"), connect(where / "l.db")
    hold = first.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    assert second.lock("a").acquire(timeout=0) is None
    hold.release()
    works(second)
    first.close()
    second.close()
    assert names_in(where / "l.db.d") == ["turn"]


def test_a_relative_path_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with dibs.connect("sqlite:///here.db") as client:
        monkeypatch.chdir("/")
        works(client)
    assert (tmp_path / "here.db").exists()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite://host/x.db", "sqlite:///x.db?mode=ro", "sqlite:///a%00b.db"]
)
def test_urls_that_mean_nothing(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite|path|control|null"):
        dibs.connect(url)


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


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_a_file_is_made_also_where_mknod_is_not_to_be_had(
    path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "mknod", refused)
    assert connect().lock("a").acquire(timeout=PATIENCE) is not None
    assert path.stat().st_mode & 0o777 == 0o600


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


@pytest.mark.parametrize(
    ("device", "path", "kind"),
    [
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
    ],
)
def test_the_file_system_of_a_path(device: tuple[int, int], path: str, kind: str) -> None:
    assert file_system(os.makedev(*device), path, MOUNTS) == kind
    assert file_system(os.makedev(*device), path, "") == ""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "vboxsf"])
def test_file_systems_that_reach_other_machines_are_refused(
    path: Path, connect: Connect, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel has another boot id, so each would throw the other's claims away."""
    device = path.parent.stat().st_dev
    text = f"1 0 {os.major(device)}:{os.minor(device)} / / rw - {kind} server:/x rw\n"
    monkeypatch.setattr("dibs.backends.sqlite.files._mounts", lambda: text)
    with pytest.raises(dibs.StoreError, match=f"network.*{kind}"):
        connect().lock("a").acquire(timeout=PATIENCE)
    assert not path.exists()


WITHOUT_PROC = [
    "unshare", "--mount", "--propagation", "private",
    "sh", "-ec", 'mount --bind "$0" /mnt; mount -t tmpfs tmpfs /proc; exec "$@"',
]  # fmt: skip
"""Without /proc only a short path will do for sockets."""
TRY = """
import dibs
try:
    hold = dibs.connect("sqlite:////mnt/locks.db").lock("a").acquire(timeout=0)
except dibs.StoreError:
    hold = None
print("took it" if hold else "did not")
"""


def test_a_process_without_proc_beside_one_with_it(path: Path) -> None:
    """One that cannot see which boot this is must not take the locks of those who can for old ones."""
    inside = [*WITHOUT_PROC, str(path.parent)]
    tried = subprocess.run([*inside, "true"], capture_output=True, text=True, timeout=50, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace of one's own here: {tried.stderr.strip()}")
    with dibs.connect(url_of(path)) as client, client.lock("a", timeout=PATIENCE) as hold:
        done = subprocess.run(
            [*inside, sys.executable, "-c", TRY], capture_output=True, text=True, timeout=50, check=True
        )
        hold.check()
        assert done.stdout == "did not\n"


ONLY_THE_FILE = [
    "unshare", "--mount", "--propagation", "private",
    "sh", "-ec", 'touch "$1"; mount --bind "$0" "$1"; shift; exec "$@"',
]  # fmt: skip
SAY = """
import sys, dibs
try:
    print(dibs.connect(sys.argv[1]).lock("a").acquire(timeout=0))
except dibs.StoreError as error:
    print(error)
"""


def test_a_container_into_which_only_the_file_is_mounted_is_refused(path: Path, tmp_path: Path) -> None:
    """It has neither the log nor the liveness files of the others: it would hold what they hold."""
    container = tmp_path / "a container"
    container.mkdir(mode=0o700)
    inside = [*ONLY_THE_FILE, str(path), str(container / "locks.db")]
    with dibs.connect(url_of(path)) as client, client.lock("a", timeout=PATIENCE) as hold:
        tried = subprocess.run([*inside, "true"], capture_output=True, text=True, timeout=50, check=False)
        if tried.returncode:
            pytest.skip(f"no mount namespace of one's own here: {tried.stderr.strip()}")
        url = url_of(container / "locks.db")
        done = subprocess.run(
            [*inside, sys.executable, "-c", SAY, url], capture_output=True, text=True, timeout=50, check=True
        )
        hold.check()
    assert "only the file itself is mounted" in done.stdout
    assert "mount its directory" in done.stdout
