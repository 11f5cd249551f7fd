"""The protocol's bytes, against bytes written by hand from its definition. Bytes that no server should send raise
`Garbled`, and nothing else."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Created, Event, Garbled, Node, Reader, Refused, Request, Stat, Welcome

STAT = Stat(11, 12, 13, 14, 1, 2, 3, -44, 5, 6, 17)
STAT_BYTES = bytes.fromhex(
    "000000000000000b 000000000000000c 000000000000000d 000000000000000e 00000001 00000002 00000003"
    "ffffffffffffffd4 00000005 00000006 0000000000000011"
)
WORLD = b"\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone"
A = b"\0\0\0\x02/a"
END = b"\xff\xff\xff\xff\x01\xff\xff\xff\xff"

CHECK = Request(13, A + b"\0\0\0\x09", lambda _: None)
REQUESTS: dict[str, tuple[Request, int, bytes]] = {
    "create": (codec.create("/a", b"hi", codec.OPEN_ACL, codec.PERSISTENT), 15,
               A + b"\0\0\0\x02hi" + WORLD + b"\0\0\0\0"),
    "sequential": (codec.create("/a", b"", codec.OPEN_ACL, codec.EPHEMERAL_SEQUENTIAL), 15,
                   A + b"\0\0\0\0" + WORLD + b"\0\0\0\x03"),
    "container": (codec.create("/a", b"", codec.OPEN_ACL, codec.CONTAINER), 19,
                  A + b"\0\0\0\0" + WORLD + b"\0\0\0\x04"),
    "creator": (codec.create("/a", b"", codec.CREATOR_ACL, codec.EPHEMERAL), 15,
                A + b"\0\0\0\0" + b"\0\0\0\x01\0\0\0\x1f\0\0\0\x04auth\0\0\0\0" + b"\0\0\0\x01"),
    "creator-read": (codec.create("/a", b"", codec.CREATOR_READ_ACL, codec.EPHEMERAL), 15,
                     A + b"\0\0\0\0" + b"\0\0\0\x02\0\0\0\x1f\0\0\0\x04auth\0\0\0\0"
                     b"\0\0\0\x01\0\0\0\x05world\0\0\0\x06anyone" + b"\0\0\0\x01"),
    "delete": (codec.delete("/a"), 2, A + b"\xff\xff\xff\xff"),
    "exists": (codec.exists("/a"), 3, A + b"\0"),
    "exists watch": (codec.exists("/a", watch=True), 3, A + b"\x01"),
    "get": (codec.get("/a"), 4, A + b"\0"),
    "get watch": (codec.get("/a", watch=True), 4, A + b"\x01"),
    "put": (codec.put("/a", b"hi", 3), 5, A + b"\0\0\0\x02hi" + b"\0\0\0\x03"),
    "children": (codec.children("/a"), 12, A + b"\0"),
    "children watch": (codec.children("/a", watch=True), 12, A + b"\x01"),
    "sync": (codec.sync("/\N{SNOWMAN}"), 9, b"\0\0\0\x04/\xe2\x98\x83"),
    "remove watches of data": (codec.remove_watches("/a", codec.OF_DATA), 18, A + b"\0\0\0\x02"),
    "remove watches of children": (codec.remove_watches("/a", codec.OF_CHILDREN), 18, A + b"\0\0\0\x01"),
    "set watches": (codec.set_watches(258, ["/a"], [], ["/a", "/b"]), 101,
                    b"\0\0\0\0\0\0\x01\x02" + b"\0\0\0\x01" + A + b"\0\0\0\0" + b"\0\0\0\x02" + A + b"\0\0\0\x02/b"),
    "auth": (codec.auth("digest", b"ana:x"), 100, b"\0\0\0\0\0\0\0\x06digest\0\0\0\x05ana:x"),
    "sasl": (codec.sasl(b"tok"), 102, b"\0\0\0\x03tok"),
    "close": (codec.close(), -11, b""),
    "multi": (codec.multi([CHECK, codec.delete("/a")]), 14,
              b"\0\0\0\x0d\0\xff\xff\xff\xff" + A + b"\0\0\0\x09" + b"\0\0\0\x02\0\xff\xff\xff\xff" + A
              + b"\xff\xff\xff\xff" + END),
}  # fmt: skip

MULTI = codec.multi([
    codec.create("/a", b"", codec.OPEN_ACL, codec.EPHEMERAL), codec.put("/a", b"", 1), codec.delete("/a"),
    CHECK,
])  # fmt: skip
PUT_DELETE_CHECK = (
    b"\0\0\0\x05\0\0\0\0\0" + STAT_BYTES + b"\0\0\0\x02\0\0\0\0\0" + b"\0\0\0\x0d\0\0\0\0\0"
)  # fmt: skip
REFUSAL = b"".join(
    b"\xff\xff\xff\xff\0" + struct.pack("!i", error) * 2 for error in (0, codec.BAD_VERSION, -2, -2)
)  # fmt: skip

REPLIES: dict[str, tuple[Request, bytes, object]] = {
    "create": (REQUESTS["create"][0], b"\0\0\0\x0c/a0000000001" + STAT_BYTES, Created("/a0000000001", STAT)),
    "container": (REQUESTS["container"][0], A + STAT_BYTES, Created("/a", STAT)),
    "delete": (codec.delete("/a"), b"", None),
    "exists": (codec.exists("/a"), STAT_BYTES, STAT),
    "get": (codec.get("/a"), b"\0\0\0\x02hi" + STAT_BYTES, Node(b"hi", STAT)),
    "get nothing": (codec.get("/a"), b"\xff\xff\xff\xff" + STAT_BYTES, Node(b"", STAT)),
    "put": (codec.put("/a", b"hi", 3), STAT_BYTES, STAT),
    "children": (codec.children("/a"), b"\0\0\0\x02\0\0\0\x01x\0\0\0\x03\xe2\x98\x83" + STAT_BYTES,
                 ["x", "\N{SNOWMAN}"]),
    "no children": (codec.children("/a"), b"\0\0\0\0" + STAT_BYTES, []),
    "sync": (codec.sync("/a"), A, None),
    "remove watches": (codec.remove_watches("/a", codec.OF_DATA), b"", None),
    "set watches": (codec.set_watches(1, [], [], []), b"", None),
    "auth": (codec.auth("digest", b""), b"", None),
    "sasl": (codec.sasl(b""), b"\0\0\0\x03tok", b"tok"),
    "close": (codec.close(), b"", None),
    "multi": (MULTI, b"\0\0\0\x0f\0\0\0\0\0" + A + STAT_BYTES + PUT_DELETE_CHECK + END, ["/a", STAT, None, None]),
    "multi, path only": (MULTI, b"\0\0\0\x01\0\0\0\0\0" + A + PUT_DELETE_CHECK + END, ["/a", STAT, None, None]),
    "multi refused": (MULTI, REFUSAL + END, Refused((0, codec.BAD_VERSION, -2, -2))),
}  # fmt: skip

READERS: dict[str, Callable[[bytes], object]] = {
    "head": codec.head,
    "welcome": codec.welcome,
    "event": codec.event,
    **{name: lambda data, of=request: of.read(Reader(data)) for name, (request, _, _) in REPLIES.items()},
    "texts": lambda data: Reader(data).texts(),
    "stat": lambda data: Reader(data).stat(),
}
NUMBERS = st.integers(-(2**31), 2**31 - 1)


def packed(*fields: int | bytes) -> bytes:
    """Numbers of four bytes, and bytes as they are."""
    return b"".join(field if isinstance(field, bytes) else struct.pack("!i", field) for field in fields)


def framed(bodies: list[bytes]) -> bytes:
    return b"".join(packed(len(body), body) for body in bodies)


def test_requests_are_these_bytes() -> None:
    for name, (request, operation, body) in REQUESTS.items():
        wanted = packed(8 + len(body), b"\x01\x02\x03\x04", operation, body)
        assert codec.encode(0x01020304, request) == wanted, name


def test_replies_of_these_bytes_have_this_value() -> None:
    for name, (request, body, value) in REPLIES.items():
        data = bytes.fromhex("00000007 0000000000000102 00000000") + body
        assert codec.head(data) == (7, 258, 0)
        assert request.read(Reader(data, codec.BODY)) == value, name


def test_a_reply_that_breaks_off_is_garbled() -> None:
    for name, (request, body, value) in REPLIES.items():
        needed = len(body) - (len(END) if name.startswith("multi") else 0)
        for size in range(needed if value is not None else 0):
            with pytest.raises(Garbled):
                request.read(Reader(body[:size]))
        assert request.read(Reader(body[:needed])) == value, name


def test_the_greeting_its_reply_and_an_event() -> None:
    assert codec.greeting(5, 30_000, 0x0102, b"p" * 16) == packed(
        45, 0, 0, 5, 30_000, 0, 0x0102, 16, b"p" * 16, b"\0"
    )  # fmt: skip
    said = packed(0, 12_000, 0, 0x0102, 16, b"q" * 16)
    assert codec.welcome(said + b"\0") == codec.welcome(said) == Welcome(12_000, 0x0102, b"q" * 16)
    assert codec.event(bytes.fromhex("ffffffff ffffffffffffffff 00000000") + packed(2, 3, A)) == Event(2, "/a")
    with pytest.raises(Garbled, match="too early"):
        MULTI.read(Reader(END))


@given(st.binary(max_size=80))
def test_frames_of_anything_end(data: bytes) -> None:
    buffer = bytearray(data)
    with suppress(Garbled):
        assert all(len(one) <= len(data) for one in codec.frames(buffer))
    assert data.endswith(buffer)


def test_a_reader_that_stops_between_frames_keeps_the_rest() -> None:
    buffer = bytearray(framed([b"a", b"b", b"c"]))
    for one in codec.frames(buffer):
        if one == b"b":
            break
    assert list(codec.frames(buffer)) == [b"c"]


def test_a_frame_of_an_impossible_size_is_garbled() -> None:
    for size in (-1, -(2**31), codec.LARGEST + 1, 2**31 - 1):
        found = codec.frames(bytearray(framed([b"good"]) + packed(size, b"x")))
        assert next(found) == b"good"
        with pytest.raises(Garbled, match=rf"a frame of {size} bytes, where 0 to {codec.LARGEST} may be"):
            next(found)


LIES = st.lists(NUMBERS | st.sampled_from([-1, 0, 1, 2**31 - 1, -(2**31)]) | st.binary(max_size=8), max_size=12)


@given(st.binary(max_size=120) | LIES.map(lambda fields: packed(*fields)))
def test_any_bytes_are_a_value_or_garbled(data: bytes) -> None:
    """Also wrong lengths and counts."""
    for read in READERS.values():
        with suppress(Garbled):
            read(data)


def test_a_wrong_length_costs_no_more_memory_than_the_frame() -> None:
    """At any place of any reply."""
    tracemalloc.start()
    try:
        for lie in (2**31 - 1, 2**30, 10**6, -1, -(2**31)):
            for before in range(0, 90, 2):
                for read in READERS.values():
                    with suppress(Garbled):
                        read(packed(bytes(before), lie, bytes(200)))
            with suppress(Garbled):
                list(codec.frames(bytearray(packed(lie, bytes(200)))))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_negative_length_is_empty() -> None:
    for length in (-1, -2, -(2**31)):
        reader = Reader(packed(length, length, length, 5))
        assert (reader.buffer(), reader.text(), reader.texts(), reader.int()) == (b"", "", [], 5)


def test_a_text_that_is_not_utf8_is_garbled() -> None:
    for text in (b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"a\xe2\x98"):
        sent = packed(len(text), text)
        places = {"children": packed(1, sent, STAT_BYTES), "event": packed(bytes(codec.BODY), 1, 3, sent)}
        for where, data in places.items():
            with pytest.raises(Garbled, match="not UTF-8"):
                READERS[where](data)


def test_every_named_error_has_words() -> None:
    named = {codec.UNIMPLEMENTED, codec.NO_NODE, codec.NO_AUTH, codec.BAD_VERSION, codec.NODE_EXISTS, codec.NOT_EMPTY,
             codec.EXPIRED, codec.AUTH_FAILED, codec.MOVED, codec.NO_WATCHER}  # fmt: skip
    assert named <= codec.ERRORS.keys()
