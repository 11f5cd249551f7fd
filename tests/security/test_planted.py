"""Planted files: whatever lies at the path or beside it, nobody hangs and no victim is touched.

Where a directory is shared (`/tmp`), others can plant all of this before our file is there or while it is closed.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import dibs
from security.hostile import Connect, made
from store.sqlite.places import PATIENCE, Taking, beside

PRECIOUS = b"precious" * 5000
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices and give files away")


def link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def dangling_link(place: Path, victim: Path) -> None:
    victim.unlink()
    place.symlink_to(victim)


def hard_link(place: Path, victim: Path) -> None:
    os.link(victim, place)


def fifo(place: Path, _: Path) -> None:
    os.mkfifo(place, 0o600)


def directory(place: Path, _: Path) -> None:
    place.mkdir(mode=0o700)


def unix_socket(place: Path, _: Path) -> None:
    where = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
            made.bind(f"/proc/self/fd/{where}/{place.name}")  # however long its path is
    finally:
        os.close(where)


def device(place: Path, _: Path) -> None:
    os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: whoever reads it never ends


def file_of_somebody_else(place: Path, victim: Path) -> None:
    place.write_bytes(PRECIOUS)
    place.chmod(0o666)
    os.chown(place, 65534, 65534)


def gated(*values: object) -> list[object]:
    return [pytest.param(value, marks=pytest.mark.gate) for value in values]


WHAT = [
    link, hard_link, fifo, pytest.param(file_of_somebody_else, marks=ROOT_ONLY),
    *gated(dangling_link, directory, unix_socket),
    pytest.param(device, marks=[ROOT_ONLY, pytest.mark.gate]),
]  # fmt: skip


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    found = tmp_path / "victim"
    found.write_bytes(PRECIOUS)
    return found


@pytest.fixture
def unstall(tmp_path: Path) -> Iterator[None]:
    """However the test goes: whoever hangs in the opening of a FIFO is let go."""
    yield
    for place in tmp_path.rglob("*"):
        if place.is_fifo():
            os.close(os.open(place, os.O_RDWR | os.O_NONBLOCK))


def untouched(victim: Path, what: Callable[[Path, Path], None]) -> bool:
    return not victim.exists() if what is dangling_link else victim.read_bytes() == PRECIOUS


def ended(client: dibs.Client) -> Taking:
    taking = Taking(client.lock("a"), 1)
    taking.join(PATIENCE)
    assert not taking.is_alive(), "acquire(timeout=1) hangs"
    return taking


def is_refused(connect: Connect) -> str:
    """The text of the error."""
    taking = ended(connect())
    assert isinstance(taking.error, dibs.StoreError), taking.hold
    return str(taking.error)


@pytest.mark.usefixtures("unstall")
@pytest.mark.parametrize(
    ("place", "is_made"),
    [
        ("", False), ("-wal", True), (".d", False),
        pytest.param("-wal", False, marks=pytest.mark.gate), pytest.param("-shm", True, marks=pytest.mark.gate),
        pytest.param("-journal", True, marks=pytest.mark.gate),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("what", WHAT)
def test_it_is_refused(
    path: Path, connect: Connect, victim: Path, what: Callable[[Path, Path], None], place: str, is_made: bool
) -> None:
    """At the path, beside the database and as its private directory. SQLite would read a file beside it as a log to
    recover from, write its own over it, or hang in opening it."""
    if place == ".d" and what is directory:
        return  # that is what belongs there
    if is_made:
        made(connect, path)
    before = path.read_bytes() if is_made else b""
    what(path.with_name(path.name + place), victim)
    assert str(path) in is_refused(connect)
    assert untouched(victim, what)
    assert not is_made or path.read_bytes() == before


@pytest.mark.usefixtures("unstall")
@pytest.mark.parametrize("what", WHAT)
def test_as_the_turn_it_is_refused_or_does_no_harm(
    path: Path, connect: Connect, victim: Path, what: Callable[[Path, Path], None]
) -> None:
    """The turn is politeness only; but it is a file of ours, and no link's target is made or locked in its stead."""
    beside(path).mkdir(mode=0o700)
    what(beside(path) / "turn", victim)
    taking = ended(connect())
    assert isinstance(taking.error, dibs.StoreError) or taking.got()
    assert untouched(victim, what)


@pytest.mark.usefixtures("unstall")
@pytest.mark.parametrize("what", [link, fifo, *gated(hard_link, directory, unix_socket)])
@pytest.mark.parametrize("suffix", [".live", ".sock"])
def test_in_place_of_a_clients_own_files(
    path: Path, connect: Connect, victim: Path, what: Callable[[Path, Path], None], suffix: str
) -> None:
    """Beside a living holder: it is never judged dead by it, whoever wakes it does not hang, and goodbye spares it."""
    client, other = connect(), connect()
    hold = client.lock("a").acquire(timeout=PATIENCE)
    assert hold is not None
    (own,) = beside(path).glob(f"*{suffix}")
    own.unlink()
    what(own, victim)
    assert other.lock("a").acquire(timeout=0) is None
    waiter = Taking(other.lock("a"), PATIENCE)
    hold.check()
    hold.release()
    waiter.got().release()
    client.close()
    assert untouched(victim, what)


@ROOT_ONLY
def test_a_hot_journal_of_somebody_else_is_not_played_back(path: Path, connect: Connect) -> None:
    """Anyone with write access to the directory could change the database if SQLite recovered from such a journal."""
    made(connect, path)
    before = path.read_bytes()
    page_size = struct.unpack(">H", before[16:18])[0]
    pages = len(before) // page_size
    head = struct.pack(">8sIIIII", bytes.fromhex("d9d505f920a163d7"), 1, 0, pages, 512, page_size).ljust(512, b"\0")
    journal = path.with_name(path.name + "-journal")
    journal.write_bytes(head + struct.pack(">I", pages) + bytes(page_size) + struct.pack(">I", 0))
    os.chown(journal, 65534, 65534)
    assert is_refused(connect)
    assert path.read_bytes() == before, "it was played back"


@ROOT_ONLY
def test_a_shared_directory_of_somebody_else_is_refused(path: Path, connect: Connect) -> None:
    """The sticky bit keeps everybody from renaming and removing what is ours, but not the directory's owner."""
    os.chown(path.parent, 65534, 65534)
    path.parent.chmod(0o1777)
    assert is_refused(connect)


PRETENDERS = {
    "a trigger that forgets claims": "CREATE TRIGGER t AFTER INSERT ON claims BEGIN DELETE FROM claims; END",
    "a trigger that ends claims": "CREATE TRIGGER t AFTER UPDATE ON claims BEGIN UPDATE claims SET until = 0; END",
    "a table without its key": (
        "CREATE TABLE other AS SELECT * FROM claims; DROP TABLE claims; ALTER TABLE other RENAME TO claims"
    ),
    "a view as a table": (
        "ALTER TABLE claims RENAME TO real; CREATE VIEW claims AS SELECT * FROM real WHERE 0;"
        "CREATE TRIGGER t INSTEAD OF INSERT ON claims BEGIN SELECT 1; END"
    ),
    "an index with an opinion": "CREATE INDEX i ON claims (abs(-9223372036854775808 + length(name) * 0))",
}


@pytest.mark.parametrize("case", PRETENDERS)
def test_what_only_pretends_to_be_ours_is_refused(path: Path, connect: Connect, case: str) -> None:
    """The mark and the version are ours, the tables do something else: never two holders."""
    made(connect, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(PRETENDERS[case])
    takings = [ended(client) for client in (connect(), connect())]
    assert all(one.error is None or isinstance(one.error, dibs.DibsError) for one in takings)
    assert len([one for one in takings if one.hold is not None]) <= 1, "two holders"


def test_tables_in_a_file_that_says_it_is_new_are_refused(path: Path, connect: Connect) -> None:
    """Our mark, no version yet, and something that waits for us there: nothing is made beside it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA application_id = 0x64696273; CREATE TABLE theirs (x)")
    path.chmod(0o600)
    assert is_refused(connect)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory&cache=shared", *gated("x.db?immutable=1&nolock=1")])
def test_words_of_sqlite_are_names_like_others(tmp_path: Path, connect: Connect, name: str) -> None:
    """In the path they name a file; in a lock's name they name a lock."""
    first, second = connect(tmp_path / name), connect(tmp_path / name)
    hold = first.lock(name).acquire(timeout=PATIENCE)
    assert hold is not None
    assert second.lock(name).acquire(timeout=0) is None
    assert (tmp_path / name).stat().st_size > 0
    assert first.lock(f"{name}-").acquire(timeout=0) is not None
    hold.release()
