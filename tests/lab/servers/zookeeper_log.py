"""Raise the counter of children of a ZooKeeper directory, by writing into the transaction log.

    raise_counter(server, "/locks/a", 2**31 - 5)    # it restarts; the next sequential child there has this number

The log says for each child where the parent's counter then stands. So one child is created and deleted in a log file
behind all others: a header, then for each transaction a checksum, its length, itself, and a mark.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from lab.servers.supervisor import Server

MAGIC, VERSION, DATABASE = b"ZKLG", 2, 0
CREATE, DELETE = 1, 2
MARK = b"B"
_HEAD = struct.Struct("!qi")
PASSER_BY = "passer-by"
"""The name of the child that comes and goes; nothing reads it."""


def raise_counter(server: Server, directory: str, number: int) -> None:
    """Restarts it; `directory` must exist, and its counter stand below `number`. For one server, not an ensemble."""
    server.kill()
    write(server.data, last_zxid(server.data) + 1, directory, number)
    server.start()


def last_zxid(data: Path) -> int:
    """The zxid of the last transaction that a stopped server has logged; it may have been one of its own."""
    files = sorted((data / "version-2").glob("log.*"), key=lambda path: int(path.suffix[1:], 16), reverse=True)
    return next(zxids[-1] for path in files if (zxids := list(_logged(path.read_bytes()))))


def _logged(text: bytes) -> Iterator[int]:
    """The file is longer than what was written to it: the rest is nothing but zeros."""
    at = len(MAGIC) + struct.calcsize("!iq")
    while at + _HEAD.size <= len(text):
        _checksum, length = _HEAD.unpack_from(text, at)
        at += _HEAD.size
        if not length:
            return
        _session, _request, zxid = struct.unpack_from("!qiq", text, at)
        yield zxid
        at += length + len(MARK)


def write(data: Path, zxid: int, directory: str, number: int) -> None:
    """A log file that begins with that transaction, for a server that does not run."""
    child = f"{directory}/{PASSER_BY}"
    text = MAGIC + struct.pack("!iq", VERSION, DATABASE)
    text += _entry(zxid, CREATE, _creation(child, number))
    text += _entry(zxid + 1, DELETE, _buffer(child.encode()))
    (data / "version-2" / f"log.{zxid:x}").write_bytes(text)


def _entry(zxid: int, kind: int, transaction: bytes) -> bytes:
    session, request = 0, 0
    now = int(time.time() * 1000)
    body = struct.pack("!qiqqi", session, request, zxid, now, kind) + transaction
    return _HEAD.pack(zlib.adler32(body), len(body)) + body + MARK


def _creation(path: str, counter: int) -> bytes:
    """A persistent node without data, open to all; `counter`: where that of its parent stands from then on."""
    all_rights = 31
    anyone = struct.pack("!ii", 1, all_rights) + _buffer(b"world") + _buffer(b"anyone")
    ephemeral = False
    return _buffer(path.encode()) + _buffer(b"") + anyone + struct.pack("!?i", ephemeral, counter)


def _buffer(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data
