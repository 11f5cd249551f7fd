"""Values in the file: what is synced, what outlives what, what is pruned, and what is refused as damage."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import dibs
import dibs.aio
from dibs.backends import cabinet
from dibs.backends.sqlite.database import Database
from dibs.backends.sqlite.table import VERSION, SqliteTable
from process.children import Crew
from store.sqlite.places import change, rows, standstill, until, url_of

Connect = Callable[..., dibs.Client]
NORMAL, FULL = 1, 2


def count(path: Path, table: str) -> int:
    return int(rows(path, f"SELECT count(*) FROM {table}")[0][0])


def plus_one(value: bytes | None) -> bytes:
    return b"%d" % (int(value or b"0") + 1)


# What outlives what.


def test_values_outlive_all_clients(path: Path, connect: Connect) -> None:
    client = connect()
    client.cell("a").set(b"x", 0)
    client.fence("a").admit(9)
    client.latch("a").arm(3)
    client.latch("a").count_down()
    client.close()
    again = connect()
    assert again.cell("a").get() == (b"x", 1)
    assert again.latch("a").count() == 2
    with pytest.raises(dibs.StaleToken):
        again.fence("a").admit(8)


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


def test_what_the_file_keeps_does_not_grow_with_use(path: Path, connect: Connect) -> None:
    client = connect()
    for number in range(1, 101):
        client.latch("a").arm(1)
        client.latch("a").count_down()
        assert client.latch("a").wait(timeout=0) is True
        client.fence("a").admit(number)
    assert count(path, "cells") == 2
    client.close()
    assert (count(path, "clients"), count(path, "watchers"), count(path, "claims")) == (0, 0, 0)


def test_a_fence_outlives_the_kill_of_its_writer(crew: Crew, connect: Connect) -> None:
    """There is no lease on it, and no process that it hangs by."""
    writer = crew.start("ownerless", crew.url)
    writer.hear("ready")
    assert writer.ask("admit", "a", 9, hear="admitted") == ["ok"]
    assert writer.ask("add", "c", 5, hear="added") == ["5"]
    writer.kill()
    client = connect()
    with pytest.raises(dibs.StaleToken):
        client.fence("a").admit(8)
    client.fence("a").admit(9)
    assert client.cell("c").get() == (b"5", 5)


def test_processes_that_count_in_one_cell_count_exactly(crew: Crew, connect: Connect) -> None:
    children = [crew.start("ownerless", crew.url) for _ in range(8)]
    for child in children:
        child.hear("ready")
    for child in children:
        child.tell("add", "c", 10)
    for child in children:
        child.hear("added")
    assert connect().cell("c").get() == (b"80", 80)


# What is synced.


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each write of a value: its space, and how it was synced."""
    seen: list[tuple[str, int]] = []
    put, admit = cabinet.put, cabinet.admit

    def level(table: SqliteTable) -> int:
        return int(table._execute("PRAGMA synchronous").fetchone()[0])

    def seen_put(table: Any, write: Any, now: float) -> Any:
        seen.append((write.spot.space, level(table)))
        return put(table, write, now)

    def seen_admit(table: Any, *args: Any) -> int:
        seen.append(("fence", level(table)))
        return admit(table, *args)

    monkeypatch.setattr(cabinet, "put", seen_put)
    monkeypatch.setattr(cabinet, "admit", seen_admit)
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


def test_they_are_in_asyncio_too(path: Path, syncs: list[tuple[str, int]]) -> None:
    async def main() -> None:
        async with dibs.aio.connect(url_of(path)) as client:
            await client.latch("a").arm(2)
            await client.cell("a").set(b"x", 0)
            await client.fence("a").admit(1)
            await client.latch("a").count_down()
            await client.cell("a").update(lambda _: b"y")

    asyncio.run(main())
    assert syncs == [("latch", NORMAL), ("cell", FULL), ("fence", FULL), ("latch", NORMAL), ("cell", FULL)]


def test_they_are_after_the_file_was_opened_again(path: Path, connect: Connect, syncs: list[tuple[str, int]]) -> None:
    client = connect()
    client.cell("a").set(b"x", 0)
    client._core._cells._port._db.close()
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
            begun = time.monotonic()
            with pytest.raises(dibs.StoreUnavailable, match="busy") as caught:
                action()
            assert time.monotonic() - begun < 5
            assert caught.value.name == "a"
            assert "not known" not in str(caught.value)
        assert client.cell("a").get() == (b"x", 1), "readers wait for nobody"
        assert client.latch("a").count() == 1
    assert client.cell("a").set(b"z", 1) == 2
    client.fence("a").admit(1)


def plus_one_byte(value: bytes | None) -> bytes:
    return (value or b"") + b"."


def test_a_wait_beside_a_file_that_stands_still_ends_in_its_time(path: Path, connect: Connect) -> None:
    client = connect()
    client.latch("a").arm(1)
    with standstill(path):
        begun = time.monotonic()
        assert client.latch("a").wait(timeout=0.3) is False
        assert time.monotonic() - begun < 5


# What is refused.


@pytest.mark.parametrize(("version", "step"), [(1, "move the file away"), (VERSION + 1, "upgrade dibs")])
def test_a_file_of_another_format_is_refused(path: Path, connect: Connect, version: int, step: str) -> None:
    client = connect()
    client.cell("a").set(b"x", 0)
    client.close()
    change(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(dibs.StoreError, match=f"format {version}, this dibs knows {VERSION}") as caught:
        connect().cell("a").get()
    assert step in str(caught.value)
    assert not isinstance(caught.value, dibs.StoreUnavailable)
    assert path.read_bytes() == before


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
            with pytest.raises(dibs.StoreError, match="not one of ours") as caught:
                action()
            assert caught.value.name == "jobs"
            assert url_of(path) in str(caught.value)
        assert rows(path, "SELECT value, version FROM cells") == [(record.encode(), 1)]


def test_a_fence_whose_record_is_not_ours_admits_nobody(path: Path, connect: Connect) -> None:
    client = connect()
    client.fence("stock").admit(5)
    for record in ("garbage", "", "-5", "5 5", "9" * 30):
        change(path, f"UPDATE cells SET value = x'{record.encode().hex()}'")
        for shared in (False, True):
            with pytest.raises(dibs.StoreError, match="not one of ours") as caught:
                client.fence("stock").admit(2**62, shared=shared)
            assert caught.value.name == "stock"


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
    with pytest.raises(dibs.StoreError, match="forgotten") as caught:
        latch.wait(timeout=20)
    assert caught.value.name == "a"


def test_text_where_bytes_belong_is_damage(path: Path, connect: Connect) -> None:
    """The tables are strict: it takes a hand in the file itself to get it there, and SQLite's own check finds it."""
    client = connect()
    client.cell("marked").set(b"marked value 1234567890", 0)
    client.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    size = len(b"marked value 1234567890")
    blob, text = bytes([12 + 2 * size]), bytes([13 + 2 * size])
    header = content.rindex(b"celldibs:marked")
    at = content.rindex(blob, 0, header)
    path.write_bytes(content[:at] + text + content[at + 1 :])
    assert rows(path, "SELECT typeof(value) FROM cells") == [("text",)]
    with pytest.raises(dibs.StoreError, match="damaged"):
        connect().cell("marked").get()


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


def test_a_foreign_database_is_left_alone(path: Path, connect: Connect) -> None:
    change(path, "CREATE TABLE cells (value BLOB)")
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(dibs.StoreError, match="something else"):
        connect().cell("a").set(b"x", 0)
    assert path.read_bytes() == before
