"""A line as it stands in Redis, read and written past dibs: the hash of a name, its records, its chain.

line = raw.line("dibs:a")
line.chain()                      # the records in order, by what lua/line.lua calls their fields
line.plant(WEIGHT=-5)             # one more at the end of the chain, of nobody's, as ours are but for that
line.write(id, packed([1, 2]))    # whatever one likes
"""

from __future__ import annotations

import os
import re
import struct
import time
from typing import Any

import redis

from dibs.backends.redis.scripts import LOOK

FIELDS: list[str] = re.findall(r"\w+", re.findall(r"^local (ID,[\w, ]+) =$", LOOK.text, re.MULTILINE)[0])
"""Of a record, in its order: as the scripts have it."""
META = {b"first", b"last", b"top", b"keeps", b"outside", b"tombs", b"covered"}
SECOND = 1_000_000
_UNPACK = "return cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))"
_CHAIN = """
local found, id = {}, redis.call('HGET', KEYS[1], 'first')
while id and id ~= '' and #found < 5000 do
  table.insert(found, cmsgpack.unpack(redis.call('HGET', KEYS[1], id)))
  id = found[#found][tonumber(ARGV[1])]
end
return found
"""
Record = dict[str, Any]


class Raw:
    """One prefix of a server."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.client: Any = client
        self.prefix = prefix

    def line(self, name: str = "dibs:a") -> Line:
        return Line(self, f"{self.prefix}{name}|line".encode())

    @property
    def floor(self) -> bytes:
        """The key that lua/floor.lua is about."""
        return f"{self.prefix}dibs:floor".encode()

    def channel(self, client: bytes) -> str:
        return f"{self.prefix}dibs:client:{client.hex()}"

    def now(self) -> int:
        """Of the server, in microseconds."""
        seconds, rest = self.client.time()
        return int(seconds) * SECOND + int(rest)

    def all_keys(self) -> list[bytes]:
        return sorted(self.client.scan_iter(f"{self.prefix}*", 1000))


class Line:
    def __init__(self, raw: Raw, key: bytes) -> None:
        self._raw = raw
        self._client = raw.client
        self.key = key

    def fields(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self._client.hgetall(self.key)
        return found

    def lasts(self) -> int:
        """Milliseconds until the key expires; -1: it does not, -2: there is none."""
        return int(self._client.pttl(self.key))

    def record(self, id: bytes) -> Record:
        """Fractions of numbers are cut off on the way."""
        return dict(zip(FIELDS, self._client.eval(_UNPACK, 1, self.key, id), strict=True))

    def chain(self) -> list[Record]:
        """From the first on, behind each other; of at most 5,000."""
        found = self._client.eval(_CHAIN, 1, self.key, FIELDS.index("BEHIND") + 1)
        return [dict(zip(FIELDS, record, strict=True)) for record in found]

    def write(self, field: bytes | str, value: bytes | str) -> None:
        self._client.hset(self.key, field, value)

    def plant(self, id: bytes | None = None, **changed: Any) -> bytes:
        """Behind whoever stands there; it holds, if nobody does. Gives the field that it is under."""
        id = id or os.urandom(16)
        last = self._client.hget(self.key, "last") or b""
        if last:
            self.replant(last, BEHIND=id)
        else:
            self.write("first", id)
        now = self._raw.now()
        self._client.hset(self.key, mapping={"last": id, "top": now})
        self.write(id, self._usual(now, **{"ID": id, "BEFORE": last, **changed}))
        return id

    def plant_alone(self, now: int) -> None:
        """Where nobody stands, without reading anything; `now`: of the server."""
        id = os.urandom(16)
        record = self._usual(now, ID=id)
        self._client.hset(self.key, mapping={id: record, "first": id, "last": id, "top": now})

    def plant_many(self, count: int, **changed: Any) -> None:
        """Where nobody stands."""
        now, ids = self._raw.now(), [os.urandom(16) for _ in range(count)]
        neighbours = zip([b"", *ids], ids, [*ids[1:], b""], strict=False)
        records = {
            id: self._usual(now, ID=id, TICKET=now + number, BEFORE=before, BEHIND=behind, **changed)
            for number, (before, id, behind) in enumerate(neighbours)
        }
        self._client.hset(self.key, mapping={**records, "first": ids[0], "last": ids[-1], "top": now + count})

    def _usual(self, now: int, **changed: Any) -> bytes:
        """A record like ours, but for that."""
        usual: Record = {
            "ID": b"", "TICKET": now, "BEFORE": b"", "BEHIND": b"", "CLIENT": b"nobody", "KIND": b"mutex",
            "CAPACITY": 1, "WEIGHT": 1, "LEASE": 60 * SECOND, "WAITING": 5 * SECOND, "UNTIL": now + 60 * SECOND,
            "ASKED": now, "HELD": now, "REVOKED": 0, "ABOUT": b"{}",
        }  # fmt: skip
        assert sorted(usual) == sorted(FIELDS), "the record has changed its shape"
        return packed([{**usual, **changed}[field] for field in FIELDS])

    def replant(self, id: bytes, **changed: Any) -> None:
        """The record that stands there, with something else in it."""
        self.write(id, packed([{**self.record(id), **changed}[field] for field in FIELDS]))

    def check(self) -> list[Record]:
        """The chain is whole, and nothing stands beside it; gives it."""
        fields, chain = self.fields(), self.chain()
        ids = [record["ID"] for record in chain]
        tombs = {field for field in fields if field[:1] in (b"~", b"#") and len(field) != 16}
        assert set(fields) - META - tombs == set(ids), "a record beside the chain, or none for who is in it"
        assert [fields.get(b"first"), fields.get(b"last")] == ([ids[0], ids[-1]] if ids else [None, None])
        assert [record["BEFORE"] for record in chain[1:]] == ids[:-1], "a step back is not the step forth"
        tickets = [record["TICKET"] for record in chain]
        assert tickets == sorted(set(tickets)), "the order is not that of the tickets"
        assert not tickets or tickets[-1] <= int(fields[b"top"]), "a ticket above the last one that was given"
        return chain


def packed(value: Any) -> bytes:
    """As MessagePack; whole numbers beyond 64 bits and all others as doubles."""
    if isinstance(value, bool) or value is None:
        return b"\xc0" if value is None else b"\xc3" if value else b"\xc2"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return struct.pack(">Bq", 0xD3, value) if value < 2**63 else struct.pack(">BQ", 0xCF, value)
    if isinstance(value, int | float):
        return struct.pack(">Bd", 0xCB, float(value))
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xDB, len(value)) + value
    if isinstance(value, dict):
        return struct.pack(">BI", 0xDF, len(value)) + b"".join(packed(one) for pair in value.items() for one in pair)
    return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(packed, value))


def until_expired(raw: Raw, microseconds: int) -> None:
    """The server's clock itself is the condition."""
    while raw.now() <= microseconds:
        time.sleep(0.005)
