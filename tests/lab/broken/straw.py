"""A small lock over one SQLite file, made of parts, each of which can be exchanged for a broken one; see locks.py.

It works as dibs does, by polling: a queue of claims for each name, tickets by AUTOINCREMENT, a claim holds if the
weight ahead of it and its own fit into the capacity, leases end by the clock. Its store is slow at times: the reply to
a grant comes late, or a step is delayed.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import dibs
from lab.surface import Want, clock

POLL = 0.003
SLOW = 0.3
"""Share of replies that are late, by about half a lease."""
TABLES = """
CREATE TABLE line (place INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, use TEXT, weight INT,
                   capacity INT, until REAL, holds INT);
CREATE TABLE woken (place INTEGER PRIMARY KEY);
CREATE TABLE grants (number INTEGER PRIMARY KEY AUTOINCREMENT);
"""


class Row(NamedTuple):
    place: int
    use: str
    weight: int
    capacity: int
    until: float
    holds: bool


@dataclass(frozen=True)
class Parts:
    admit: Callable[[Straw, Want, int], bool | None]
    """One look, which is the grant if it may be: held, not yet, or None: the claim is gone."""
    fits: Callable[[list[Row], Row], bool]
    """May a claim hold, given those before it?"""
    gone: Callable[[Row, float, float], bool]
    """Has it expired, at that instant, with that lease?"""
    deadline: Callable[[float, float, float], float]
    """The holder's own, from when it asked, when it was answered, and the lease."""
    token: Callable[[Straw, int], int]
    keep: Callable[[StrawHold], None]
    leave: Callable[[Straw, Want, int], None]
    pause: Callable[[Straw, int, float], None]
    """Between two looks, at most until that instant."""


class StrawHold:
    def __init__(self, straw: Straw, want: Want, place: int, sent: float, token: int) -> None:
        self.straw, self.want, self.place = straw, want, place
        self.deadline = straw.parts.deadline(sent, clock(), straw.lease)
        self.renew_at = sent + straw.lease / 3
        self._token = token

    @property
    def token(self) -> int:
        return self._token

    @property
    def remaining(self) -> float:
        return max(self.deadline - clock(), 0.0)

    def check(self) -> None:
        self.straw.parts.keep(self)
        if clock() >= self.deadline:
            raise dibs.LockLost("past its deadline", name=self.want.target.name)


class Straw:
    def __init__(self, path: Path, lease: float, seed: str, parts: Parts) -> None:
        self.path, self.lease, self.parts = path, lease, parts
        self.dice = random.Random(f"{seed}/slow")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    @property
    def db(self) -> sqlite3.Connection:
        if not hasattr(self._local, "db"):
            db = sqlite3.connect(self.path, isolation_level=None, timeout=10, check_same_thread=False)
            self._connections.append(db)
            db.execute("PRAGMA synchronous=OFF")
            self._local.db = db
        return self._local.db  # type: ignore[no-any-return]

    @contextmanager
    def step(self) -> Iterator[sqlite3.Connection]:
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def rows(self, name: str) -> list[Row]:
        found = self.db.execute(
            "SELECT place, use, weight, capacity, until, holds FROM line WHERE name = ? ORDER BY place", (name,)
        )
        return [Row(*row) for row in found]

    async def take(self, want: Want) -> StrawHold | None:
        end = clock() + want.timeout
        place = self._join(want)
        while True:
            sent = clock()
            answer = self.parts.admit(self, want, place)
            if answer:
                if self.dice.random() < SLOW:
                    time.sleep(self.dice.uniform(0.4, 0.6) * self.lease)
                return StrawHold(self, want, place, sent, self.parts.token(self, place))
            if answer is None:
                place = self._join(want)
            if clock() >= end:
                self.parts.leave(self, want, place)
                return None
            self.parts.pause(self, place, end)

    async def give(self, hold: StrawHold) -> None:
        late = clock() >= hold.deadline
        self.parts.leave(self, hold.want, hold.place)
        if late:
            raise dibs.LockLost("it had run out", name=hold.want.target.name)

    async def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    async def queue(self, name: str) -> list[tuple[str, int]]:
        return [(row.use, row.place) for row in self.rows(name) if not row.holds]

    async def close(self) -> None:
        for db in self._connections:
            db.close()

    def _join(self, want: Want) -> int:
        with self.step() as db:
            values = (want.target.name, want.use, want.weight, want.target.capacity, clock() + self.lease)
            place = db.execute(
                "INSERT INTO line (name, use, weight, capacity, until, holds) VALUES (?, ?, ?, ?, ?, 0)", values
            ).lastrowid
        assert place is not None
        return place


def sound_admit(straw: Straw, want: Want, place: int) -> bool | None:
    with straw.step() as db:
        now = clock()
        before: list[Row] = []
        for row in straw.rows(want.target.name):
            if straw.parts.gone(row, now, straw.lease):
                db.execute("DELETE FROM line WHERE place = ?", (row.place,))
            elif row.place == place:
                holds = straw.parts.fits(before, row)
                db.execute("UPDATE line SET until = ?, holds = ? WHERE place = ?", (now + straw.lease, holds, place))
                return holds
            else:
                before.append(row)
    return None


def sound_fits(before: list[Row], own: Row) -> bool:
    return sum(row.weight for row in before) + own.weight <= own.capacity


def sound_gone(row: Row, now: float, lease: float) -> bool:
    return row.until <= now


def sound_deadline(sent: float, answered: float, lease: float) -> float:
    return sent + 0.9 * lease


def sound_token(straw: Straw, place: int) -> int:
    return place


def sound_keep(hold: StrawHold) -> None:
    """Never past the own deadline, and only what still stands."""
    sent = clock()
    if not hold.want.renew or not hold.renew_at <= sent < hold.deadline:
        return
    with hold.straw.step() as db:
        now = clock()
        values = (now + hold.straw.lease, hold.place, now)
        kept = db.execute("UPDATE line SET until = ? WHERE place = ? AND until > ?", values).rowcount
    if kept:
        hold.deadline = max(hold.deadline, hold.straw.parts.deadline(sent, clock(), hold.straw.lease))
        hold.renew_at = sent + hold.straw.lease / 3
    else:
        hold.deadline = sent


def sound_leave(straw: Straw, want: Want, place: int) -> None:
    with straw.step() as db:
        db.execute("DELETE FROM line WHERE place = ?", (place,))


def sound_pause(straw: Straw, place: int, end: float) -> None:
    time.sleep(POLL)


SOUND = Parts(
    admit=sound_admit, fits=sound_fits, gone=sound_gone, deadline=sound_deadline, token=sound_token, keep=sound_keep,
    leave=sound_leave, pause=sound_pause,
)  # fmt: skip


def laid(path: Path) -> Path:
    """Create the file before others use it: SQLite refuses clients, without waiting, while it becomes WAL."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(TABLES)
    return path


def left(path: Path) -> list[str]:
    """The rows that are left after all clients closed."""
    with closing(sqlite3.connect(path)) as db:
        return [f"row {place} of {use}" for place, use in db.execute("SELECT place, use FROM line")]
