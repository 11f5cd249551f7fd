"""A queue as Redis stores it, accessed directly: the hash of a name, its head, its records, its chain.

queue = raw.queue("dibs:a")
queue.chain()                      # the records in order, by their fields' names in lua/head.lua
queue.plant(WEIGHT=b"x" * 16)      # add a usual record, but for that; numbers get 16 digits
queue.write("h", b"2")             # any field
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import redis

SECOND = 1_000_000
DIGITS = 16
NUMBERS = ["TICKET", "SINCE", "SPAN", "ASKED", "HELD"]
SIZES = ["LEASE", "WAITING", "WEIGHT", "CAPACITY"]
FIELDS = ["ID", "BEFORE", *NUMBERS, "REVOKED", *SIZES, "KIND", "CLIENT", "ABOUT"]
"""The fields of a record, in order."""
OLDER = {b"first", b"last", b"keeps", b"dibs-layout-0002"}
"""Fields that no client reads."""
NOBODY = b"-" * 16
Record = dict[str, Any]


class Raw:
    """One prefix of a server."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.client: Any = client
        self.prefix = prefix

    def queue(self, name: str = "dibs:a") -> Queue:
        return Queue(self, f"{self.prefix}{name}|line".encode())

    @property
    def floor(self) -> bytes:
        """See lua/floor.lua."""
        return f"{self.prefix}dibs:floor".encode()

    def channel(self, client: bytes) -> str:
        return f"{self.prefix}dibs:client:{client.hex()}"

    def now(self) -> int:
        """The server's clock, in microseconds."""
        seconds, rest = self.client.time()
        return int(seconds) * SECOND + int(rest)

    def all_keys(self) -> list[bytes]:
        return sorted(self.client.scan_iter(f"{self.prefix}*", 1000))


class Head:
    """The field "h". `text`: None where it is missing."""

    def __init__(self, text: bytes | None, now: int = 0) -> None:
        text = text or b"2" + digits(now) + b"9" * DIGITS + b"%010d" % (now // SECOND + 100)
        self.top, self.covered, self.keeps = int(text[1:17]), text[17:33], int(text[33:43])
        self.special = text[43:93] if text[43:44] == b"s" else b""
        body = text[43 + len(self.special) :]
        self.link = body[17:65] if body[:1] == b"q" else b""
        self.record = body[65:] if self.link else body[1:]
        self.last = body[1:17] if self.link else self.record[:16]

    def text(self) -> bytes:
        form = b"" if not self.record else b"q" + self.last + self.link if self.link else b"a"
        return b"2" + digits(self.top) + self.covered + b"%010d" % self.keeps + self.special + form + self.record


class Queue:
    def __init__(self, raw: Raw, key: bytes) -> None:
        self._raw = raw
        self._client = raw.client
        self.key = key

    def fields(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self._client.hgetall(self.key)
        return found

    def own_fields(self) -> set[bytes]:
        """The fields that clients read."""
        return set(self.fields()) - OLDER

    def head(self) -> Head:
        return Head(self._client.hget(self.key, "h"), self._raw.now())

    def change_head(self, **changed: Any) -> None:
        head = self.head()
        for name, value in changed.items():
            setattr(head, name, value)
        self.write("h", head.text())

    def lasts(self) -> int:
        """Milliseconds until the key expires; -1: it does not, -2: there is none."""
        return int(self._client.pttl(self.key))

    def record(self, id: bytes) -> Record:
        return parsed(self._text(id))

    def chain(self) -> list[Record]:
        return [parsed(text) for text, _ in self._walk(self.fields())]

    def write(self, field: bytes | str, value: bytes | str) -> None:
        self._client.hset(self.key, field, value)

    def plant(self, id: bytes | None = None, **changed: Any) -> bytes:
        """Add a claim at the end; it holds if it is the first. Returns its id."""
        id, head, now = id or os.urandom(16), self.head(), self._raw.now()
        text = usual(now, **{"ID": id, "BEFORE": head.last or NOBODY, **changed})
        link = text[:16] + text[48:80]
        if not head.record:
            head.record = text
        else:
            self.write(id, text)
            if not head.link:
                head.link = link
            else:
                self.write(b">" + head.last, link)
        head.last, head.top = id, now
        self.write("h", head.text())
        return id

    def plant_many(self, count: int, **changed: Any) -> None:
        """Write all claims of an empty queue."""
        now, ids = self._raw.now(), [os.urandom(16) for _ in range(count)]
        texts = [
            usual(now, ID=id, TICKET=now + number, BEFORE=before, **changed)
            for number, (before, id) in enumerate(zip([NOBODY, *ids], ids, strict=False))
        ]
        links = {b">" + id: text[:16] + text[48:80] for id, text in zip(ids, texts[1:], strict=False)}
        head = Head(None, now + count)
        head.record, head.last, head.link = texts[0], ids[-1], links.pop(b">" + ids[0])
        records = dict(zip(ids[1:], texts[1:], strict=True))
        self._client.hset(self.key, mapping={"h": head.text(), **records, **links})

    def relink(self, id: bytes, behind: bytes) -> None:
        """Let the link of one claim name another one."""
        link = behind + self._text(behind)[48:80]
        if self.head().record[:16] == id:
            self.change_head(link=link)
        else:
            self.write(b">" + id, link)

    def check(self) -> list[Record]:
        """Return the chain, which must be whole, with no field beside it."""
        fields = self.fields()
        if not fields:
            return []
        head, walked = Head(fields[b"h"]), list(self._walk(fields))
        chain = [parsed(text) for text, _ in walked]
        ids = [record["ID"] for record in chain]
        tombs = {field for field in fields if field[:1] in (b"!", b"=") and len(field) == 17}
        links = {b">" + id for id in ids[1:-1]}
        assert set(fields) - OLDER - tombs - {b"h"} == {*ids[1:], *links}, "a field beside the chain, or a missing one"
        assert head.last == (ids[-1] if ids else b"")
        assert [record["BEFORE"] for record in chain[1:]] == ids[:-1], "a step back is not the step forth"
        assert [link for _, link in walked] == [text[:16] + text[48:80] for text, _ in walked[1:]] + [b""][: len(ids)]
        tickets = [record["TICKET"] for record in chain]
        assert tickets == sorted(set(tickets)), "the order is not that of the tickets"
        assert not tickets or tickets[-1] <= head.top, "a ticket above the last one that was given"
        assert bool(tombs) <= bool(head.special), "tombstones that the head does not tell of"
        return chain

    def _text(self, id: bytes) -> bytes:
        head = self.head()
        if head.record[:16] == id:
            return head.record
        text: bytes = self._client.hget(self.key, id)
        return text

    def _walk(self, fields: dict[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Each record, and the link behind it; at most 5,000."""
        head = Head(fields.get(b"h"), 0)
        text, link = head.record, head.link
        for _ in range(5000):
            if not text:
                return
            yield text, link
            id = link[:16]
            text, link = fields.get(id, b"") if id else b"", fields.get(b">" + id, b"")


def digits(number: int) -> bytes:
    return b"%016d" % number


def parsed(text: bytes) -> Record:
    """A record by the names of its fields; `UNTIL` is a sum."""
    widths = [16] * 7 + [1] + [16] * 5
    parts, at = [], 0
    for width in widths:
        parts.append(text[at : at + width])
        at += width
    size = int(text[at : at + 4])
    parts += [text[at + 4 : at + 4 + size], text[at + 4 + size :]]
    found: Record = dict(zip(FIELDS, parts, strict=True))
    found.update((name, int(found[name])) for name in [*NUMBERS, "REVOKED", *SIZES])
    found["KIND"] = found["KIND"].rstrip()
    return {**found, "UNTIL": found["SINCE"] + found["SPAN"]}


def usual(now: int, **changed: Any) -> bytes:
    """A usual record with some fields changed."""
    usual: Record = {
        "ID": b"", "BEFORE": NOBODY, "TICKET": now, "SINCE": now, "SPAN": 60 * SECOND, "ASKED": now, "HELD": now,
        "REVOKED": b"0", "LEASE": 60 * SECOND, "WAITING": 5 * SECOND, "WEIGHT": 1, "CAPACITY": 1, "KIND": b"mutex",
        "CLIENT": b"nobody", "ABOUT": b"{}",
    }  # fmt: skip
    return joined({**usual, **changed})


def joined(record: Record) -> bytes:
    """Numbers get the digits of their field; bytes are taken as they are."""
    found = b""
    for name in FIELDS:
        value = record[name]
        if name == "KIND":
            value = value.ljust(16)
        elif name == "CLIENT":
            value = b"%04d" % len(value) + value
        elif isinstance(value, int):
            value = b"%d" % value if name == "REVOKED" else digits(value)
        found += value
    return found
