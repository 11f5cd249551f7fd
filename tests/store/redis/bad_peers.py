"""Servers that do not do what Redis does: see lab/listener.py and test_bad_servers.py.

`greeted` answers as a good server does until it is asked to run a script, and then does `then`; a subscription is
always a good one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

import hiredis

from lab.listener import Listener, Manner, drips, hangs_up, is_mute, speaks_http

Bad = partial(Listener, "redis")
OK = b"+OK\r\n"


def requests(line: socket.socket) -> Iterator[list[bytes]]:
    """One after the other, in words, until the other side goes."""
    reader = hiredis.Reader(notEnoughData=None)
    while True:
        while (words := reader.gets()) is not None:
            yield words
        received = line.recv(1 << 16)
        if not received:
            return
        reader.feed(received)


def greeting(words: list[bytes]) -> bytes | None:
    """The reply of a good server; None to a script."""
    match words[0].upper():
        case b"TIME":
            return array(*(b"%d" % part for part in divmod(int(time.time() * 1e6), 1_000_000)))
        case b"SUBSCRIBE":
            return b"".join(array(b"subscribe", channel, number) for number, channel in enumerate(words[1:], 1))
        case b"PING":
            return b"+PONG\r\n"
        case b"EVALSHA" | b"EVAL":
            return None
        case _:
            return OK


def greeted(then: Manner) -> Manner:
    def manner(line: socket.socket) -> None:
        for words in requests(line):
            answer = greeting(words)
            if answer is None:
                then(line)
                return
            line.sendall(answer)

    return manner


def answering(answer: bytes | Callable[[], bytes]) -> Manner:
    """The same to every script."""

    def manner(line: socket.socket) -> None:
        for words in requests(line):
            line.sendall(greeting(words) or (answer if isinstance(answer, bytes) else answer()))

    return manner


def array(*parts: bytes | int) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(
        b":%d\r\n" % part if isinstance(part, int) else b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


def now() -> int:
    return int(time.time() * 1e6)


def granted() -> bytes:
    """The reply of a good server to a join that holds."""
    return array(now(), now(), 1, 30_000_000, -1, 0)


drips_on = drips(b"$1000000\r\n", b"x")


def endlessly(first: bytes, more: bytes) -> Manner:
    def manner(line: socket.socket) -> None:
        line.sendall(first)
        many = more * (65_536 // len(more))
        while True:
            line.sendall(many)

    return manner


def says(text: bytes) -> Manner:
    def manner(line: socket.socket) -> None:
        line.sendall(text)
        is_mute(line)

    return manner


def says_more_than_was_asked(line: socket.socket) -> None:
    """A grant for nothing, before anybody asked and behind every answer."""
    line.sendall(granted())
    for words in requests(line):
        line.sendall((greeting(words) or array(now())) + granted())


def pushes_amid_answers(line: socket.socket) -> None:
    """As a server does that was told to speak of changes: they answer nothing."""
    push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"
    for words in requests(line):
        line.sendall(push + (greeting(words) or _answer(words)) + push)


def _answer(words: list[bytes]) -> bytes:
    return granted() if len(words) > 8 else array(now(), 1)


SILENT = "did not answer|does not answer|not answer in time|no subscription"
NO_REDIS = "not Redis"
LONG = "longer than"
GONE = "closed|[Rr]eset|broke|hung up|no connection"
BEFORE: dict[str, tuple[Manner, str]] = {
    "hangs up": (hangs_up, GONE),
    "mute": (is_mute, SILENT),
    "drips": (drips_on, f"{SILENT}|{NO_REDIS}|{GONE}"),
    "HTTP": (speaks_http, f"{NO_REDIS}|{GONE}|refuses"),
    "no protocol": (says(b"\xde\xad\xbe\xef\r\n"), f"{NO_REDIS}|{GONE}"),
    "an error without end": (endlessly(b"-ERR ", b"x"), f"{SILENT}|{NO_REDIS}|{GONE}|{LONG}"),
}
AFTER: dict[str, tuple[Manner, str]] = {
    "hangs up": (greeted(hangs_up), GONE),
    "mute": (greeted(is_mute), SILENT),
    "drips": (greeted(drips_on), SILENT),
    "less than nothing": (greeted(says(b"$-7\r\n")), NO_REDIS),
    "a number that is none": (greeted(says(b":one\r\n")), NO_REDIS),
    "no protocol": (greeted(says(b"\xde\xad\xbe\xef\r\n")), NO_REDIS),
    "breaks off": (greeted(says(b"*6\r\n:1\r\n:2\r\n$10\r\nx")), SILENT),
    "a grant nobody asked for": (says_more_than_was_asked, ""),
}
FLOODS: dict[str, tuple[Manner, str]] = {
    case: (greeted(endlessly(first, more)), f"{LONG}|{NO_REDIS}|{SILENT}")
    for case, first, more in (
        ("512 MB, announced", b"$536870912\r\n", b"\0"),
        ("8 EB, announced", b"$9223372036854775807\r\n", b"\0"),
        ("an array of arrays without an end", b"", b"*1\r\n"),
        ("a line without an end", b"+", b"x"),
    )
}
WRONG: dict[str, tuple[Manner, str]] = {
    case: (answering(text), "")
    for case, text in {
        "a word": b"+OK\r\n",
        "a number": b":1\r\n",
        "nothing": b"$-1\r\n",
        "an array of nothing": b"*0\r\n",
        "words for numbers": array(*[b"x"] * 6),
        "seven numbers": array(*[1] * 7),
        "arrays for numbers": b"*6\r\n" + array(1) * 6,
        "an error of its own": b"-OWN something went wrong\r\n",
        "words for a terminal": b"-\x1b]0;owned\x07 \x1b[2J\r\n",
        "an error of 10 MB": b"-ERR " + b"x" * 10_000_000 + b"\r\n",
        "a server that is nowhere": b"-MOVED 1 :0\r\n",
        "a server with a strange port": b"-MOVED 1 127.0.0.1:99999999\r\n",
        "a word of another protocol": b"%1\r\n$1\r\nx\r\n:1\r\n",
    }.items()
}
