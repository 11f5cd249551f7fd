"""Values in the file: what is synced, what outlives what, what is pruned, and what is refused as damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import dibs
import dibs.aio
from dibs.backends.common import atomic_cells
from dibs.backends.sqlite.database import Database
from dibs.backends.sqlite.table import SqliteTable
from lab.stopwatch import Stopwatch
from store.sqlite.places import change, rows, standstill, url_of

Connect = Callable[..., dibs.Client]
NORMAL, FULL = 1, 2


def count(path: Path, table: str) -> int:
    return int(rows(path, f"SELECT count(*) FROM {table}")[0][0])


def test_another_boot_forgets_watchers_and_writes_and_keeps_values(path: Path, connect: Connect) -> None:
    """A newcomer of the same boot sweeps watchers of clients that are gone."""
    client = connect()
    client.cell("a").set(b"x", 0)
    client.fence("a").admit(9)
    client.latch("a").arm(3)
    client.close()
    kept = rows(path, "SELECT * FROM cells")
    assert len(kept) == 3
    watcher = "INSERT INTO watchers VALUES ('latch', 'dibs:a', x'aa', x'bb')"
    change(path, watcher)
    assert connect().latch("a").count() == 3
    assert count(path, "watchers") == 0
    change(path, watcher)
    change(path, "INSERT INTO writes VALUES (1e12, x'cc', 7)")
    change(path, "UPDATE store SET boot = 'another'")
    newcomer = connect()
    assert newcomer.latch("a").count() == 3
    assert (count(path, "watchers"), count(path, "writes")) == (0, 0)
    assert rows(path, "SELECT * FROM cells") == kept
    newcomer.latch("a").count_down()
    assert newcomer.cell("a").set(b"y", 1) == 2


def test_a_put_is_remembered_until_its_time_and_then_forgotten(path: Path, connect: Connect) -> None:
    client = connect()
    for version in range(3):
        client.cell("a").set(b"x", version)
    client.latch("b").arm(1)
    assert count(path, "writes") == 4
    change(path, "UPDATE writes SET until = 1")
    client.latch("b").count_down()
    assert count(path, "writes") == 1


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
    client._core._cells._db.close()  # it is opened again
    client.cell("a").set(b"z", 2)
    assert syncs == [
        ("latch", NORMAL), ("cell", FULL), ("latch", NORMAL), ("fence", FULL), ("fence", FULL), ("latch", NORMAL),
        ("cell", FULL), ("cell", FULL),
    ]  # fmt: skip


@pytest.mark.parametrize("durable", [True, False], ids=["to-durable", "from-durable"])
def test_an_interrupted_change_of_syncing_leaves_no_durable_write_unsynced(
    path: Path, connect: Connect, syncs: list[tuple[str, int]], durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted just before the connection changes, or just after it."""
    usual = Database._sync
    for changed in (False, True):
        client = connect(path.with_name(f"{changed}.db"))
        client.latch("a").arm(9)
        if not durable:
            client.cell("a").set(b"x", 0)

        def interrupted(self: Database, connection: Any, wanted: bool, changed: bool = changed) -> None:
            def execute(statement: str) -> None:
                if changed:
                    connection.execute(statement)
                raise KeyboardInterrupt

            usual(self, Mock(execute=execute), wanted)

        with monkeypatch.context() as patched:
            patched.setattr(Database, "_sync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.fence("a").admit(1) if durable else client.latch("a").count_down()
        syncs.clear()
        client.fence("a").admit(2)
        client.cell("b").set(b"x", 0)
        assert syncs == [("fence", FULL), ("cell", FULL)]


@pytest.mark.gate
def test_a_write_to_a_file_that_stands_still_ends(path: Path, connect: Connect) -> None:
    """It never began, so it is known that nothing happened: the error does not say otherwise."""
    client = connect(retry=0)
    assert client.cell("a").set(b"x", 0) == 1
    client.latch("a").arm(1)
    with standstill(path):
        for write in (lambda: client.cell("a").set(b"y", 1), client.latch("a").count_down):
            with Stopwatch() as watch, pytest.raises(dibs.StoreUnavailable, match="busy") as caught:
                write()
            assert watch.seconds() < 5
            assert caught.value.name == "a"
            assert "not known" not in str(caught.value)
        assert client.cell("a").get() == (b"x", 1), "readers wait for nobody"
        assert client.latch("a").count() == 1
    assert client.cell("a").set(b"z", 1) == 2


def test_a_latch_whose_record_is_not_ours_opens_for_nobody(path: Path, connect: Connect) -> None:
    client = connect()
    client.latch("jobs").arm(1)
    latch = client.latch("jobs")
    actions: list[Callable[[], object]] = [
        lambda: latch.wait(timeout=60), latch.count, latch.count_down, lambda: latch.arm(1)
    ]  # fmt: skip
    for record in ("garbage", "", "1", "1 ", " 1", "1 2 3", "-1 2", "1 -2", "1.0 2", "a b", "9" * 50 + " 1"):
        change(path, f"UPDATE cells SET value = x'{record.encode().hex()}'")
        for action in actions:
            with pytest.raises(dibs.StoreError, match="dibs did not write") as caught:
                action()
            assert caught.value.name == "jobs"
            assert url_of(path) in str(caught.value)
        assert rows(path, "SELECT value, version FROM cells") == [(record.encode(), 1)]


def test_a_version_that_no_put_has_made_is_damage(path: Path, connect: Connect) -> None:
    """Versions are 1 or more, and the last one that a file can keep has no next: nothing is granted on such a row."""
    client = connect()
    client.latch("a").arm(1)
    client.cell("a").set(b"x", 0)
    client.fence("a").admit(5)
    actions: list[Callable[[], object]] = [
        client.latch("a").count_down, lambda: client.cell("a").update(lambda _: b"y"),
        lambda: client.fence("a").admit(6),
    ]  # fmt: skip
    for version in (-1, 0, -(2**63), 2**63 - 1):
        change(path, f"UPDATE cells SET version = {version}")
        before = rows(path, "SELECT * FROM cells")
        for action in actions:
            with pytest.raises(dibs.StoreError) as caught:
                action()
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
