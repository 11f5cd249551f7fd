"""KeyboardInterrupt at every entry and line of dibs leaves nothing behind.

Each operation is run again and again, interrupted one point later each time, until it ends by itself. What may be left
is counted: free at once, after a turn of the keeper, only when the lease was over, or never.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count, product
from pathlib import Path
from threading import Thread

import pytest

import dibs
from interrupts.lines import CHECKS, LINES, Case, Interrupt
from interrupts.stores import LEASES, SERVERS, SESSIONS, STORES, UNSUPPORTED

FEWEST_POINTS, MOST_POINTS = 100, 9000
SAMPLED = 13
"""Where an operation takes milliseconds, every so many points are tried in each run of the tests, all in the soak."""
OTHERS = 30.0
"""The lease of whoever is in the way: that is how ours are told from theirs."""

Operation = Callable[[dibs.Client, str], None]


def with_lock(client: dibs.Client, name: str) -> None:
    with client.lock(name):
        pass


def acquire_release(client: dibs.Client, name: str) -> None:
    lock = client.lock(name)
    lock.acquire()
    lock.release()


def release_the_hold(client: dibs.Client, name: str) -> None:
    hold = client.lock(name).acquire()
    assert hold is not None
    hold.release()


def rlock_twice(client: dibs.Client, name: str) -> None:
    lock = client.rlock(name)
    with lock, lock:
        pass


def read_then_write(client: dibs.Client, name: str) -> None:
    lock = client.rwlock(name)
    with lock.read, lock.read:
        pass
    with lock.write, lock.read:
        pass


def write_becomes_read(client: dibs.Client, name: str) -> None:
    with client.rwlock(name).write as hold:
        hold.downgrade()


def two_permits(client: dibs.Client, name: str) -> None:
    pool = client.semaphore(name, 3)
    with pool.acquire(2):  # type: ignore[union-attr]
        pass


def stripe(client: dibs.Client, name: str) -> None:
    with client.striped(name, 4).at("key"):
        pass


def several(client: dibs.Client, name: str) -> None:
    with dibs.multi(client.lock(name), client.rlock(name + "-b")):
        pass


def in_vain(client: dibs.Client, name: str) -> None:
    assert client.lock(name).acquire(timeout=0.02) is None


def in_vain_with(client: dibs.Client, name: str) -> None:
    with pytest.raises(dibs.AcquireTimeout), client.lock(name, timeout=0):
        pass


def in_vain_outside(client: dibs.Client, name: str) -> None:
    assert client.lock(name, fair=False).acquire(timeout=0.02) is None


def after_waiting(client: dibs.Client, name: str) -> None:
    with client.lock(name, timeout=5):
        pass


@contextmanager
def nobody(other: dibs.Client, name: str) -> Iterator[None]:
    yield


@contextmanager
def somebody_holds(other: dibs.Client, name: str) -> Iterator[None]:
    with other.lock(name):
        yield


@contextmanager
def somebody_lets_go(other: dibs.Client, name: str) -> Iterator[None]:
    """Holds until somebody waits."""
    hold = other.lock(name).acquire()
    assert hold is not None
    over = []

    def let_go() -> None:
        until = time.monotonic() + 5
        while not over and not other.inspect(name).waiters and time.monotonic() < until:
            time.sleep(0.0005)
        hold.release()

    thread = Thread(target=let_go)
    thread.start()
    try:
        yield
    finally:
        over.append(True)
        thread.join()


OPERATIONS: dict[str, tuple[Operation, Callable[[dibs.Client, str], object]]] = {
    "with lock": (with_lock, nobody),
    "acquire, release": (acquire_release, nobody),
    "acquire, hold.release": (release_the_hold, nobody),
    "rlock, twice": (rlock_twice, nobody),
    "rwlock": (read_then_write, nobody),
    "downgrade": (write_becomes_read, nobody),
    "semaphore": (two_permits, nobody),
    "stripe": (stripe, nobody),
    "multi": (several, nobody),
    "in vain": (in_vain, somebody_holds),
    "in vain, with": (in_vain_with, somebody_holds),
    "in vain, outside": (in_vain_outside, somebody_holds),
    "after waiting": (after_waiting, somebody_lets_go),
}


PARTS = {"multi": ("-b",), "stripe": ("#0", "#1", "#2", "#3")}
"""What else an operation takes, by the ends of its names."""


class Run:
    """All interrupted runs of one operation on one store."""

    def __init__(self, url: str, lease: float, what: str, mode: str, *, fresh: bool, each: int) -> None:
        self.url = url
        self.lease = lease
        self.mode = mode
        self.fresh = fresh
        self.each = each
        self.operation, self.around = OPERATIONS[what]
        self.what = what
        self.cases: list[Case] = []
        self.last: dibs.Client | None = None
        self.other = dibs.connect(url, lease=OTHERS)

    def interrupt_everywhere(self) -> None:
        client = dibs.connect(self.url, lease=self.lease)
        self.operation_once(client)
        for n in count(1, self.each):
            assert n < MOST_POINTS
            if self.fresh:
                client = dibs.connect(self.url, lease=self.lease)
            name = f"n{n}"
            with self.around(self.other, name):  # type: ignore[attr-defined]
                with Interrupt(n, self.mode) as interrupt:
                    self.operation(client, name)
                if interrupt.point is None:
                    self.last = client
                    return
                case = Case(interrupt.point, client, (name, *(name + part for part in PARTS.get(self.what, ()))))
                self.cases.append(case)
                began = time.monotonic()
                if self.is_free(case):
                    case.free_after = 0.0
            self.wait_until_free([case], began, began + 0.02)

    def operation_once(self, client: dibs.Client) -> None:
        """What an operation imports or makes on first use is not part of it."""
        with self.around(self.other, "warm-up"):  # type: ignore[attr-defined]
            self.operation(client, "warm-up")

    def is_free(self, case: Case) -> bool:
        """Nothing of that client stands in the store: somebody else's hold is the one with the long lease."""
        for name in case.names:
            info = self.other.inspect(name)
            if any(one.remaining < OTHERS / 2 for one in (*info.holders, *info.waiters)):
                return False
        return True

    def wait_until_free(self, cases: list[Case], began: float, until: float) -> None:
        while pending := [case for case in cases if case.free_after is None]:
            for case in pending:
                if self.is_free(case):
                    case.free_after = time.monotonic() - began
            if time.monotonic() >= until:
                return
            time.sleep(0.0005)

    def check_free(self) -> None:
        began = time.monotonic()
        free_by = began + self.lease + 1.0
        self.wait_until_free([case for case in self.cases if not case.point.before_ours], began, free_by)

    def check_keepers(self) -> None:
        """Every client still works, and its keeper renews."""
        for n, case in enumerate({case.client: case for case in self.cases}.values()):
            case.kept = case.client.lock(f"keep-{n}").acquire(timeout=5)
            assert case.kept is not None, f"after an interrupt at {case.point}"
        waiting = [(case, case.kept.remaining) for case in self.cases if case.kept is not None]
        end = time.monotonic() + 2 * self.lease
        while waiting and time.monotonic() < end:
            waiting = [(case, now) for case, before in waiting if (now := case.kept.remaining) <= before]
            time.sleep(0.002)
        assert not waiting, "the keeper is dead after an interrupt at\n" + "\n".join(
            str(one.point) for one, _ in waiting
        )
        for case in self.cases:
            if case.kept is not None:
                case.kept.release()

    def count(self) -> Counter[str]:
        """What happened, for the report."""
        found: Counter[str] = Counter()
        for case in self.cases:
            after = case.free_after
            found["before our code" if case.point.before_ours else self.bin(after)] += 1
        return found

    def bin(self, after: float | None) -> str:
        """A claim that nobody wants is noticed at its next renewal, at the latest."""
        if after is None:
            return "never"
        return "at once" if after == 0.0 else "keeper" if after <= self.lease / 3 + 0.15 else "lease"

    def close(self) -> None:
        for client in {case.client for case in self.cases} | {self.last, self.other}:
            if client is not None:
                client.close()


def _plan() -> Iterator[object]:
    """Everything on memory, the commonest operation on sqlite, samples of the commonest on servers; the rest of those
    is for `scripts/soak`."""
    for store in STORES:
        for what in OPERATIONS:
            common = store == "memory" or (store, what) == ("sqlite", "with lock")
            yield _case(store, what, CHECKS, fresh=False, marks=[] if common else [pytest.mark.soak])
            yield _case(store, what, LINES, fresh=False, marks=[pytest.mark.slow if common else pytest.mark.soak])
        for what in ("with lock", "multi", "in vain"):
            yield _case(
                store, what, CHECKS, fresh=True, marks=[pytest.mark.slow if store == "memory" else pytest.mark.soak]
            )
    for store, what in product(SESSIONS, sorted(OPERATIONS.keys() - UNSUPPORTED - {"multi"})):
        yield _case(store, what, CHECKS, fresh=False, marks=[pytest.mark.soak])
    for store, what in product(sorted(SERVERS), ("with lock", "semaphore", "downgrade", "after waiting")):
        yield _case(store, what, CHECKS, fresh=False, marks=[pytest.mark.slow], each=SAMPLED)


def _case(store: str, what: str, mode: str, *, fresh: bool, marks: list[pytest.MarkDecorator], each: int = 1) -> object:
    name = f"{store}-{what}-{mode}{'-first use' if fresh else ''}{'-sampled' if each > 1 else ''}"
    return pytest.param(store, what, mode, fresh, each, id=name, marks=marks)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize(("store", "what", "mode", "fresh", "each"), list(_plan()))
def test_an_interrupt_leaves_nothing_behind(
    store: str, what: str, mode: str, fresh: bool, each: int, tmp_path: Path
) -> None:
    url = {**STORES, **SESSIONS}[store](tmp_path)
    with closing(Run(url, LEASES[store], what, mode, fresh=fresh, each=each)) as run:
        run.interrupt_everywhere()
        assert len(run.cases) * each > FEWEST_POINTS, "the tracing sees nothing"
        run.check_free()
        print(f"\n{what} on {store}: {len(run.cases)} {mode}: {dict(run.count())}")
        for case in run.cases:
            if not case.point.before_ours and run.bin(case.free_after) == "lease":
                print("  needed the lease:", case.point)
        forgotten = [str(case.point) for case in run.cases if not case.point.before_ours and case.free_after is None]
        assert not forgotten, "held by nobody after an interrupt at\n" + "\n".join(forgotten)
        run.check_keepers()
