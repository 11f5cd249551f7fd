"""Peers that let everybody in as MySQL does, and then break the protocol."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from lab.listener import Manner, hangs_up, is_mute, speaks_http

OK = b"\x00\x00\x00\x02\x00\x00\x00"
_GREETING = (
    b"\x0a10.11.0-MariaDB\x00\x01\x00\x00\x00abcdefgh\x00" + (0x8209 | 0x0200).to_bytes(2, "little") + b"\x2d\x02\x00"
    b"\x08\x00\x15" + b"\x00" * 10 + b"ijklmnopqrst\x00mysql_native_password\x00"
)  # fmt: skip
_END = b"\xfe\x00\x00\x02\x00"


def packets(*bodies: bytes, number: int = 1) -> bytes:
    return b"".join(
        len(body).to_bytes(3, "little") + bytes([(number + at) % 256]) + body for at, body in enumerate(bodies)
    )


def rows(*found: tuple[bytes, ...]) -> bytes:
    """A result set."""
    columns = [b"\x03def" + b"\x00" * 3 + b"\x01c\x00\x0c\x3f\x00\xff\x00\x00\x00\xfd\x00\x00\x00\x00\x00"] * len(
        found[0]
    )
    texts = [b"".join(bytes([len(text)]) + text for text in row) for row in found]
    return packets(bytes([len(columns)]), *columns, _END, *texts, _END)


def greeted(manner: Callable[[socket.socket], None]) -> Manner:
    """As a server until somebody asks for something of ours."""

    def behave(line: socket.socket) -> None:
        line.sendall(packets(_GREETING, number=0))
        asked = _requests(line)
        next(asked, b"")
        line.sendall(packets(OK, number=2))
        for text in asked:
            if b"CALL" in text or b"dibs_" in text:
                manner(line)
                return
            line.sendall(_usual(text))

    return behave


def _usual(text: bytes) -> bytes:
    if b"SHOW GLOBAL VARIABLES" in text:
        return rows((b"version", b"10.11.0-MariaDB"), (b"wsrep_on", b"OFF"))
    if b"TIMESTAMPDIFF" in text:
        return rows((b"%d" % (time.time() * 1e6),))
    return packets(OK)


def _requests(line: socket.socket) -> Iterator[bytes]:
    data = b""
    with suppress(OSError):
        while received := line.recv(65_536):
            data += received
            while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:3], "little"):
                size = 4 + int.from_bytes(data[:3], "little")
                yield data[4:size]
                data = data[size:]


def says(text: bytes) -> Callable[[socket.socket], None]:
    def manner(line: socket.socket) -> None:
        with suppress(OSError):
            line.sendall(text)
            line.recv(65_536)

    return manner


def endlessly(first: bytes, more: bytes) -> Callable[[socket.socket], None]:
    def manner(line: socket.socket) -> None:
        with suppress(OSError):
            line.sendall(first)
            while True:
                line.sendall(more)

    return manner


CASES: dict[str, tuple[Manner, str]] = {
    case: (manner, "")
    for case, manner in {
        "hangs up": hangs_up,
        "mute": is_mute,
        "HTTP": speaks_http,
        "hangs up, asked": greeted(hangs_up),
        "mute, asked": greeted(is_mute),
        "no protocol": greeted(says(b"\xde\xad\xbe\xef" * 8)),
        "breaks off": greeted(says(rows((b"1", b"1"))[:-9])),
        "more than was asked for": greeted(says(rows((b"1", b"0")) * 2)),
        "asks for a local file": greeted(says(packets(b"\xfb/etc/passwd"))),
        "a row that is longer than it says": greeted(says(rows((b"1",))[:-11] + packets(b"\x7fx", number=4))),
        "an error of an odd shape": greeted(says(packets(b"\xff\x15"))),
        "no row": greeted(says(rows((b"1",))[: len(packets(b"\x01"))] + packets(_END, number=2) * 2)),
        "words for numbers": greeted(says(rows((b"now", b"yes", b"x", b"x", b"x", b"x", b"x", b"")))),
        "other columns": greeted(says(rows((b"1",)))),
    }.items()
} | {"full": (says(packets(b"\xff\x10\x04#08004Too many connections", number=0)), "raise max_connections")}
FLOODS: dict[str, tuple[Manner, str]] = {
    "rows without an end": (greeted(endlessly(rows((b"1",))[:-9], packets(b"\x03abc") * 1000)), ""),
    "a packet of 16 MB": (greeted(endlessly(b"\xff\xff\xff\x01", b"\x01" * 65_536)), ""),
}
