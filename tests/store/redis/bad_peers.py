"""Servers that do not do what Redis does: see lab/listener.py.

`greeted` answers as a good server does until it is asked to run a script, and then does `then`; a subscription is
always a good one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

import hiredis

from lab.listener import Listener, Manner, drips, is_mute

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
    """What a good server answers; None: to a script."""
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
    """What a good server says to a join that holds."""
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
    return granted() if len(words) > 9 else array(now(), 1)
