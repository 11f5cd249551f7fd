"""The statements of this store: the DDL that creates tables and routines (sql/*.sql), and the calls of the routines.

Routines have a version in their names, so two versions can work on the same tables while programs are upgraded.
`{schema}` is the quoted schema, and a line `-- (file.sql)` includes that file. Values are never part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from struct import pack
from typing import NamedTuple
from zlib import crc32

VERSION = 2
LAYOUT = 1
"""The version of the tables (sql/tables.sql). Routine versions for the same layout can work side by side."""
_FOLDER = Path(__file__).parent / "sql"
_INCLUDED = re.compile(r"^ *-- \((\w+\.sql)\)\n", re.MULTILINE)
_ROUTINE = re.compile(r"FUNCTION \{schema\}\.(dibs_\d+_\w+)")
_PLANS = "SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off"
"""A plan from when the table was small must not scan all of it once it has grown. Without sequential scans the cost
estimates are high, so that the JIT would compile every such query."""
_PATH = "SET search_path = pg_catalog, pg_temp"
"""For routines that are called rarely: see guard.sql."""
_CLOCK = "(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint"
_FRESH = "md5(random()::text || clock_timestamp()::text || pg_backend_pid()::text)"
_NOW = f"(SELECT {_CLOCK} AS n OFFSET 0) AS clock"
PAGE = 500
"""Names on one page of a listing."""
TABLES = (
    "dibs_store", "dibs_claims", "dibs_floors", "dibs_tombs", "dibs_outsiders", "dibs_cells", "dibs_writes",
    "dibs_watchers", "dibs_keys",
)  # fmt: skip
SEQUENCE = "dibs_tickets"
_TABLES = ("tables", "helpers")
_VERBS = ("join", "leave", "renew", "amend", "evict", "follow", "cells", "session", "sweep")
TEXT, BYTES, NUMBER, INTEGER, TRUTH, BIG = 25, 17, 20, 23, 16, 1700
TEXTS, NUMBERS, BLOBS = 1009, 1016, 1001
"""The server's type OIDs."""


class Statement(NamedTuple):
    """A statement that is prepared once for each direct connection."""

    name: bytes
    sql: bytes
    types: tuple[int, ...]
    formats: tuple[int, ...]


class Routines:
    """The statements of one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._quoted = quoted(schema)
        call, verb = self._call, self._verb
        join = (TEXT, NUMBER, BYTES, BYTES, TEXT, NUMBER, NUMBER, NUMBER, NUMBER, TEXT, TEXT, NUMBER, NUMBER, NUMBER)
        leave = (TEXT, NUMBER, BYTES, NUMBER, TRUTH, NUMBER)
        self.join, self.join_now = verb("join", *join, told=True), call("join", *join, TEXT)
        self.leave, self.leave_now = verb("leave", *leave, told=True), call("leave", *leave, TEXT)
        self.leave_all = verb("leave_all", TEXTS, NUMBERS, BLOBS, NUMBERS)
        self.renew = verb("renew", TEXTS, NUMBERS, NUMBERS, BLOBS, TRUTH)
        self.amend = verb("amend", TEXT, NUMBER, BYTES, NUMBER)
        self.evict = verb("evict", TEXT, NUMBER, NUMBER)
        self.revoke = verb("revoke", TEXT, NUMBER, NUMBER)
        self.follow = verb("follow", TEXT, NUMBER, NUMBER, BYTES, BYTES, NUMBER)
        self.put = verb("put", TEXT, TEXT, BYTES, NUMBER, BYTES, NUMBER, TRUTH)
        self.watch = verb("watch", TEXT, TEXT, NUMBER, BYTES, BYTES, NUMBER)
        self.admit = verb("admit", TEXT, BIG, TRUTH)
        self.sweep = call("sweep")
        self.take = call("take", TEXT, NUMBER, TEXT, NUMBER, TRUTH, TEXT, TRUTH)
        self.lighten = call("lighten", NUMBER)
        self.resign = call("resign", TEXT, NUMBER)
        self.ask = call("ask", TEXT, NUMBER, NUMBER)
        self.oust = call("oust", TEXT, NUMBER)
        self.within = call("within", TEXT, NUMBER, INTEGER, TEXT)
        said = f"SELECT pg_catalog.concat({_CLOCK}, ' ', (pg_catalog.pg_advisory_%s)::int)"
        self.unlock = statement("dibs_unlock", said % "unlock($1)", NUMBER)
        self.unlock_shared = statement("dibs_unlock_shared", said % "unlock_shared($1)", NUMBER)
        self.unlock_all = statement("dibs_unlock_all", said % "unlock_all() IS NOT NULL")
        self.cancel = statement("dibs_cancel", f"SELECT {_CLOCK}, pg_catalog.pg_cancel_backend($1::integer)", NUMBER)
        self.notify = statement(
            "dibs_notify",
            f"SELECT {_CLOCK}, pg_catalog.pg_notify($1, $2) WHERE pg_catalog.pg_notification_queue_usage() < 0.5",
            TEXT, TEXT,
        )  # fmt: skip
        claims, cells, keys = (f"{self._quoted}.{table}" for table in ("dibs_claims", "dibs_cells", "dibs_keys"))
        self.ping = statement(
            "dibs_ping",
            f"SELECT {_CLOCK}, coalesce((SELECT $2 = ANY (revoked) FROM {keys} WHERE key = $1), false)",
            NUMBER, NUMBER,
        )  # fmt: skip
        self.seen = statement(
            "dibs_seen", f"SELECT n, seen.* FROM {_NOW}, {self._quoted}.dibs_{VERSION}_seen($1, $2, $3) AS seen",
            TEXT, TEXT, TEXT,
        )  # fmt: skip
        seen = "ticket, weight, until - n, n - asked, n - held, kind, capacity, about"
        self.queue = statement(
            "dibs_line",
            f"SELECT n, name, {seen} FROM {claims}, {_NOW} WHERE name = $1 AND until > n AND ticket >="
            f" coalesce((SELECT ticket FROM {self._quoted}.dibs_floors WHERE name = $1), 0) ORDER BY ticket",
            TEXT,
        )
        self.queues = statement(
            "dibs_lines",
            f"SELECT n, name, {seen} FROM {claims}, {_NOW} WHERE until > n AND name IN ("
            f"SELECT DISTINCT name FROM {claims} WHERE name > $2 AND name >= $1 AND pg_catalog.starts_with(name, $1)"
            f" AND until > {_CLOCK} ORDER BY name LIMIT {PAGE})"
            " ORDER BY name, ticket",
            TEXT, TEXT,
        )  # fmt: skip
        self.identity = statement("dibs_identity", f"SELECT n, id FROM {self._quoted}.dibs_store, {_NOW}")
        self.get = statement(
            "dibs_get",
            f"SELECT n, pg_catalog.encode(value, 'hex'), version FROM {cells}, {_NOW} WHERE space = $1 AND name = $2",
            TEXT, TEXT,
        )  # fmt: skip

    def _call(self, verb: str, *types: int) -> Statement:
        """Call a routine if the tables have our layout. The planner compares it once, so this costs nothing later."""
        name, schema = f"dibs_{VERSION}_{verb}", self._quoted
        return statement(
            f"{name}_now",
            f"SELECT CASE WHEN {schema}.dibs_layout() OPERATOR(pg_catalog.=) {LAYOUT} THEN {schema}.{name}"
            f"({_places(types)}) ELSE {schema}.dibs_{VERSION}_known('') END",
            *types,
        )

    def _verb(self, verb: str, *types: int, told: bool = False) -> Statement:
        """Call a routine if this is the store that the client knows: the last value is its id, or empty if the client
        knows none yet. The tables cannot be dropped meanwhile, because the statement has read one of them. `told`: the
        routine gets the id too."""
        name, schema, known = f"dibs_{VERSION}_{verb}", self._quoted, f"${len(types) + 1}"
        places = _places((*types, TEXT) if told else types)
        return statement(
            name,
            f"SELECT CASE WHEN ({known} OPERATOR(pg_catalog.=) id OR {known} OPERATOR(pg_catalog.=) '')"
            f" AND claims OPERATOR(pg_catalog.=) '{schema}.dibs_claims'::regclass"
            f" AND {schema}.dibs_layout() OPERATOR(pg_catalog.=) {LAYOUT}"
            f" THEN {schema}.{name}({places}) ELSE {schema}.dibs_{VERSION}_known({known}) END, id AS epoch"
            f" FROM {schema}.dibs_store",
            *types, TEXT,
        )  # fmt: skip

    def key_of(self, name: str) -> int:
        """The advisory lock key of a name in session mode and inside a transaction."""
        return _key_of(self.schema, name)

    def ddl(self) -> str:
        """Create everything that is missing, under a lock; no existing table is changed."""
        schema = self._quoted
        # Handle duplicates even under the lock: a session may have cached that the schema is missing.
        make = (
            f"IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA {schema}; END IF;"
            " EXCEPTION WHEN duplicate_schema OR unique_violation THEN NULL;"
        )
        return "\n".join([
            "BEGIN ISOLATION LEVEL READ COMMITTED;",
            f"{_PATH.replace('SET', 'SET LOCAL', 1)};",
            f"SELECT pg_advisory_xact_lock({_key(self.schema)});",
            f"DO $dibs$ BEGIN {make} END $dibs$;",
            *[rendered(part, schema, self.schema) for part in (*_TABLES, *_VERBS)],
            "COMMIT;",
        ])  # fmt: skip

    def grants(self) -> str:
        """The GRANT statements for other roles, as a comment."""
        schema = self._quoted
        return "\n".join([
            "-- For each role that is to use them and did not make them:",
            f"--   GRANT USAGE ON SCHEMA {schema} TO role;",
            f"--   GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO role;",
            f"--   GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO role;",
            f"--   GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO role;",
        ])  # fmt: skip


def routine_names() -> list[str]:
    """The names of all routines that the DDL creates."""
    return [name for part in (*_TABLES, *_VERBS) for name in _ROUTINE.findall(_text(f"{part}.sql"))]


def statement(name: str, sql: str, *types: int) -> Statement:
    """Bytes and arrays are sent in binary format, all other types as text."""
    binary = {BYTES, TEXTS, NUMBERS, BLOBS}
    return Statement(name.encode(), sql.encode(), types, tuple(int(kind in binary) for kind in types))


def _places(types: tuple[int, ...]) -> str:
    return ", ".join(f"${n + 1}" for n in range(len(types)))


def quoted(schema: str) -> str:
    return '"' + schema.replace('"', '""') + '"'


def rendered(part: str, schema: str, name: str) -> str:
    return (
        _text(f"{part}.sql")
        .replace("{schema}", schema)
        .replace("{settings}", _PLANS)
        .replace("{path}", _PATH)
        .replace("{clock}", _CLOCK)
        .replace("{layout}", str(LAYOUT))
        .replace("{fresh}", _FRESH)
        .replace("{seed}", str(_key(name)))
    )


@lru_cache(10_000)
def _key_of(schema: str, name: str) -> int:
    """64 bits of SHA-256 over schema and name, as a signed number. The length makes the two parts unambiguous."""
    return int.from_bytes(sha256(f"{len(schema)}:{schema}:{name}".encode()).digest()[:8], signed=True)


def _key(schema: str) -> int:
    """The key of the advisory lock under which the DDL runs."""
    return 0x64696273 << 32 | crc32(schema.encode())


@lru_cache
def _text(file: str) -> str:
    return _INCLUDED.sub(lambda found: _text(found[1]), (_FOLDER / file).read_text())


# Arrays are sent in binary format, so nothing in a value needs quoting.


def texts(values: Sequence[str]) -> bytes:
    return _array(TEXT, [value.encode() for value in values])


def blobs(values: Sequence[bytes]) -> bytes:
    return _array(BYTES, values)


def numbers(values: Sequence[int]) -> bytes:
    return _array(NUMBER, [pack("!q", value) for value in values])


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    """One dimension, which begins at 1, without NULL."""
    head = pack("!iiIii", 1, 0, kind, len(values), 1)
    return head + b"".join([pack("!i", len(value)) + value for value in values])
