"""The rules of the Cells interface (core/cells.py): versions, repeated puts, watching, admitting."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from itertools import pairwise

import pytest

import dibs
from dibs.core.cells import CELL, FENCE, LARGEST, LATCH, UNSET_CELL, CellKey, CellValue, Write
from dibs.core.queue import CELLS, Replaced
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from dibs.testing.contract.worlds import needs

pytestmark = needs(CELLS)
HERE = CellKey(CELL, "a")
LONG = 60.0
"""Timeout of a watch, in seconds. A watch that returns earlier noticed a change."""


class Watching(threading.Thread):
    """A watch in a thread of its own."""

    def __init__(self, client: CellsClient, cell_key: CellKey, version: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._client, self._cell_key, self._version = client, cell_key, version
        self.until = client.now() + seconds
        self.ended_at = float("inf")
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        seat = self._client.seat
        key = seat.runtime.fresh_id()
        seat.me.inbox.expect(key)
        try:
            step(self._client.cells.watch(self._cell_key, self._version, key, self.until))
        except BaseException as error:
            self.error = error
        finally:
            seat.me.inbox.forget(key)
            self.ended_at = self._client.now()

    def heard(self) -> bool:
        """Whether it returned before its timeout."""
        self.join(LONG + 10)
        assert not self.is_alive(), "a watch hangs"
        assert self.error is None, self.error
        return self.ended_at < self.until


class CellsClient:
    """A client that calls the operations of the Cells interface directly."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.now = seat.now
        self.cells = seat.store.open_cells(seat.runtime, seat.me)

    def get(self, cell_key: CellKey = HERE) -> CellValue:
        return step(self.cells.get(cell_key, self.seat.soon))

    def write(self, value: bytes, version: int, cell_key: CellKey = HERE, *, by: float = 30.0) -> Write:
        return Write(cell_key, value, version, self.seat.runtime.fresh_id(), self.now() + by)

    def put(self, write: Write) -> int:
        return step(self.cells.put(write, self.seat.soon))

    def set(self, value: bytes, version: int, cell_key: CellKey = HERE) -> int:
        return self.put(self.write(value, version, cell_key))

    def admit(self, token: int, *, shared: bool = False, name: str = "a") -> int:
        """The highest token that was admitted before."""
        return step(self.cells.admit(name, token, shared, self.seat.soon))

    def watch(self, version: int, cell_key: CellKey = HERE, *, seconds: float = LONG) -> Watching:
        return Watching(self, cell_key, version, seconds)


@pytest.fixture
def cells_clients(seats: Callable[[], Seat]) -> Iterator[Callable[[], CellsClient]]:
    """A function that makes clients of one empty store."""
    made: list[CellsClient] = []

    def client() -> CellsClient:
        made.append(CellsClient(seats()))
        return made[-1]

    yield client
    for one in made:
        one.cells.close()


@pytest.fixture
def here(cells_clients: Callable[[], CellsClient]) -> CellsClient:
    return cells_clients()


@pytest.fixture
def there(cells_clients: Callable[[], CellsClient]) -> CellsClient:
    return cells_clients()


def at_once(*actions: Callable[[], object]) -> None:
    """Run each action in a thread of its own; all start at the same time."""
    barrier = threading.Barrier(len(actions))
    failed: list[BaseException] = []

    def run(action: Callable[[], object]) -> None:
        try:
            barrier.wait(LONG)
            action()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)
    assert not failed, failed


# 1. Versions.


def test_a_name_is_unset_at_version_0(here: CellsClient) -> None:
    assert here.get() == UNSET_CELL == (None, 0)


def test_each_put_raises_the_version_by_one(here: CellsClient, there: CellsClient) -> None:
    for version in range(6):
        one = (here, there)[version % 2]
        assert one.set(b"%d" % version, version) == version + 1
        assert here.get() == there.get() == (b"%d" % version, version + 1)


def test_a_value_is_kept_as_it_is(here: CellsClient, there: CellsClient) -> None:
    for version, value in enumerate((b"", bytes(range(256)), b"\x00" * 10, bytes(LARGEST))):
        here.set(value, version)
        assert there.get() == (value, version + 1)


# 2. One version, one put.


def test_a_put_at_another_version_changes_nothing(here: CellsClient, there: CellsClient) -> None:
    here.set(b"one", 0)
    here.set(b"two", 1)
    for version in (0, 1, 3, 4, 2**62):
        with pytest.raises(dibs.Conflict, match="version 2"):
            there.set(b"three", version)
        assert here.get() == (b"two", 2)


def test_a_put_at_a_version_of_an_unset_name_changes_nothing(here: CellsClient) -> None:
    with pytest.raises(dibs.Conflict):
        here.set(b"x", 1)
    assert here.get() == UNSET_CELL


def test_of_two_writers_at_one_version_one_succeeds(cells_clients: Callable[[], CellsClient]) -> None:
    writers = [cells_clients() for _ in range(4)]
    rounds = 15
    done: list[tuple[int, bytes]] = []

    def writing(client: CellsClient, mark: bytes) -> None:
        for version in range(rounds):
            until(lambda version=version: client.get().version >= version)
            try:
                done.append((client.set(mark, version), mark))
            except dibs.Conflict:
                continue

    at_once(*(lambda one=one, n=n: writing(one, b"%d" % n) for n, one in enumerate(writers)))
    assert sorted(version for version, _ in done) == list(range(1, rounds + 1))
    assert writers[0].get() == (dict(done)[rounds], rounds)


# 3. A put that is repeated.


def test_a_repeated_put_reports_its_first_success(here: CellsClient) -> None:
    write = here.write(b"one", 0)
    assert not write.asked
    assert [here.put(write) for _ in range(3)] == [1, 1, 1]
    assert write.asked
    assert here.get() == (b"one", 1)


def test_a_repeated_put_reports_its_first_success_after_a_later_write(here: CellsClient, there: CellsClient) -> None:
    write = here.write(b"one", 0)
    late = copy(write)
    late.asked = True  # a copy of the request that arrives late
    assert here.put(write) == 1
    for version in range(1, 5):
        there.set(b"later", version)
    assert here.put(write) == 1
    assert here.put(late) == 1
    assert here.get() == (b"later", 5), "a late copy of an answered put changes nothing"


def test_a_repeated_put_over_another_connection_reports_too(here: CellsClient) -> None:
    write, other = here.write(b"one", 0), CellsClient(here.seat)
    try:
        assert here.put(write) == 1
        here.set(b"two", 1)
        assert other.put(write) == 1
    finally:
        other.cells.close()


def test_a_put_in_conflict_stays_in_conflict(here: CellsClient, there: CellsClient) -> None:
    write = here.write(b"mine", 0)
    there.set(b"theirs", 0)
    for _ in range(3):
        with pytest.raises(dibs.Conflict):
            here.put(write)
    assert here.get() == (b"theirs", 1)


def test_two_puts_with_one_text_are_two(here: CellsClient) -> None:
    here.put(here.write(b"x", 0))
    again = here.write(b"x", 0)
    again.asked = True
    with pytest.raises(dibs.Conflict):
        here.put(again)


def test_a_put_after_its_time_does_nothing(here: CellsClient) -> None:
    for asked in (False, True):
        write = here.write(b"late", 0, by=-0.001)
        write.asked = asked
        with pytest.raises(dibs.StoreUnavailable) as caught:
            here.put(write)
        assert not isinstance(caught.value, Replaced)
        assert here.get() == UNSET_CELL


def test_a_repeated_put_after_its_time_does_nothing(here: CellsClient) -> None:
    write = here.write(b"one", 0, by=2.0)
    assert here.put(write) == 1
    until(lambda: here.now() > write.by)
    with pytest.raises(dibs.StoreUnavailable):
        here.put(write)
    assert here.get() == (b"one", 1)


def test_a_put_is_remembered_until_its_time_however_many_came_since(here: CellsClient, there: CellsClient) -> None:
    write = here.write(b"one", 0)
    assert here.put(write) == 1
    while (version := there.get().version) < 30:
        with suppress(dibs.StoreUnavailable):  # it arrived too late and did nothing
            there.put(there.write(b"x", version, by=0.02))
    assert here.put(write) == 1


# 4. Watching.


def test_a_watch_returns_at_once_if_the_version_is_another_one(here: CellsClient) -> None:
    here.set(b"x", 0)
    for version in (0, 2, 7):
        assert here.watch(version).heard()
    assert here.watch(1, CellKey(CELL, "unset")).heard()


def test_a_watch_returns_on_a_put_of_another_client_and_of_the_same(here: CellsClient, there: CellsClient) -> None:
    for version in range(12):
        watching = here.watch(version)
        writer = (there, here)[version % 2]
        writer.set(b"same", version)  # sometimes before the watch begins, sometimes after; both must work
        assert watching.heard()
        assert here.get().version == version + 1, "the same value again is another version"


def test_a_watch_ends_by_itself(here: CellsClient) -> None:
    here.set(b"x", 0)
    watching = here.watch(1, seconds=0.1)
    until(lambda: not watching.is_alive())
    assert here.get() == (b"x", 1)


def test_all_who_watch_hear(cells_clients: Callable[[], CellsClient]) -> None:
    here, there, writer = cells_clients(), cells_clients(), cells_clients()
    for version in range(2):
        watching = [one.watch(version) for one in (here, there) * 15]
        writer.set(b"x", version)
        assert all(one.heard() for one in watching)


def test_a_change_elsewhere_is_none_here(here: CellsClient, there: CellsClient) -> None:
    """A watch may wake for another cell's change, but must not miss its own because of it."""
    watching = here.watch(0)
    for elsewhere in (CellKey(CELL, "b"), CellKey(LATCH, "a"), CellKey(FENCE, "a")):
        there.set(b"x", 0, elsewhere)
    assert here.get() == UNSET_CELL
    there.set(b"x", 0)
    assert watching.heard()


# Spaces.


def test_spaces_and_names_are_apart(here: CellsClient, there: CellsClient) -> None:
    spots = [
        CellKey(space, name) for space in (LATCH, CELL) for name in ("a", "A", "a ", "é", "cella", "a/b", "%", "'")
    ]
    for number, cell_key in enumerate(spots):
        assert here.set(b"%d" % number, 0, cell_key) == 1
    assert [there.get(cell_key) for cell_key in spots] == [(b"%d" % number, 1) for number in range(len(spots))]


def test_cells_are_no_locks(here: CellsClient) -> None:
    """Cells and a lock of the same name do not affect each other, and cells are not listed with the locks."""
    here.set(b"x", 0)
    here.admit(7)
    assert here.seat.names() == []
    _, standing = here.seat.joined(name="a")
    assert standing.holds
    assert here.seat.evict(standing.ticket)
    assert here.get() == (b"x", 1)
    assert here.admit(7) == 7


# 5. Admitting.


def test_an_exclusive_token_is_admitted_unless_a_higher_one_was(here: CellsClient, there: CellsClient) -> None:
    assert [here.admit(5), there.admit(5), here.admit(9), there.admit(7), here.admit(9)] == [0, 5, 5, 9, 9]


def test_a_shared_token_never_raises_the_mark(here: CellsClient, there: CellsClient) -> None:
    assert here.admit(8, shared=True) == 0
    assert there.admit(3) == 0
    assert here.admit(9, shared=True) == 3
    assert there.admit(4) == 3
    assert here.admit(3, shared=True) == 4
    assert here.admit(4) == 4


def test_fences_are_apart(here: CellsClient) -> None:
    here.admit(9, name="a")
    assert here.admit(1, name="b") == 0
    assert here.admit(9, name="a") == 9


def test_tokens_are_whole_numbers_to_the_last_digit(here: CellsClient) -> None:
    for token in (1, 10, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 2):
        here.admit(token)
        assert here.admit(token + 1) == token
        assert here.admit(token) == token + 1


def test_admitting_is_one_step(cells_clients: Callable[[], CellsClient]) -> None:
    """Each admitted token saw the next lower admitted token as the highest: no two were admitted at once."""
    tokens = random.Random(4).sample(range(1, 10_000), 200)
    before: dict[int, int] = {}
    resources = [cells_clients() for _ in range(4)]

    def admitting(client: CellsClient, mine: list[int]) -> None:
        for token in mine:
            before[token] = client.admit(token)

    at_once(*(lambda one=one, n=n: admitting(one, tokens[n::4]) for n, one in enumerate(resources)))
    admitted = [0, *sorted(token for token, highest in before.items() if highest < token)]
    assert [(before[token], token) for token in admitted[1:]] == list(pairwise(admitted))
    assert admitted[-1] == max(tokens)
    assert all(before[token] in admitted for token in tokens)


def test_a_record_that_is_not_ours_admits_nobody(here: CellsClient) -> None:
    for version, record in enumerate((b"", b"garbage", b"-5", b"1.5", b"5 ", b"\xff", b"9" * 21)):
        here.set(record, version, CellKey(FENCE, "a"))
        for shared in (False, True):
            with pytest.raises(dibs.StoreError, match="dibs did not write"):
                here.admit(2**62, shared=shared)
        assert here.get(CellKey(FENCE, "a")) == (record, version + 1)
