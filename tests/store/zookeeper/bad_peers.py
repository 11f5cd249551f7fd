"""Servers that do not behave as ZooKeeper does: see lab/listener.py."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from functools import partial

from dibs.backends.zookeeper.wire.codec import LARGEST
from lab.listener import Listener, Manner, drips, hangs_up, is_mute, speaks_http

Bad = partial(Listener, "zookeeper")
SESSION = 0x1DEA


def frame(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


def request(line: socket.socket) -> bytes:
    """The next request without its length; OSError when there is none."""
    (size,) = struct.unpack("!i", _exactly(line, 4))
    return _exactly(line, size)


def reply(asked: bytes, body: bytes = b"", error: int = 0, off: int = 0) -> bytes:
    """The reply to that request; `off` is added to its number."""
    (xid,) = struct.unpack_from("!i", asked)
    return frame(struct.pack("!iqi", xid + off, 1, error) + body)


def welcome(greeting: bytes, session: int = SESSION, timeout_ms: int = 0) -> bytes:
    """By default with the requested timeout."""
    (asked,) = struct.unpack_from("!i", greeting, 12)
    return frame(struct.pack("!iiqi", 0, timeout_ms or asked, session, 16) + bytes(16) + b"\0")


def greeted(then: Manner) -> Manner:
    """Replies to the greeting, and then does `then`."""

    def manner(line: socket.socket) -> None:
        line.sendall(welcome(request(line)))
        then(line)

    return manner


def hangs_up_when_asked(line: socket.socket) -> None:
    request(line)


drips_on = drips(struct.pack("!i", LARGEST), b"\0")


def floods(line: socket.socket) -> None:
    """The largest frame that is read, without an end."""
    line.sendall(struct.pack("!i", LARGEST))
    while True:
        line.sendall(bytes(1 << 20))


def answers(make: Callable[[bytes], bytes]) -> Manner:
    """Sends one reply to the first request, and nothing else."""

    def manner(line: socket.socket) -> None:
        line.sendall(make(request(line)))
        is_mute(line)

    return manner


promises_too_much = answers(lambda _: struct.pack("!i", 2**31 - 1) + bytes(1 << 16))
promises_less_than_nothing = answers(lambda _: struct.pack("!i", -7))
breaks_off = answers(lambda asked: reply(asked, bytes(40))[:-20])
rambles = answers(lambda _: frame(b"\xde\xad\xbe\xef" * 25))
knows_no_session = answers(lambda asked: welcome(asked, session=0))
gives_no_time = answers(lambda asked: welcome(asked, timeout_ms=1))


def answers_another(line: socket.socket) -> None:
    while True:
        line.sendall(reply(request(line), off=1000))


def answers_shortly(line: socket.socket) -> None:
    """Good headers without a body."""
    while True:
        line.sendall(reply(request(line)))


def gives_another_session(line: socket.socket) -> None:
    """And hangs up, so that the client reconnects."""
    line.sendall(welcome(request(line), session=id(line)))


def _exactly(line: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        chunk = line.recv(size - len(text))
        if not chunk:
            raise ConnectionResetError
        text += chunk
    return text


HUNG_UP = r"the server closed the connection|Connection reset by peer|Broken pipe"
SILENT = r"no answer (in time|within)"
PROTOCOL = r"does not speak ZooKeeper's protocol: "
OVER = r"the session was over|refuses a session"
BEFORE: dict[str, tuple[Manner, str]] = {
    "hangs up": (hangs_up, HUNG_UP),
    "hangs up at the greeting": (hangs_up_when_asked, HUNG_UP),
    "mute": (is_mute, SILENT),
    "drips": (drips_on, SILENT),
    "2 GB": (promises_too_much, PROTOCOL + "a frame of 2147483647 bytes"),
    "less than nothing": (promises_less_than_nothing, PROTOCOL + "a frame of -7 bytes"),
    "rambles": (rambles, rf"{PROTOCOL}|{OVER}"),
    "HTTP": (speaks_http, PROTOCOL + "a frame of 1213486160 bytes"),
}
SESSIONS: dict[str, tuple[Manner, str]] = {
    "no session": (knows_no_session, OVER),
    "no time": (gives_no_time, "no beat was answered in time|no server accepted a session"),
    "another session": (gives_another_session, HUNG_UP + "|another session than ours"),
    "hangs up": (greeted(hangs_up), HUNG_UP),
    "hangs up when asked": (greeted(hangs_up_when_asked), HUNG_UP),
}
AFTER: dict[str, tuple[Manner, str]] = {
    "mute": (greeted(is_mute), SILENT),
    "breaks off": (greeted(breaks_off), SILENT),
    "drips": (greeted(drips_on), SILENT),
    "2 GB": (greeted(promises_too_much), PROTOCOL + "a frame of 2147483647 bytes"),
    "less than nothing": (greeted(promises_less_than_nothing), PROTOCOL + "a frame of -7 bytes"),
    "rambles": (greeted(rambles), PROTOCOL + "a reply to another request"),
    "answers another": (greeted(answers_another), PROTOCOL + "a reply to another request"),
    "answers shortly": (greeted(answers_shortly), PROTOCOL + "a reply is shorter"),
}
FLOODS: dict[str, tuple[Manner, str]] = {
    "at once": (floods, ""),
    "when asked": (greeted(floods), ""),
}
