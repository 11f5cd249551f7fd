"""Hostile names and rows on MariaDB (cases 9, 10 and 24): each name is a lock of its own, and nonsense in the tables
never becomes a grant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dibs
from lab.servers import shared_mariadb
from store.mysql.rows import Raw


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_mariadb.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    with closing(Raw(shared_mariadb.mariadb().port, url.partition("prefix=")[2])) as made:
        yield made


ODD = [
    "a",
    "A",
    "á",
    "a ",
    "a\u0301",
    "\uff41",
    "ß",
    "ss",
    "a%",
    "a_",
    "\uff21",
    "😀",
    "'; DROP TABLE dibs_claims; --",
    "x'61'",
    "\\",
]


def test_names_that_differ_in_case_accents_or_a_space_are_different_locks(url: str) -> None:
    with dibs.connect(url) as client:
        holds = [client.lock(name).acquire(timeout=0) for name in ODD]
        assert all(holds), "one of them is taken for another"
        assert {info.name for info in client.locks()} == set(ODD)
        assert [info.name for info in client.locks("a%")] == ["a%"]
        for hold in holds:
            assert hold is not None
            hold.release()


@pytest.mark.parametrize("length", [64, 65, 192, 193, 512])
def test_long_names_work(url: str, length: int) -> None:
    """Longer than a user lock's may be, than an index's was; two that differ in their last letter are two."""
    one, two = "n" * (length - 1) + "1", "n" * (length - 1) + "2"
    with dibs.connect(url) as client, client.lock(one), client.lock(two):
        assert client.lock(one).acquire(timeout=0) is None
        assert sorted(info.name for info in client.locks()) == [one, two]


HOSTILE: dict[str, dict[str, Any]] = {
    "less than no weight": {"weight": -5},
    "no capacity": {"capacity": 0},
    "a huge weight": {"weight": 2**62},
    "for ever": {"until": 2**62, "lease": 2**61},
    "another kind": {"kind": b"\xff\xfe\x00"},
    "no JSON": {"about": b"\xff{{{"},
    "held in the year 300000": {"held": 2**62, "asked": -(2**62)},
}


def granted(ask: Callable[[], object]) -> object:
    """What is answered; an error names the lock."""
    try:
        return ask()
    except (dibs.StoreError, dibs.Mismatch) as error:
        if '"a"' not in str(error):
            raise
        return None


@pytest.mark.parametrize("table", ["dibs_queues", "dibs_claims"])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_row_grants_nothing_and_crashes_nobody(url: str, raw: Raw, case: str, table: str) -> None:
    """Whoever comes is refused, told that it is busy, or stands behind; who uses another name is served."""
    with dibs.connect(url) as client, dibs.connect(url) as other:
        hold = client.lock("a", lease=60).acquire()
        assert hold is not None
        if table == "dibs_claims":
            assert other.lock("a").acquire(timeout=0) is None  # which moves the claim out of the head
        columns = {name: value for name, value in HOSTILE[case].items() if name != "held" or table == "dibs_claims"}
        key = raw.key("dibs:a")
        raw.ask(f"UPDATE {table} SET {', '.join(f'{name} = %s' for name in columns)} WHERE name = %s",
                *columns.values(), key)  # fmt: skip
        assert raw.connection.affected_rows() == 1
        assert not granted(lambda: other.lock("a").acquire(timeout=0))
        with other.lock("b", timeout=10):
            assert [info.name for info in other.locks("b")] == ["b"]
        granted(lambda: other.inspect("a"))
        for cleared in ("dibs_claims", "dibs_queues"):
            raw.ask(f"DELETE FROM {cleared} WHERE name = %s", key)
        with other.lock("a", timeout=10):
            pass


def test_a_row_that_lasts_for_ever_can_be_broken(url: str, raw: Raw) -> None:
    with dibs.connect(url) as client:
        hold = client.lock("a", lease=60, renew=False).acquire()
        assert hold is not None
        raw.ask("UPDATE dibs_queues SET until = %s, lease = %s WHERE name = %s", 2**62, 2**61, raw.key("dibs:a"))
        client.break_("a", token=hold.token)
        with client.lock("a", timeout=10):
            pass


def test_hostile_values_of_cells(url: str, raw: Raw) -> None:
    with dibs.connect(url) as client:
        cell = client.cell("a")
        cell.set(b"1", 0)
        raw.ask("UPDATE dibs_cells SET value = NULL WHERE name = %s", raw.key("dibs:a"))
        with pytest.raises(dibs.StoreError, match='"a"'):
            cell.get()
        fence = client.fence("f")
        fence.admit(5)
        for value in (b"-7", b"x", b"9" * 30, b""):
            raw.ask("UPDATE dibs_cells SET value = %s WHERE name = %s", value, raw.key("dibs:f"))
            with pytest.raises(dibs.StoreError):
                fence.admit(6)
