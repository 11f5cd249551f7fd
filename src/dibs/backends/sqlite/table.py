"""The tables, and every SQL statement of the embedded store. The verbs are in backends/common/atomic_queue.py.

Claims are clustered by (name, ticket), so a queue is one range of the index, and a verb changes one page. Times are
seconds of the boot clock, which is the same for all processes of the machine and never goes back.

A ticket is that clock in microseconds plus the store's `base`, read while the write lock is held. Two transactions are
more than a microsecond apart, so tickets rise strictly over all names without a counter. Only tickets below `reserved`
are given out. It is up to a minute ahead, and is raised by a write that survives a power cut. After a reboot, tickets
continue from `reserved`, or from the wall clock in microseconds if that is higher. A new file also starts at the wall
clock, so tokens rise even if the file was removed, as far as the wall clock is right.
"""

from __future__ import annotations

import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

from dibs.backends.common.atomic_queue import NOBODY, Tombs
from dibs.backends.sqlite.errors import damaged
from dibs.backends.sqlite.presence import ID_SIZE, Others
from dibs.core.cells import UNSET_CELL, CellKey, CellValue, Write
from dibs.core.deadline import FOREVER
from dibs.core.rule import Claim, Entry
from dibs.errors import StoreError

APPLICATION = 0x64696273
VERSION = 2
BLOCK = 60 * 1_000_000
"""Tickets are reserved this far ahead: a minute."""

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
"""The largest integer of SQLite: no version can follow it."""
_COLUMNS = "ticket, id, client, kind, capacity, weight, until, asked, held, revoked"
_JOIN = """
INSERT OR IGNORE INTO claims VALUES (?1,
    CASE WHEN clock() <= ?2 AND NOT buried(?3) AND CAST(clock() * 1e6 AS INTEGER) BETWEEN ?4 AND ?5 AND {condition}
    THEN ?6 + CAST(clock() * 1e6 AS INTEGER) END,
    ?3, ?7, ?8, ?9, ?10, clock() + ?11, clock(), {held}, 0, ?12)
"""
"""All conditions are evaluated under the write lock. If one fails, the ticket is NULL, and the row is ignored. This is
the fastest form: INSERT ... SELECT and RETURNING each create a temporary table."""
TAKE = _JOIN.format(condition="NOT EXISTS (SELECT 1 FROM claims WHERE name = ?1)", held="clock()")
"""Hold an empty queue."""
WAIT = _JOIN.format(
    condition="(SELECT kind = ?8 AND capacity = ?9 AND weight + ?10 > capacity AND until > clock() + 1"
    " AND alive_until(client) > clock() FROM claims WHERE name = ?1 ORDER BY ticket LIMIT 1)",
    held="NULL",
)
"""Wait behind a live holder that leaves no room and has more than `poll_interval` left."""
LEAVE = """
DELETE FROM claims WHERE name = ?1 AND ticket = ?2 AND id = ?3
    AND NOT EXISTS (SELECT 1 FROM outsiders WHERE name = ?1)
    AND IFNULL((
        SELECT CASE WHEN ?4 AND ticket > ?2 AND weight = capacity AND until > clock() AND alive_until(client) > clock()
            AND tell(client) IS NULL AND tell(id) IS NULL THEN 1 ELSE 0 END
        FROM claims WHERE name = ?1 AND ticket <> ?2 ORDER BY ticket LIMIT 1), 1)
"""
"""Leave, if no claim waits, or if only the next one gets the lock: `tell` reports it. ?4: this claim is exclusive."""


class BlockUsedUp(Exception):
    """The next ticket is not reserved yet: reserve, then repeat the verb."""


class Leftovers(NamedTuple):
    """The registered clients, by what becomes of their rows."""

    dead: list[tuple[bytes]]
    gone: list[tuple[bytes]]
    """Not proven dead, but without claims and without a liveness file."""
    stay: set[str]
    """Ids in hexadecimal."""


def _entry(row: tuple[Any, ...]) -> Entry:
    entry = Entry(*row)
    if entry.weight < 0 or entry.capacity < 1:  # it would make room for others instead of taking it
        raise damaged("a claim in it weighs less than nothing")
    return entry


def _in_main_interpreter() -> bool:
    try:
        module = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:
        return True
    return bool(module.get_current() == module.get_main())


HAS_FUNCTIONS = _in_main_interpreter()
"""Whether statements may call functions of Python, as the free path needs. In a subinterpreter SQLite deadlocks on the
interpreter's lock when it drops such a function."""


class SqliteTable:
    """`QueueTable` and `CellTable` over one connection."""

    poll_interval = 1.0

    def __init__(
        self, connection: sqlite3.Connection, client_id: bytes, tombs: Tombs, others: Others, now: Callable[[], float]
    ) -> None:  # fmt: skip
        self.clock: defaultdict[int, float] = defaultdict(now)
        """The clock of one statement: read at its first use, under the write lock, and constant until `clear`."""
        self.freed: list[bytes] = []
        """The client and id of the claim that LEAVE gave the lock to."""
        others.alive_until[client_id] = FOREVER
        if HAS_FUNCTIONS:
            connection.create_function("clock", 0, partial(self.clock.__getitem__, 0))
            connection.create_function("buried", 1, tombs.__contains__)
            connection.create_function("alive_until", 1, others.alive_until.get)
            connection.create_function("tell", 1, self.freed.append)
        self.execute = connection.execute
        self._execute_many = connection.executemany
        self._client_id = client_id
        self._tombs = tombs
        self._is_dead = others.dead
        self._inodes: dict[bytes, tuple[int, int]] = {}
        """By client, its liveness file."""
        self.base = self.reserved = self.last = 0
        self.with_description = False

    def queue(self, name: str) -> Iterable[Entry]:
        description = "about" if self.with_description else "''"
        rows = self.execute(f"SELECT {_COLUMNS}, {description} FROM claims WHERE name = ? ORDER BY ticket", (name,))
        first = rows.fetchone()
        return NOBODY if first is None else map(_entry, chain((first,), rows))

    def find(self, name: str, claims: Sequence[Claim]) -> dict[bytes, Entry]:
        if len(claims) > 2:
            rows = self._where("client", name, self._client_id)
        else:
            rows = []
            for claim in claims:
                by_ticket = claim.ticket is not None
                rows += self._where(*(("ticket", name, claim.ticket) if by_ticket else ("id", name, claim.id)))
        wanted = {claim.id for claim in claims}
        return {row[1]: _entry(row) for row in rows if row[1] in wanted}

    def _where(self, column: str, name: str, value: bytes | int | None) -> list[tuple[Any, ...]]:
        text = f"SELECT {_COLUMNS}, '' FROM claims WHERE name = ? AND {column} = ?"
        return self.execute(text, (name, value)).fetchall()

    def add(self, name: str, entry: Entry) -> None:
        self.execute(
            "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, entry.ticket, entry.id, entry.client, entry.kind, entry.capacity, entry.weight, entry.until,
             entry.asked, entry.held, entry.revoked, entry.description),
        )  # fmt: skip

    def write(self, name: str, entries: Sequence[Entry]) -> None:
        self._execute_many(
            "UPDATE claims SET weight = ?, until = ?, held = ?, revoked = ? WHERE name = ? AND ticket = ?",
            [(one.weight, one.until, one.held, one.revoked, name, one.ticket) for one in entries],
        )

    def remove(self, name: str, entry: Entry) -> None:
        self.execute("DELETE FROM claims WHERE name = ? AND ticket = ?", (name, entry.ticket))

    def ticket(self, now: float) -> int:
        ticket = self.base + int(now * 1e6)
        if ticket >= self.reserved:
            self.base, self.reserved = self._tickets()
            ticket = self.base + int(now * 1e6)
            if ticket >= self.reserved:
                raise BlockUsedUp
        self.last = max(ticket, self.last + 1)
        return self.last

    def _tickets(self) -> tuple[int, int]:
        base, reserved = self.execute("SELECT base, reserved FROM store").fetchone()
        return base, reserved

    def reserve(self, now: float) -> None:
        """Of many clients that find the block used up, one writes and waits for the disk."""
        self.execute(
            f"UPDATE store SET reserved = base + ?1 + {BLOCK} WHERE reserved < base + ?1 + {BLOCK // 2}",
            (int(now * 1e6),),
        )

    def dead(self, client: bytes) -> bool:
        if client == self._client_id:
            return False
        inode = self._inodes.get(client)
        if inode is None:
            inode = self.execute("SELECT dev, ino FROM clients WHERE id = ?", (client,)).fetchone()
            if inode is None or len(client) != ID_SIZE:
                return False
            if len(self._inodes) > 10_000:
                self._inodes.clear()
            self._inodes[client] = inode  # it never changes
        return self._is_dead(client, *inode)

    # Tombstones are in memory: the join and the leave of a claim always come from one process.

    def bury(self, id: bytes, until: float, now: float) -> None:
        self._tombs.bury(id, until, now)

    def buried(self, id: bytes) -> bool:
        return id in self._tombs

    def unfair_waiters(self, name: str) -> list[tuple[bytes, bytes]]:
        return self.execute("SELECT client, id FROM outsiders WHERE name = ?", (name,)).fetchall()

    def wait_unfair(self, name: str, claim: Claim, until: float) -> None:
        self.execute("INSERT OR REPLACE INTO outsiders VALUES (?, ?, ?, ?)", (name, claim.id, claim.client, until))

    def come_in(self, name: str, id: bytes) -> None:
        self.execute("DELETE FROM outsiders WHERE name = ? AND id = ?", (name, id))

    def cell(self, cell_key: CellKey) -> CellValue:
        row = self.execute("SELECT value, version FROM cells WHERE space = ? AND name = ?", cell_key).fetchone()
        if row is None:
            return UNSET_CELL
        cell_value = CellValue(*row)
        if not isinstance(cell_value.value, bytes) or not 1 <= cell_value.version < _NO_VERSION:
            raise damaged("a cell in it holds what no put has made")
        return cell_value

    def keep(self, cell_key: CellKey, cell_value: CellValue) -> None:
        self.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?)", (*cell_key, *cell_value))

    def written(self, write: Write) -> int | None:
        row = self.execute("SELECT version FROM writes WHERE until = ? AND id = ?", (write.by, write.id)).fetchone()
        return None if row is None else int(row[0])

    def note(self, write: Write, version: int, now: float) -> None:
        self.execute("DELETE FROM writes WHERE until < ?", (now,))
        self.execute("INSERT INTO writes VALUES (?, ?, ?)", (write.by, write.id, version))

    def watch(self, cell_key: CellKey, key: bytes) -> None:
        self.execute("INSERT INTO watchers VALUES (?, ?, ?, ?)", (*cell_key, key, self._client_id))

    def unwatch(self, cell_key: CellKey, key: bytes) -> None:
        self.execute("DELETE FROM watchers WHERE space = ? AND name = ? AND id = ?", (*cell_key, key))

    def dismiss(self, cell_key: CellKey) -> list[tuple[bytes, bytes]]:
        text = "DELETE FROM watchers WHERE space = ? AND name = ? RETURNING client, id"
        return self.execute(text, cell_key).fetchall()

    def queues(self, prefix: str, after: str) -> Iterator[tuple[str, list[Entry]]]:
        """The queues with the descriptions of their claims, in the order of their names; read lazily."""
        rows = self.execute(
            f"SELECT name, {_COLUMNS}, about FROM claims"
            " WHERE name > ? AND name >= ? AND substr(name, 1, ?) = ? ORDER BY name, ticket",
            (after, prefix, len(prefix), prefix),
        )
        for name, queue in groupby(rows, itemgetter(0)):
            yield name, [_entry(row[1:]) for row in queue]

    # The store itself and its clients.

    def create(self, store_id: str, first: int) -> None:
        for statement in STATEMENTS:
            self.execute(statement)
        self.execute("INSERT INTO store VALUES (1, ?, '', ?, ?)", (store_id, first, first))
        self.execute(f"PRAGMA user_version = {VERSION}")

    def identity(self) -> str:
        return str(self.execute("SELECT id FROM store").fetchone()[0])

    def busy(self, now: float) -> dict[bytes, tuple[int, int]]:
        """The clients that hold or wait, each with its liveness file."""
        text = "SELECT id, dev, ino FROM clients WHERE id IN (SELECT client FROM claims WHERE until > ?)"
        return {id: (dev, ino) for id, dev, ino in self.execute(text, (now,)).fetchall() if len(id) == ID_SIZE}

    def ahead(self, now: float, wall: float) -> float:
        """Seconds by which tickets are ahead of the wall clock, from which they started."""
        return float(self._tickets()[0] / 1e6 + now - wall)

    def note_boot(self, boot: str, clock: str, now: float, wall: int) -> None:
        """After a reboot no client is left, and any reserved ticket may have been used."""
        known, _, other_clock = self.execute("SELECT boot FROM store").fetchone()[0].partition(" ")
        if known == boot and other_clock != clock:
            raise StoreError(
                "the database is used in another time namespace", step="use one time namespace for all processes"
            )
        if known != boot:
            for table in ("claims", "clients", "outsiders", "watchers", "writes"):
                self.execute(f"DELETE FROM {table}")
            self.execute(
                "UPDATE store SET boot = ?, base = max(reserved, ?) - ?", (f"{boot} {clock}", wall, int(now * 1e6))
            )

    def register(self, live: str, dev: int, ino: int, address: str) -> None:
        row = (self._client_id, live, dev, ino, address)
        self.execute("INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?, ?)", row)

    def unregister(self) -> None:
        self.execute("DELETE FROM watchers WHERE client = ?", (self._client_id,))
        self.execute("DELETE FROM clients WHERE id = ?", (self._client_id,))

    def leftovers(self, now: float, exists: Callable[[bytes], bool]) -> Leftovers:
        """Find the rows of dead clients; changes nothing. `exists`: whether the liveness file of a client exists."""
        left = Leftovers([], [], {self._client_id.hex()})
        is_busy = "SELECT 1 FROM claims WHERE client = ? AND until > ? LIMIT 1"
        for id, dev, ino in self.execute("SELECT id, dev, ino FROM clients").fetchall():
            if id == self._client_id:
                continue
            if len(id) == ID_SIZE and self._is_dead(id, dev, ino):
                left.dead.append((id,))
            elif len(id) == ID_SIZE and (self.execute(is_busy, (id, now)).fetchone() or exists(id)):
                left.stay.add(id.hex())
            else:
                left.gone.append((id,))
        return left

    def sweep(self, left: Leftovers, now: float) -> None:
        """Remove the rows of dead clients. Waiters notice it at their next look."""
        self._execute_many("DELETE FROM claims WHERE client = ?", left.dead)
        self._execute_many("DELETE FROM clients WHERE id = ?", left.dead + left.gone)
        self.execute("DELETE FROM outsiders WHERE until <= ?", (now,))
        self.execute("DELETE FROM watchers WHERE client NOT IN (SELECT id FROM clients)")


def check_tables(connection: sqlite3.Connection) -> None:
    """Refuse other tables, triggers and views, and rows out of order, which a search would miss."""
    if tables_in(connection) != set(STATEMENTS):
        raise damaged("its tables are not those of dibs")
    if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise damaged("SQLite's own check fails")
    if connection.execute("SELECT count(*) FROM store").fetchone() != (1,):
        raise damaged("it has no identity")


def tables_in(connection: sqlite3.Connection) -> set[str]:
    """The statements of the schema, without the statistics that an operator's ANALYZE creates."""
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\'")
    return {str(text) for (text,) in found}
