"""Values in the file: what is synced, what outlives what, what is pruned, and what is refused as damage."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import dibs
import dibs.aio
from dibs.backends.common import atomic_cells
from dibs.backends.sqlite.database import Database
from dibs.backends.sqlite.table import SqliteTable
from lab.stopwatch import Stopwatch
from store.sqlite.places import change, rows, standstill, until, url_of

Connect = Callable[..., dibs.Client]
NORMAL, FULL = 1, 2


def count(path: Path, table: str) -> int:
    return int(rows(path, f"SELECT count(*) FROM {table}")[0][0])


# What outlives what.


def test_another_boot_forgets_watchers_and_writes_and_keeps_values(path: Path, connect: Connect) -> None:
    client = connect()
    client.cell("a").set(b"x", 0)
    client.fence("a").admit(9)
    client.latch("a").arm(3)
    client.close()
    kept = rows(path, "SELECT * FROM cells")
    assert len(kept) == 3
    change(path, "INSERT INTO watchers VALUES ('latch', 'dibs:a', x'aa', x'bb')")
    change(path, "INSERT INTO writes VALUES (1e12, x'cc', 7)")
    change(path, "UPDATE store SET boot = 'another'")
    newcomer = connect()
    assert newcomer.latch("a").count() == 3
    assert (count(path, "watchers"), count(path, "writes")) == (0, 0)
    assert rows(path, "SELECT * FROM cells") == kept
    newcomer.latch("a").count_down()
    assert newcomer.cell("a").set(b"y", 1) == 2


def test_watchers_of_clients_that_are_gone_are_swept(path: Path, connect: Connect) -> None:
    connect().latch("a").arm(1)
    change(path, "INSERT INTO watchers VALUES ('latch', 'dibs:a', x'aa', x'bb')")
    assert connect().latch("a").count() == 1
    assert count(path, "watchers") == 0


def test_a_put_is_remembered_until_its_time_and_then_forgotten(path: Path, connect: Connect) -> None:
    client = connect(retry=3)  # remembered for as long as it would be asked again
    for version in range(20):
        client.cell("a").set(b"x", version)
    assert 1 <= count(path, "writes") <= 20
    (last,) = rows(path, "SELECT max(until) FROM writes")[0]
    until(lambda: client._core.now() > last, what="the time of the last put")
    client.latch("b").arm(1)
    assert count(path, "writes") == 1


# What is synced.


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each write of a value: its space, and how it was synced."""
    seen: list[tuple[str, int]] = []
    put, admit = atomic_cells.put, atomic_cells.admit

    def level(table: SqliteTable) -> int:
        return int(table.execute("PRAGMA synchronous").fetchone()[0])

    def seen_put(table: Any, write: Any, now: float) -> Any:
        seen.append((write.cell_key.space, level(table)))
        return put(table, write, now)

    def seen_admit(table: Any, *args: Any) -> int:
        seen.append(("fence", level(table)))
        return admit(table, *args)

    monkeypatch.setattr(atomic_cells, "put", seen_put)
    monkeypatch.setattr(atomic_cells, "admit", seen_admit)
    return seen


def test_cells_and_fences_are_synced_and_latches_are_not(
    path: Path, connect: Connect, syncs: list[tuple[str, int]]
) -> None:
    client = connect()
    client.latch("a").arm(2)
    client.cell("a").set(b"x", 0)
    client.latch("a").count_down()
    client.fence("a").admit(1)
    client.fence("a").admit(1, shared=True)
    client.latch("a").count_down()
    client.cell("a").update(lambda _: b"y")
    assert syncs == [
        ("latch", NORMAL), ("cell", FULL), ("latch", NORMAL), ("fence", FULL), ("fence", FULL), ("latch", NORMAL),
        ("cell", FULL),
    ]  # fmt: skip


def test_they_are_after_the_file_was_opened_again(path: Path, connect: Connect, syncs: list[tuple[str, int]]) -> None:
    client = connect()
    client.cell("a").set(b"x", 0)
    client._core._cells._db.close()
    client.cell("a").set(b"y", 1)
    client.fence("a").admit(1)
    assert {level for _, level in syncs} == {FULL}


class InterruptAt:
    """KeyboardInterrupt before the n-th line of `Database._sync`, once."""

    def __init__(self, line: int) -> None:
        self._line = line
        self.hit = False

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._calls)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _calls(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._lines if frame.f_code is Database._sync.__code__ else None

    def _lines(self, frame: FrameType, event: str, arg: object) -> Any:
        at = frame.f_lineno - frame.f_code.co_firstlineno
        if not self.hit and ((event == "line" and at == self._line) or (event == "return" and not self._line)):
            self.hit = True
            raise KeyboardInterrupt
        return self._lines


@pytest.mark.parametrize("durable", [True, False], ids=["to-durable", "from-durable"])
@pytest.mark.parametrize("line", [1, 2, 3, 0], ids=["first", "second", "third", "end"])
def test_an_interrupted_change_of_syncing_leaves_no_durable_write_unsynced(
    path: Path, connect: Connect, syncs: list[tuple[str, int]], durable: bool, line: int
) -> None:
    client = connect()
    client.latch("a").arm(9)
    if not durable:
        client.cell("a").set(b"x", 0)
    with InterruptAt(line) as interrupt, pytest.raises(KeyboardInterrupt):
        client.fence("a").admit(1) if durable else client.latch("a").count_down()
    assert interrupt.hit
    syncs.clear()
    client.fence("a").admit(2)
    client.cell("b").set(b"x", 0)
    assert syncs == [("fence", FULL), ("cell", FULL)]


# A store that does not answer.


def test_a_write_to_a_file_that_stands_still_ends(path: Path, connect: Connect) -> None:
    """It never began, so it is known that nothing happened: the error does not say otherwise."""
    client = connect(retry=0)
    assert client.cell("a").set(b"x", 0) == 1
    client.latch("a").arm(1)
    actions: list[Callable[[], object]] = [
        lambda: client.cell("a").set(b"y", 1),
        lambda: client.cell("a").update(plus_one_byte),
        lambda: client.fence("a").admit(1),
        client.latch("a").count_down,
    ]
    with standstill(path):
        for action in actions:
            with Stopwatch() as watch, pytest.raises(dibs.StoreUnavailable, match="busy") as caught:
                action()
            assert watch.seconds() < 5
            assert caught.value.name == "a"
            assert "not known" not in str(caught.value)
        assert client.cell("a").get() == (b"x", 1), "readers wait for nobody"
        assert client.latch("a").count() == 1
    assert client.cell("a").set(b"z", 1) == 2
    client.fence("a").admit(1)


def plus_one_byte(value: bytes | None) -> bytes:
    return (value or b"") + b"."


# What is refused.


def test_a_latch_whose_record_is_not_ours_opens_for_nobody(path: Path, connect: Connect) -> None:
    client = connect()
    client.latch("jobs").arm(1)
    latch = client.latch("jobs")
    actions: list[Callable[[], object]] = [
        lambda: latch.wait(timeout=1), latch.count, latch.count_down, lambda: latch.arm(1)
    ]  # fmt: skip
    for record in ("garbage", "", "1", "1 ", " 1", "1 2 3", "-1 2", "1 -2", "1.0 2", "a b", "9" * 50 + " 1"):
        change(path, f"UPDATE cells SET value = x'{record.encode().hex()}'")
        for action in actions:
            with pytest.raises(dibs.StoreError, match="dibs did not write") as caught:
                action()
            assert caught.value.name == "jobs"
            assert url_of(path) in str(caught.value)
        assert rows(path, "SELECT value, version FROM cells") == [(record.encode(), 1)]


@pytest.mark.parametrize("kind", ["latch", "cell", "fence"])
def test_a_version_that_no_put_has_made_is_damage(path: Path, connect: Connect, kind: str) -> None:
    """Versions are 1 or more, and the last one that a file can keep has no next: nothing is granted on such a row."""
    client = connect()
    client.latch("a").arm(1)
    client.cell("a").set(b"x", 0)
    client.fence("a").admit(5)
    actions: dict[str, Callable[[], object]] = {
        "latch": client.latch("a").count_down,
        "cell": lambda: client.cell("a").update(plus_one_byte),
        "fence": lambda: client.fence("a").admit(6),
    }
    for version in (-1, 0, -(2**63), 2**63 - 1):
        change(path, f"UPDATE cells SET version = {version}")
        before = rows(path, "SELECT * FROM cells")
        with pytest.raises(dibs.StoreError) as caught:
            actions[kind]()
        assert caught.value.name == "a"
        assert rows(path, "SELECT * FROM cells") == before


def test_a_latch_that_someone_set_back_while_it_was_waited_for_is_an_error(path: Path, connect: Connect) -> None:
    client = connect()
    client.latch("a").arm(3)
    client.latch("a").count_down()
    slot = (latch := client.latch("a"))._core._slot  # type: ignore[attr-defined]
    usual = slot.changed

    async def changed(version: int, until: float) -> None:
        change(path, "DELETE FROM cells")
        await usual(version, until)

    slot.changed = changed
    with pytest.raises(dibs.StoreError, match="lost this latch") as caught:
        latch.wait(timeout=40)
    assert caught.value.name == "a"


def test_text_that_comes_while_the_file_is_open_is_damage(path: Path, connect: Connect) -> None:
    """A file that is open is not checked again as a whole: the row itself is."""
    client = connect()
    client.cell("a").set(b"x", 0)
    with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'STRICT, ', '') WHERE name = 'cells'")
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("UPDATE cells SET value = 'text'")
    with pytest.raises(dibs.StoreError) as caught:
        client.cell("a").get()
    assert caught.value.name == "a"
