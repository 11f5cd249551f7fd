"""The tables, and every SQL statement of the embedded store. The verbs themselves are in
backends/common/atomic_queue.py.

Entries are clustered by (name, ticket): a queue is one walk, and a verb changes one page. Times are seconds of the
clock that counts since boot, which is one clock for all processes of the machine and never goes back.

A ticket is that clock in microseconds plus the store's `base`, read while the write lock is held: lock, commit and the
next lock take longer than a microsecond, so tickets rise strictly, for all names, and nobody need write a counter.
Tickets below `reserved` may be given; it lies up to a minute ahead and is raised by a write that survives a power cut.
Another boot of the machine, whose clock starts again, begins behind it, or at the microseconds of the wall clock if
that is later, as a new file does: so tokens go on rising also when a file was removed and made anew, as far as the
wall clock can be believed.
"""

from __future__ import annotations

import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from dibs.backends.common.atomic_queue import NOBODY, Tombs, Wake
from dibs.backends.sqlite.presence import ID_SIZE, Others
from dibs.core.cells import UNSET_CELL, CellKey, CellValue, Write
from dibs.core.deadline import FOREVER
from dibs.core.queue import ELECTION, QUEUE, YOURS, Place
from dibs.core.rule import Claim, Entry, Standing
from dibs.errors import StoreError

APPLICATION = 0x64696273
VERSION = 2
BLOCK = 60 * 1_000_000
"""How far ahead tickets are reserved: a minute's worth."""

SCHEMA = """
CREATE TABLE store (
    one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, boot TEXT NOT NULL,
    base INTEGER NOT NULL, reserved INTEGER NOT NULL
) STRICT;
CREATE TABLE claims (
    name TEXT NOT NULL, ticket INTEGER NOT NULL, id BLOB NOT NULL, client BLOB NOT NULL, kind TEXT NOT NULL,
    capacity INTEGER NOT NULL, weight INTEGER NOT NULL, until REAL NOT NULL, asked REAL NOT NULL, held REAL,
    revoked INTEGER NOT NULL, about TEXT NOT NULL, PRIMARY KEY (name, ticket)
) STRICT, WITHOUT ROWID;
CREATE TABLE clients (
    id BLOB PRIMARY KEY, live TEXT NOT NULL, dev INTEGER NOT NULL, ino INTEGER NOT NULL, address TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE outsiders (
    name TEXT NOT NULL, id BLOB NOT NULL, client BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (name, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE cells (
    space TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (space, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE writes (
    until REAL NOT NULL, id BLOB NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (until, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE watchers (
    space TEXT NOT NULL, name TEXT NOT NULL, id BLOB NOT NULL, client BLOB NOT NULL, PRIMARY KEY (space, name, id)
) STRICT, WITHOUT ROWID;
"""
STATEMENTS = tuple(statement.strip() for statement in SCHEMA.split(";") if statement.strip())

_NO_VERSION = 2**63 - 1
"""As large as SQLite's integers get: nothing can follow it."""
_WALK = "ticket, id, client, kind, capacity, weight, until, asked, held, revoked"
_QUEUE = f"SELECT {_WALK}, '' FROM claims WHERE name = ? ORDER BY ticket"
_QUEUE_WITH_DESCRIPTION = f"SELECT {_WALK}, about FROM claims WHERE name = ? ORDER BY ticket"
_BY_TICKET = f"SELECT {_WALK}, '' FROM claims WHERE name = ? AND ticket = ?"
_BY_ID = f"SELECT {_WALK}, '' FROM claims WHERE name = ? AND id = ?"
_BY_CLIENT = f"SELECT {_WALK}, '' FROM claims WHERE name = ? AND client = ?"
_ADD = "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_WRITE = "UPDATE claims SET weight = ?, until = ?, held = ?, revoked = ? WHERE name = ? AND ticket = ?"
_REMOVE = "DELETE FROM claims WHERE name = ? AND ticket = ?"
_JOIN = """
INSERT OR IGNORE INTO claims VALUES (?1,
    CASE WHEN clock() <= ?2 AND NOT buried(?3) AND CAST(clock() * 1e6 AS INTEGER) BETWEEN ?4 AND ?5 AND {condition}
    THEN ?6 + CAST(clock() * 1e6 AS INTEGER) END,
    ?3, ?7, ?8, ?9, ?10, clock() + ?11, clock(), {held}, 0, ?12)
"""
"""Everything is checked under the write lock. A check that fails makes the ticket NULL, and a row without a ticket is
ignored. SQLite needs least time so: INSERT ... SELECT and RETURNING each make a temporary table."""
_TAKE = _JOIN.format(condition="NOT EXISTS (SELECT 1 FROM claims WHERE name = ?1)", held="clock()")
"""Hold an empty queue."""
_WAIT = _JOIN.format(
    condition="(SELECT kind = ?8 AND capacity = ?9 AND weight + ?10 > capacity AND until > clock() + 1"
    " AND alive_until(client) > clock() FROM claims WHERE name = ?1 ORDER BY ticket LIMIT 1)",
    held="NULL",
)
"""Wait behind a living holder that leaves no room and has more than `poll_interval` left."""
_LEAVE = """
DELETE FROM claims WHERE name = ?1 AND ticket = ?2 AND id = ?3
    AND NOT EXISTS (SELECT 1 FROM outsiders WHERE name = ?1)
    AND IFNULL((
        SELECT CASE WHEN ?4 AND ticket > ?2 AND weight = capacity AND until > clock() AND alive_until(client) > clock()
            AND tell(client) IS NULL AND tell(id) IS NULL THEN 1 ELSE 0 END
        FROM claims WHERE name = ?1 AND ticket <> ?2 ORDER BY ticket LIMIT 1), 1)
"""
"""Leave, if nobody waits, or if exactly the next one is freed: `tell` notes it. ?4: this claim is exclusive."""
_TICKETS = "SELECT base, reserved FROM store"
_RESERVE = f"UPDATE store SET reserved = base + ?1 + {BLOCK} WHERE reserved < base + ?1 + {BLOCK // 2}"
"""Of many who find the block used up one writes, and waits for the disk."""
_CLIENT = "SELECT dev, ino FROM clients WHERE id = ?"
_BUSY = "SELECT id, dev, ino FROM clients WHERE id IN (SELECT client FROM claims WHERE until > ?)"
_IS_BUSY = "SELECT 1 FROM claims WHERE client = ? AND until > ? LIMIT 1"
_UNFAIR_WAITERS = "SELECT client, id FROM outsiders WHERE name = ?"
_WAIT_UNFAIR = "INSERT OR REPLACE INTO outsiders VALUES (?, ?, ?, ?)"
_COME_IN = "DELETE FROM outsiders WHERE name = ? AND id = ?"
_CELL = "SELECT value, version FROM cells WHERE space = ? AND name = ?"
_KEEP = "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?)"
_WRITTEN = "SELECT version FROM writes WHERE until = ? AND id = ?"
_NOTE = "INSERT INTO writes VALUES (?, ?, ?)"
_FORGET_WRITES = "DELETE FROM writes WHERE until < ?"
_WATCH = "INSERT INTO watchers VALUES (?, ?, ?, ?)"
_UNWATCH = "DELETE FROM watchers WHERE space = ? AND name = ? AND id = ?"
_DISMISS = "DELETE FROM watchers WHERE space = ? AND name = ? RETURNING client, id"
_QUEUES = (
    f"SELECT name, {_WALK}, about FROM claims WHERE name > ? AND name >= ? AND substr(name, 1, ?) = ?"
    " ORDER BY name, ticket"
)


class BlockUsedUp(Exception):
    """The ticket is not reserved yet: reserve, then do the verb again."""


def _entry(row: tuple[Any, ...]) -> Entry:
    entry = Entry(*row)
    if entry.weight < 0 or entry.capacity < 1:  # it would make room for others instead of taking it
        raise damaged("a claim in it weighs less than nothing")
    return entry


def _entries(first: tuple[Any, ...], rows: Iterable[tuple[Any, ...]]) -> Iterator[Entry]:
    yield _entry(first)
    for row in rows:
        yield _entry(row)


def damaged(what: str) -> StoreError:
    return StoreError(
        f"the database is damaged, or not a database: {what}", step="move it away; nothing was changed in it"
    )


class Leftovers(NamedTuple):
    """The registered clients: which are dead, which are gone, which stay."""

    dead: list[tuple[bytes]]
    gone: list[tuple[bytes]]
    """Nothing says that they are dead, nor that they are alive."""
    stay: set[str]
    """Their ids, in hexadecimal."""


def _in_the_main_interpreter() -> bool:
    try:
        module = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:
        return True
    return bool(module.get_current() == module.get_main())


CAN_CALL_BACK = _in_the_main_interpreter()
"""In a subinterpreter SQLite waits for ever for the interpreter's lock when it drops a function of Python. There is no
free path there."""


class SqliteTable:
    """What ledger.Table asks for, over one connection."""

    poll_interval = 1.0

    def __init__(
        self, connection: sqlite3.Connection, me: bytes, tombs: Tombs, others: Others, now: Callable[[], float]
    ) -> None:  # fmt: skip
        self._db = connection
        self._clock: defaultdict[int, float] = defaultdict(now)
        """The clock as one statement reads it: at its first look, under the write lock, and the same until `clear`."""
        self._told: list[bytes] = []
        """Client and id of the claim that a statement frees."""
        others.alive_until[me] = FOREVER
        if CAN_CALL_BACK:
            connection.create_function("clock", 0, partial(self._clock.__getitem__, 0))
            connection.create_function("buried", 1, tombs.__contains__)
            connection.create_function("alive_until", 1, others.alive_until.get)
            connection.create_function("tell", 1, self._told.append)
        self._execute = connection.execute
        self._me = me
        self._tombs = tombs
        self._is_dead = others.dead
        self._inodes: dict[bytes, tuple[int, int]] = {}
        """The liveness file of each client."""
        self._base = self._reserved = self._last = 0
        self._crowded: str | None = None
        """The name on which a claim had to wait last: there the next one probably has to wait, too."""
        self.with_description = False

    def join(self, claim: Claim, place: Place) -> Standing | None:
        """Hold an empty queue, or wait behind its holder, in one statement that commits by itself. None: nothing was
        changed, and the rule must be asked."""
        if claim.kind == ELECTION or claim.weight > claim.capacity:
            return None
        claim.asked = True
        base, clock = self._base, self._clock
        is_free = claim.name != self._crowded
        for holds in (is_free, not is_free):
            if holds or place is QUEUE:
                length = claim.lease if holds else claim.waiting
                clock.clear()
                if self._execute(_TAKE if holds else _WAIT, (
                    claim.name, claim.by, claim.id, self._last - base + 1, self._reserved - base - 1, base,
                    claim.client, claim.kind, claim.capacity, claim.weight, length, claim.description,
                )).rowcount:  # fmt: skip
                    self._last = claim.ticket = base + int(clock[0] * 1e6)
                    self._crowded = None if holds else claim.name
                    return Standing(claim.ticket, holds, length, FOREVER if holds else self.poll_interval, False)
        return None

    def leave(self, claim: Claim, _: object) -> list[Wake] | None:
        """Leave, and free at most the next claim, in one statement. None: nothing was changed."""
        if claim.kind == ELECTION or claim.ticket is None:
            return None
        told = self._told
        told.clear()
        self._clock.clear()
        exclusive = claim.weight == claim.capacity
        if not self._execute(_LEAVE, (claim.name, claim.ticket, claim.id, exclusive)).rowcount:
            return None
        return [Wake(told[0], told[1], YOURS)] if told else []

    def queue(self, name: str) -> Iterable[Entry]:
        rows = self._execute(_QUEUE_WITH_DESCRIPTION if self.with_description else _QUEUE, (name,))
        first = rows.fetchone()
        return NOBODY if first is None else _entries(first, rows)

    def find(self, name: str, claims: Sequence[Claim]) -> dict[bytes, Entry]:
        if len(claims) > 2:
            rows = self._execute(_BY_CLIENT, (name, self._me)).fetchall()
        else:
            rows = []
            for claim in claims:
                by_ticket = claim.ticket is not None
                rows += self._execute(
                    _BY_TICKET if by_ticket else _BY_ID, (name, claim.ticket if by_ticket else claim.id)
                ).fetchall()
        wanted = {claim.id for claim in claims}
        return {row[1]: _entry(row) for row in rows if row[1] in wanted}

    def add(self, name: str, entry: Entry) -> None:
        self._execute(
            _ADD,
            (name, entry.ticket, entry.id, entry.client, entry.kind, entry.capacity, entry.weight, entry.until,
             entry.asked, entry.held, entry.revoked, entry.description),
        )  # fmt: skip

    def write(self, name: str, entries: Sequence[Entry]) -> None:
        self._db.executemany(
            _WRITE, [(one.weight, one.until, one.held, one.revoked, name, one.ticket) for one in entries]
        )

    def remove(self, name: str, entry: Entry) -> None:
        self._execute(_REMOVE, (name, entry.ticket))

    def ticket(self, now: float) -> int:
        ticket = self._base + int(now * 1e6)
        if ticket >= self._reserved:
            self._base, self._reserved = self._execute(_TICKETS).fetchone()
            ticket = self._base + int(now * 1e6)
            if ticket >= self._reserved:
                raise BlockUsedUp
        self._last = max(ticket, self._last + 1)
        return self._last

    def reserve(self, now: float) -> None:
        self._execute(_RESERVE, (int(now * 1e6),))

    def dead(self, client: bytes) -> bool:
        if client == self._me:
            return False
        inode = self._inodes.get(client)
        if inode is None:
            inode = self._execute(_CLIENT, (client,)).fetchone()
            if inode is None or len(client) != ID_SIZE:
                return False
            if len(self._inodes) > 10_000:
                self._inodes.clear()
            self._inodes[client] = inode  # it never changes
        return self._is_dead(client, *inode)

    # Tombs are kept in memory: the join and the leave of one claim always come from one process.

    def bury(self, id: bytes, until: float, now: float) -> None:
        self._tombs.bury(id, until, now)

    def buried(self, id: bytes) -> bool:
        return id in self._tombs

    def unfair_waiters(self, name: str) -> list[tuple[bytes, bytes]]:
        return self._execute(_UNFAIR_WAITERS, (name,)).fetchall()

    def wait_unfair(self, name: str, claim: Claim, until: float) -> None:
        self._execute(_WAIT_UNFAIR, (name, claim.id, claim.client, until))

    def come_in(self, name: str, id: bytes) -> None:
        self._execute(_COME_IN, (name, id))

    def cell(self, cell_key: CellKey) -> CellValue:
        row = self._execute(_CELL, cell_key).fetchone()
        if row is None:
            return UNSET_CELL
        cell_value = CellValue(*row)
        if not isinstance(cell_value.value, bytes) or not 1 <= cell_value.version < _NO_VERSION:
            raise damaged("a cell in it holds what no put has made")
        return cell_value

    def keep(self, cell_key: CellKey, cell_value: CellValue) -> None:
        self._execute(_KEEP, (*cell_key, *cell_value))

    def written(self, write: Write) -> int | None:
        row = self._execute(_WRITTEN, (write.by, write.id)).fetchone()
        return None if row is None else int(row[0])

    def note(self, write: Write, version: int, now: float) -> None:
        self._execute(_FORGET_WRITES, (now,))
        self._execute(_NOTE, (write.by, write.id, version))

    def watch(self, cell_key: CellKey, key: bytes) -> None:
        self._execute(_WATCH, (*cell_key, key, self._me))

    def unwatch(self, cell_key: CellKey, key: bytes) -> None:
        self._execute(_UNWATCH, (*cell_key, key))

    def dismiss(self, cell_key: CellKey) -> list[tuple[bytes, bytes]]:
        return self._execute(_DISMISS, cell_key).fetchall()

    def queues(self, prefix: str, after: str) -> Iterator[tuple[str, list[Entry]]]:
        """By name, each with what it says of itself; read no further than it is consumed."""
        rows = self._execute(_QUEUES, (after, prefix, len(prefix), prefix))
        for name, queue in groupby(rows, itemgetter(0)):
            yield name, [_entry(row[1:]) for row in queue]

    # The store's own life.

    def create(self, store_id: str, first: int) -> None:
        for statement in STATEMENTS:
            self._execute(statement)
        self._execute("INSERT INTO store VALUES (1, ?, '', ?, ?)", (store_id, first, first))
        self._execute(f"PRAGMA user_version = {VERSION}")

    def identity(self) -> str:
        return str(self._execute("SELECT id FROM store").fetchone()[0])

    def busy(self, now: float) -> dict[bytes, tuple[int, int]]:
        """The clients that hold or wait, each with its liveness file."""
        found = self._execute(_BUSY, (now,)).fetchall()
        return {id: (dev, ino) for id, dev, ino in found if len(id) == ID_SIZE}

    def ahead(self, now: float, wall: float) -> float:
        """By how many seconds tickets are ahead of the wall clock that they once began with."""
        base, _ = self._execute(_TICKETS).fetchone()
        return float(base / 1e6 + now - wall)

    def note_boot(self, boot: str, clock: str, now: float, wall: int) -> None:
        """Another boot of the machine: all clients are gone, and whatever was reserved may have been used."""
        known, _, other_clock = self._execute("SELECT boot FROM store").fetchone()[0].partition(" ")
        if known == boot and other_clock != clock:
            raise StoreError(
                "the database is used in another time namespace", step="use one time namespace for all processes"
            )
        if known != boot:
            for table in ("claims", "clients", "outsiders", "watchers", "writes"):
                self._execute(f"DELETE FROM {table}")
            self._execute(
                "UPDATE store SET boot = ?, base = max(reserved, ?) - ?", (f"{boot} {clock}", wall, int(now * 1e6))
            )

    def register(self, live: str, dev: int, ino: int, address: str) -> None:
        self._execute("INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?, ?)", (self._me, live, dev, ino, address))

    def unregister(self) -> None:
        self._execute("DELETE FROM watchers WHERE client = ?", (self._me,))
        self._execute("DELETE FROM clients WHERE id = ?", (self._me,))

    def leftovers(self, now: float, exists: Callable[[bytes], bool]) -> Leftovers:
        """What dead clients left; nothing is changed yet. `exists`: whether a client's liveness file does."""
        left = Leftovers([], [], {self._me.hex()})
        for id, dev, ino in self._execute("SELECT id, dev, ino FROM clients").fetchall():
            if id == self._me:
                continue
            if len(id) == ID_SIZE and self._is_dead(id, dev, ino):
                left.dead.append((id,))
            elif len(id) == ID_SIZE and (self._execute(_IS_BUSY, (id, now)).fetchone() or exists(id)):
                left.stay.add(id.hex())
            else:
                left.gone.append((id,))
        return left

    def sweep(self, left: Leftovers, now: float) -> None:
        """Remove it. Waiters find out at their next look."""
        self._db.executemany("DELETE FROM claims WHERE client = ?", left.dead)
        self._db.executemany("DELETE FROM clients WHERE id = ?", left.dead + left.gone)
        self._execute("DELETE FROM outsiders WHERE until <= ?", (now,))
        self._execute("DELETE FROM watchers WHERE client NOT IN (SELECT id FROM clients)")


def check_tables(connection: sqlite3.Connection) -> None:
    """Refuse other tables, triggers and views, and rows out of order: a search would miss them."""
    if tables_in(connection) != set(STATEMENTS):
        raise damaged("its tables are not those of dibs")
    if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise damaged("SQLite's own check fails")
    if connection.execute("SELECT count(*) FROM store").fetchone() != (1,):
        raise damaged("it has no identity")


def tables_in(connection: sqlite3.Connection) -> set[str]:
    """Everything in the schema, but for the statistics that an operator's ANALYZE leaves."""
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\'")
    return {str(text) for (text,) in found}
