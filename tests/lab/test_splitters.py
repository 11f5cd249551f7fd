"""Each splitter finds the messages of its protocol, however they are torn."""

from __future__ import annotations

import pytest

from lab import splitters
from lab.splitters import Splitter

RESP = [
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n*1\r\n",
    b"PING inline\r\n",
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":12\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n*2\r\n:1\r\n$2\r\n\r\n\r\n+x\r\n",
    b"%1\r\n$1\r\na\r\n~2\r\n#t\r\n_\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
    b"|1\r\n+ttl\r\n:9\r\n*1\r\n,1.5\r\n",
    b"=8\r\ntxt:text\r\n",
    b"!5\r\nERR x\r\n",
    b"(123456789012345678901234567890\r\n",
]
ZOOKEEPER = [b"\0\0\0\x05hello", b"\0\0\0\0", b"\0\0\x01\x00" + b"x" * 256]
MYSQL = [b"\x05\0\0\0hello", b"\0\0\0\x01", b"\0\x01\0\x02" + b"x" * 256]
POSTGRESQL_UP = [b"\0\0\0\x08\x04\xd2\x16\x2f", b"\0\0\0\x0d\0\x03\0\0user\0", b"Q\0\0\0\x0dSELECT 1\0", b"X\0\0\0\x04"]
POSTGRESQL_DOWN = [b"N", b"R\0\0\0\x08\0\0\0\0", b"S\0\0\0\x08a\0b\0", b"N\0\0\0\x05\0", b"Z\0\0\0\x05I"]
STREAMS = {
    "lines": (splitters.lines, [b"one\n", b"\n", b"two\r\n"]),
    "resp": (splitters.resp, RESP),
    "zookeeper": (splitters.zookeeper, ZOOKEEPER),
    "mysql": (splitters.mysql, MYSQL),
    "postgresql up": (splitters.postgresql, POSTGRESQL_UP),
    "postgresql down": (splitters.postgresql, POSTGRESQL_DOWN),
    "postgresql down without TLS": (splitters.postgresql, POSTGRESQL_DOWN[1:]),
}


def split(splitter: Splitter, pieces: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    rest = b""
    for piece in pieces:
        rest += piece
        while rest and (length := splitter(rest, len(found))):
            found.append(rest[:length])
            rest = rest[length:]
    assert rest == b""
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100_000])
@pytest.mark.parametrize("name", STREAMS)
def test_messages_are_found_however_they_are_torn(name: str, size: int) -> None:
    splitter, messages = STREAMS[name]
    stream = b"".join(messages)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert split(splitter, pieces) == messages


@pytest.mark.parametrize("name", STREAMS)
def test_a_message_is_not_found_before_it_is_whole(name: str) -> None:
    splitter, messages = STREAMS[name]
    for number, message in enumerate(messages):
        for end in range(1, len(message)):
            assert splitter(message[:end], number) == 0, message[:end]
