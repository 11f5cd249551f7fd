"""Servers that do not do what PostgreSQL does, as libpq and the store see them: see test_bad_servers.py."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from lab.listener import Manner, hangs_up, is_mute, speaks_http


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


READY = message(b"Z", b"I")
WELCOME = message(b"R", struct.pack("!i", 0)) + message(b"K", struct.pack("!ii", 1, 2)) + READY


def greeted(then: Manner) -> Manner:
    """Lets everybody in, without TLS and without a password."""

    def manner(line: socket.socket) -> None:
        with suppress(OSError):
            while line.recv(65_536)[4:8] == struct.pack("!i", 80877103):  # a question for TLS
                line.sendall(b"N")
            line.sendall(WELCOME)
            line.recv(65_536)
            then(line)

    return manner


def says(text: bytes) -> Manner:
    def manner(line: socket.socket) -> None:
        line.sendall(text)
        is_mute(line)

    return manner


def rows(*values: bytes) -> bytes:
    """One row, as the answer to whatever was asked."""
    columns = b"".join(b"c\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0) for _ in values)
    cells = b"".join(struct.pack("!i", len(value)) + value for value in values)
    count = struct.pack("!h", len(values))
    return (
        message(b"1") + message(b"2") + message(b"T", count + columns) + message(b"D", count + cells)
        + message(b"C", b"SELECT 1\0") + READY
    )  # fmt: skip


CASES: dict[str, tuple[Manner, str]] = {
    case: (manner, "")
    for case, manner in {
        "hangs up": hangs_up,
        "mute": is_mute,
        "HTTP": speaks_http,
        "hangs up, asked": greeted(hangs_up),
        "mute, asked": greeted(is_mute),
        "no protocol": greeted(says(b"\xde\xad\xbe\xef" * 8)),
        "breaks off": greeted(says(rows(b"1", b"1")[:-9])),
        "words for numbers": greeted(says(rows(b"now", b"pid"))),
        "other columns": greeted(says(rows(b"1"))),
        "an error of an odd shape": greeted(says(message(b"E", b"\xff\xff") + READY)),
        "words for a terminal": greeted(says(message(b"E", b"SERROR\0CXX000\0M\x1b]0;owned\x07\x1b[2J\0\0") + READY)),
    }.items()
}
