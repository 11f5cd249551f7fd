"""Damage: bits that flip anywhere in the file, and files that change places while it is opened.

Nobody can tell a flipped bit in a claim from a claim. What is asked here: the interpreter lives, every error is one of
ours, two clients of one file never both hold, and what lies elsewhere is left alone.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.backends.memory import MemoryQueue
from security.hostile import Connect, execute, made, plant
from store.sqlite.places import PATIENCE, Taking, beside, url_of

FLIPS = 50
SEED = 21


def template(connect: Connect, directory: Path) -> Path:
    """A database with something in each of its tables, and nothing in it that differs from run to run but the boot."""
    path, clean = directory / "made.db", directory / "template.db"
    made(connect, path)
    for number in range(20):
        plant(path, f"held {number}", ticket=number, id=bytes([number]) * 16, client=b"client", about='{"pid": 1}')
    execute(path, "INSERT INTO outsiders VALUES ('dibs:x', x'aa', x'bb', 1e12)")
    execute(path, "INSERT INTO clients VALUES (x'cc', 'cc.live', 1, 1, 'cc.sock')")
    execute(path, "UPDATE store SET id = 'store', base = 1000000, reserved = 1000000")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(clean),))
    return clean


def flipped(template: Path, path: Path, dice: random.Random) -> list[int]:
    """A copy with one to eight bits changed; where."""
    content = bytearray(template.read_bytes())
    places = [dice.randrange(len(content) * 8) for _ in range(dice.choice([1, 1, 2, 8]))]
    for place in places:
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    path.chmod(0o600)
    return places


def holds_of(clients: list[dibs.Client], name: str) -> list[dibs.Hold]:
    """The holds of clients that got the lock; every exception must be a DibsError."""
    found: list[dibs.Hold | None] = []
    for client in clients:
        with suppress(dibs.DibsError):
            found.append(client.lock(name).acquire(timeout=0))
    return [hold for hold in found if hold is not None and not hold.lost.is_set()]


@pytest.mark.gate
def test_flipped_bits_never_grant_to_two(tmp_path: Path, connect: Connect) -> None:
    """In a process of its own: what kills an interpreter must not kill the one that counts."""
    source, report = template(connect, tmp_path), tmp_path / "report"
    if (pid := os.fork()) == 0:
        status = 1
        try:
            wrong = flip_and_use(source, tmp_path, random.Random(SEED))
            report.write_text("\n".join(wrong))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the interpreter did not survive"
    assert report.read_text() == ""


def flip_and_use(source: Path, directory: Path, dice: random.Random) -> list[str]:
    """The failures, each with the flipped bits that caused it."""
    wrong = []
    for number in range(FLIPS):
        path = directory / str(number) / "locks.db"
        path.parent.mkdir()
        places = flipped(source, path, dice)
        clients = [dibs.connect(url_of(path), lease=0.5) for _ in range(2)]
        try:
            use(clients)
        except Exception as error:
            wrong.append(f"bits {places} of {source.stat().st_size * 8}: {type(error).__name__}: {error}")
        for client in clients:
            threading.Thread(target=client.close, daemon=True).start()  # a damaged file may take its time
    return wrong


def use(clients: list[dibs.Client]) -> None:
    for name in ("free", "held 3", "x"):
        if len(holds_of(clients, name)) > 1:
            raise AssertionError(f"two holders of {name}")
        with suppress(dibs.DibsError):
            clients[0].inspect(name)
    with suppress(dibs.DibsError):
        if len(list(islice(clients[1].locks(), 1000))) == 1000:
            raise AssertionError("locks() does not end")


def test_one_bit_in_the_name_of_another_claim(tmp_path: Path, connect: Connect) -> None:
    """Rows that are out of order lead a search astray: what one client wrote, the other one does not find."""
    source, path = template(connect, tmp_path), tmp_path / "locks.db"
    content = source.read_bytes()
    assert content.count(b"dibs:held 17") == 1
    path.write_bytes(content.replace(b"dibs:held 17", b"di`s:held 17"))
    path.chmod(0o600)
    assert len(holds_of([connect(), connect()], "free")) <= 1, "two holders"


@pytest.mark.parametrize(
    ("how", "there"), [("link", False), pytest.param("file", False, marks=pytest.mark.gate), ("file", True)]
)
@pytest.mark.parametrize("opening", [1, 2, pytest.param(3, marks=pytest.mark.gate)])
def test_a_file_that_is_swapped_just_before_it_is_opened(
    path: Path, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: int, how: str, there: bool
) -> None:
    """By somebody else's database, or a link to it, at the worst instant: after every look at the path."""
    victim = somebody_elses(tmp_path / "victim.db")
    before = victim.read_bytes()
    if there:
        made(connect, path)
        shutil.rmtree(beside(path))
    openings = []
    really_connect = sqlite3.connect

    def swapped_then_connect(*args: Any, **options: Any) -> sqlite3.Connection:
        openings.append(args)
        if len(openings) == opening:
            spare = tmp_path / "spare"
            if how == "link":
                spare.symlink_to(victim)
            else:
                shutil.copy(victim, spare)
            spare.rename(path)
        return really_connect(*args, **options)

    monkeypatch.setattr(sqlite3, "connect", swapped_then_connect)
    taking = Taking(connect().lock("a"), 1)
    taking.join(PATIENCE)
    assert not taking.is_alive(), "acquire(timeout=1) hangs"
    monkeypatch.undo()
    assert taking.error is None or isinstance(taking.error, dibs.DibsError), "an error that is none of ours"
    assert victim.read_bytes() == before, "somebody else's database was written to"
    if len(openings) >= opening:
        assert path.read_bytes() == before, "somebody else's database was written to"


def somebody_elses(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("pages", [["a"], ["b", "a"], ["b", "a", "b"]], ids=str)
def test_names_that_a_store_lists_in_a_circle_come_to_an_end(monkeypatch: pytest.MonkeyPatch, pages: list[str]) -> None:
    """As rows out of order do, that were damaged after the file was opened."""

    async def page(queue: object, prefix: str, after: str, until: float) -> list[dibs.LockInfo]:
        return [dibs.LockInfo(name=f"dibs:{name}", holders=(dibs.Participant(),)) for name in pages]

    monkeypatch.setattr(MemoryQueue, "page", page)
    with dibs.connect("memory://circle") as client:
        assert {info.name for info in islice(client.locks(), 100)} == set(pages)
        assert len(list(islice(client.locks(), 100))) == len(pages)
