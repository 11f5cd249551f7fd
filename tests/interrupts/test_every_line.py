"""KeyboardInterrupt at every point where Python checks for signals leaves nothing behind.

Each operation is run again and again, interrupted one point later each time. `scripts/soak interrupts` tries all
points on all stores; other runs try a sample: points where the store is entered and left, and some that a seed draws.
The seed is printed with a failure; DIBS_INTERRUPTS_SEED sets it.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count, pairwise, product
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import dibs
from interrupts.points import Case, Interrupt
from interrupts.stores import LEASES, SERVERS, STORES

FEWEST_POINTS, MOST_POINTS = 60, 20_000
"""A free pair has about ninety."""
SEED = int(os.environ.get("DIBS_INTERRUPTS_SEED", "17"))
DRAWN, CROSSINGS = 12, 16
"""The size of a sample: random points, and points where the store is entered or left."""
SOCKETS = ("unclosed <socket", "unclosed <ssl.SSLSocket")
KEPT = 6.0
"""The longest lease of a hold whose renewal is waited for."""
CLIENTS = 100
"""Open at the same time, at most: a server limits its connections."""
OTHERS = 120.0
"""The lease of other clients: that is how ours are told from theirs."""
PATIENCE = 40.0

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


def several_by_hand(client: dibs.Client, name: str) -> None:
    both = dibs.multi(client.lock(name), client.rlock(name + "-b"))
    both.acquire()
    both.release()
    with both.acquire():  # type: ignore[union-attr]
        pass


def in_vain(client: dibs.Client, name: str) -> None:
    assert client.lock(name).acquire(timeout=0.02) is None


def in_vain_with(client: dibs.Client, name: str) -> None:
    with pytest.raises(dibs.AcquireTimeout), client.lock(name, timeout=0):
        pass


def in_vain_unfair(client: dibs.Client, name: str) -> None:
    assert client.lock(name, fair=False).acquire(timeout=0.02) is None


def after_waiting(client: dibs.Client, name: str) -> None:
    with client.lock(name, timeout=PATIENCE):
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
        until = time.monotonic() + PATIENCE
        while not over and not other.inspect(name).waiters and time.monotonic() < until:
            time.sleep(0.001)
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
    "multi, by hand": (several_by_hand, nobody),
    "in vain": (in_vain, somebody_holds),
    "in vain, with": (in_vain_with, somebody_holds),
    "in vain, outside": (in_vain_unfair, somebody_holds),
    "after waiting": (after_waiting, somebody_lets_go),
}


FIRST = {("memory", what) for what in ("with lock", "rlock, twice", "rwlock", "multi", "in vain", "after waiting")}
"""In scripts/test. The lease of the others is so short that a process that stands still would lose its lock."""
PARTS = {"multi": ("-b",), "multi, by hand": ("-b",), "stripe": ("#0", "#1", "#2", "#3")}
"""The suffixes of other names that an operation takes."""


class Run:
    """All interrupted runs of one operation on one store."""

    def __init__(self, url: str, lease: float, what: str, *, fresh: bool, sampled: bool) -> None:
        self.others = max(OTHERS, 4 * lease)
        self.url, self.lease, self.what = url, lease, what
        self.fresh, self.sampled = fresh, sampled
        self.operation, self.around = OPERATIONS[what]
        self.cases: list[Case] = []
        """Interrupted runs that `check` has not seen yet."""
        self.points = self.tried = 0
        self.other = dibs.connect(url, lease=self.others)
        self.clients: list[dibs.Client] = []

    def interrupt_everywhere(self) -> None:
        client = self.client()
        self.run(client, ["warm-up"], 0)  # what an operation imports or makes on first use is not part of it
        for n in self.sample(client) if self.sampled else count(1):
            assert n < MOST_POINTS
            if len(self.clients) == CLIENTS:
                self.check()
            client = self.client() if self.fresh else client
            name = f"n{n}"
            names = (name, *(name + part for part in PARTS.get(self.what, ())))
            interrupt, is_free = self.run(client, names, n)
            if interrupt.point is None and not self.sampled:
                self.points = n
                return
            if interrupt.point is not None:  # whoever waits may come past fewer points than before
                self.cases.append(Case(interrupt.point, client, names, is_free))

    def client(self) -> dibs.Client:
        self.clients.append(dibs.connect(self.url, lease=self.lease))
        return self.clients[-1]

    def run(self, client: dibs.Client, names: Sequence[str], n: int) -> tuple[Interrupt, bool]:
        """Gives also whether nothing stood in the store at once."""
        with self.around(self.other, names[0]):  # type: ignore[attr-defined]
            with Interrupt(n) as interrupt:
                self.operation(client, names[0])
            return interrupt, n > 0 and self.is_free(names)

    def sample(self, client: dibs.Client) -> list[int]:
        seen = self.run(self.client() if self.fresh else client, ["n0"], 0)[0].seen
        self.points = len(seen)
        dice = random.Random(f"{SEED} {self.what}")
        crossing = [
            n for n, (one, next_) in enumerate(pairwise(seen), 1)
            if one.file.startswith("backends") != next_.file.startswith("backends")
        ]  # fmt: skip
        around = {n + more for n in crossing for more in (0, 1)}
        some = dice.sample(sorted(around), min(CROSSINGS, len(around)))
        return sorted({*some, *dice.sample(range(1, self.points + 1), min(DRAWN, self.points))})

    def is_free(self, names: Iterable[str]) -> bool:
        """Nothing of that client is in the store: the hold of another has the long lease."""
        infos = [self.other.inspect(name) for name in names]
        return not any(one.remaining < self.others / 2 for info in infos for one in (*info.holders, *info.waiters))

    def check(self) -> None:
        """The cases so far left nothing behind, and their clients work; then these are closed."""
        self.tried += len(self.cases)
        forgotten = "\n".join(str(case.point) for case in self.forgotten())
        assert not forgotten, f"held by nobody after an interrupt at\n{forgotten}"
        self.check_watchdogs()
        self.cases.clear()
        while self.clients:
            self.clients.pop().close()
        gc.collect()  # an error in a finaliser must be reported during this test

    def forgotten(self) -> list[Case]:
        """The cases with claims still in the store. A claim that nobody wants is noticed at its next renewal, on memory
        after the end of this, or ends with its lease; one that was forgotten is renewed for ever."""
        end = time.monotonic() + PATIENCE
        while True:
            pending = [case for case in self.cases if not (case.is_free or case.point.before_ours)]
            for case in pending:
                case.is_free = self.is_free(case.names)
            if not pending or time.monotonic() >= end:
                return pending
            time.sleep(0.01)

    def check_watchdogs(self) -> None:
        """Every client still works, and its watchdog renews."""
        for n, case in enumerate({case.client: case for case in self.cases}.values()):
            hold = case.client.lock(f"keep-{n}", lease=min(self.lease, KEPT)).acquire(timeout=PATIENCE)
            assert hold is not None, f"after an interrupt at {case.point}"
            case.kept = hold, hold.remaining
        waiting, end = [case for case in self.cases if case.kept is not None], time.monotonic() + PATIENCE
        while waiting:
            points = "\n".join(str(case.point) for case in waiting)
            assert time.monotonic() < end, f"the watchdog is dead after an interrupt at\n{points}"
            time.sleep(0.01)
            waiting = [case for case in waiting if not self.is_renewed(case)]

    def is_renewed(self, case: Case) -> bool:
        """More of its lease is left than at the last look."""
        assert case.kept is not None
        hold, before = case.kept
        hold.check()
        case.kept = hold, hold.remaining
        return case.kept[1] > before

    def close(self) -> None:
        for client in (*self.clients, self.other):
            client.close()


def _plan() -> Iterator[object]:
    for store, what in product(("memory", "sqlite"), OPERATIONS):
        yield _case(store, what, sampled=True, marks=() if (store, what) in FIRST else pytest.mark.gate)
    for store, what in product(sorted(SERVERS), ("with lock", "after waiting")):
        yield _case(store, what, sampled=True, marks=pytest.mark.gate)
    for store in STORES:
        for what in OPERATIONS:
            yield _case(store, what, marks=pytest.mark.soak)
        for what in ("with lock", "multi", "in vain"):
            yield _case(store, what, fresh=True, marks=pytest.mark.soak)


def _case(store: str, what: str, *, fresh: bool = False, sampled: bool = False, marks: Any) -> object:
    name = f"{store}-{what}{'-first use' if fresh else ''}{'-sampled' if sampled else ''}"
    return pytest.param(store, what, fresh, sampled, id=name, marks=marks)


@pytest.fixture
def _finalisers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python only reports an error in a finaliser. Two are expected: the interrupt itself, and the warning that Python
    closed a socket because the interrupt came before dibs could keep it. Any other fails the test."""
    report = sys.unraisablehook

    def hook(found: sys.UnraisableHookArgs) -> None:
        raised = found.exc_value
        if not isinstance(raised, KeyboardInterrupt) and not str(raised).startswith(SOCKETS):
            report(found)

    monkeypatch.setattr(sys, "unraisablehook", hook)


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper's client connects again without a pause: every other interrupt ends a connection."""
    monkeypatch.setattr("dibs.backends.zookeeper.wire.client._PAUSES", (0.0,))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.usefixtures("_finalisers", "_no_pauses")
@pytest.mark.parametrize(("store", "what", "fresh", "sampled"), list(_plan()))
def test_an_interrupt_leaves_nothing_behind(store: str, what: str, fresh: bool, sampled: bool, tmp_path: Path) -> None:
    with closing(Run(STORES[store](tmp_path), LEASES[store], what, fresh=fresh, sampled=sampled)) as run:
        run.interrupt_everywhere()
        run.check()
        print(f"\n{what} on {store}: {run.tried} of {run.points}, DIBS_INTERRUPTS_SEED={SEED}")
        assert run.points > FEWEST_POINTS, "the tracing sees nothing"
        assert run.tried
