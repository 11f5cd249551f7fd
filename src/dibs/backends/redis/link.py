"""One connection to one server. redis-py makes it (TCP, TLS, a Unix socket, the login, the database); then the socket
is ours: its command layer costs more than all that we do with the answer.

A link belongs to one user at a time. Whatever ends an exchange early, also an interrupt, closes it: the answer to an
unfinished question must not be taken for the answer to the next. `offset` is how far the server's clock is ahead of
ours, at least: every script's answer begins with the server's time, and it was read before the answer arrived.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import hiredis
from redis.exceptions import RedisError

from dibs.backends.redis.address import Address, Place
from dibs.backends.redis.answers import Refusal, final, strange
from dibs.backends.redis.asking import named, translated
from dibs.backends.redis.scripts import MICROSECONDS, Command, Request
from dibs.core.line import Unsent
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

Reply = Any
ATTEMPT = 2.0
"""How long one answer is waited for: who has more time asks again, on another connection."""
LEAST = 0.05
_REST = 0.25
"""Seconds before a server that could not be reached is tried again."""
_CHUNK = 65_536
MOST = 64 * 1024 * 1024
"""Bytes of one answer; no server of ours sends more."""
NOTHING = object()
PUSH: type | tuple[()] = getattr(hiredis, "PushNotification", ())
TIME = Command("TIME")


class Answers:
    """Replies out of a stream of bytes."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=Refusal, protocolError=ProtocolBroken, notEnoughData=NOTHING)
        self._fed = 0

    def feed(self, received: bytes) -> None:
        if not received:
            raise StoreUnavailable("the server closed the connection")
        self._fed += len(received)
        if self._fed > MOST:
            raise StoreUnavailable(f"the server's answer is longer than {MOST >> 20} MiB")
        self._reader.feed(received)

    def next(self) -> Reply:
        """NOTHING: more is to come."""
        try:
            reply = self._reader.gets()
        except ProtocolBroken as error:
            raise StoreUnavailable(f"what answers there is no Redis: {printable(str(error)[:80])}") from None
        if reply is not NOTHING:
            self._fed = 0
        return reply

    def is_spent(self) -> bool:
        """Nothing is left of what came, but for pushes, which answer nothing."""
        return not self._reader.has_data() or all(isinstance(reply, PUSH) for reply in iter(self.next, NOTHING))


class ProtocolBroken(Exception):
    """What came is not in Redis's protocol."""


class Link:
    def __init__(self, address: Address, place: Place, now: Callable[[], float], until: float) -> None:
        self.place = place
        self._now = now
        # Kept until our own end: its destructor is in Python, and an interrupt that strikes there is swallowed.
        self._made = made = connected(address, place, max(min(until - now(), ATTEMPT), LEAST))
        self.sock: socket.socket
        # In one step: an interrupt finds it with one of the two.
        self.sock, made._sock = made._sock, None  # noqa: SLF001  (see `connected`)
        self._patience = 0.0
        self.answers = Answers()
        self.offset = -inf
        self.used_at = self._sent_at = now()
        self._tell_time(until)

    def exchange(self, requests: Sequence[Request], until: float) -> list[Reply]:
        """As `send` and `receive`, in one piece for the usual case: one question, whose answer comes whole."""
        if len(requests) > 1:
            self.send(requests, until)
            return self.receive(len(requests), until)
        try:
            sock, answers = self.sock, self.answers
            self._sent_at = self._be_patient(until)
            sock.sendall(requests[0].packed(self.offset))
            answers.feed(sock.recv(_CHUNK))
            reply = answers.next()
            if reply is NOTHING or isinstance(reply, PUSH):
                return self._read(1, until)
        except OSError as error:
            self.close()
            raise error if isinstance(error, StoreError) else broken(error) from None
        except BaseException:
            self.close()
            raise
        self.hear(reply, self._sent_at)
        return [reply]

    def send(self, requests: Sequence[Request], until: float) -> None:
        """The answers are to be read by `receive`; whoever does not closes the link."""
        offset = self.offset
        try:
            self._sent_at = self._be_patient(until)
            if len(requests) == 1:
                self.sock.sendall(requests[0].packed(offset))
            else:
                self.sock.sendall(b"".join([request.packed(offset) for request in requests]))
        except OSError as error:
            self.close()
            raise broken(error) from None
        except BaseException:
            self.close()
            raise

    def receive(self, count: int, until: float) -> list[Reply]:
        try:
            self._be_patient(until)
            return self._read(count, until)
        except OSError as error:
            self.close()
            raise error if isinstance(error, StoreError) else broken(error) from None
        except BaseException:
            self.close()
            raise

    def _read(self, count: int, until: float) -> list[Reply]:
        answers, sock = self.answers, self.sock
        end = max(until, self._now() + LEAST)  # a server that drips is as silent as one that says nothing
        found: list[Reply] = []
        while True:
            reply = answers.next()
            if reply is NOTHING:
                if self._now() >= end:
                    raise TimeoutError
                self._be_patient(end)
                answers.feed(sock.recv(_CHUNK))
            elif not isinstance(reply, PUSH):  # a push answers nothing
                found.append(reply)
                if len(found) == count:
                    self.hear(found[0], self._sent_at)
                    return found

    def hear(self, reply: Reply, sent_at: float) -> None:
        """What a script answered begins with the server's time: of an instant after it was asked, and before now. An
        answer that was late says less than what is known already."""
        self.used_at = self._now()
        if type(reply) is list and reply and type(reply[0]) is int:
            there = reply[0] / MICROSECONDS
            self.offset = min(max(self.offset, there - self.used_at), there - sent_at)

    def is_stale(self) -> bool:
        """It was closed, or something came that nobody asked for, while it was idle."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        """An interrupt may have struck before anybody had it."""
        if hasattr(self, "sock"):
            self.sock.close()

    def _be_patient(self, until: float) -> float:
        """Gives the instant at which that begins."""
        now = self._now()
        patience = until - now
        patience = ATTEMPT if patience >= ATTEMPT else max(patience, LEAST)
        if patience != self._patience:
            self._patience = patience
            # Not by SO_RCVTIMEO, which is cheaper: after a signal Python would begin to wait anew.
            self.sock.settimeout(patience)
        return now

    def _tell_time(self, until: float) -> None:
        (reply,) = self.exchange((TIME,), until)
        if isinstance(reply, Refusal):
            self.close()
            raise final(reply, b"")
        if not isinstance(reply, list) or len(reply) != 2 or not self.answers.is_spent():
            self.close()
            raise strange()
        self.hear([int(reply[0]) * MICROSECONDS + int(reply[1])], self._sent_at)


class Dialer:
    """Makes links. A server that could not be reached is not tried again for a moment: who asks then is told at once,
    so that a dead server does not cost its time-out at every question."""

    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        self.address = address
        self.now = now
        self._rests: dict[Place, float] = {}

    def link(self, place: Place, until: float) -> Link:
        if self.now() < self._rests.get(place, 0.0):
            raise Unsent(f"no connection to {named(place)} a moment ago", step="is it running there?")
        try:
            link = Link(self.address, place, self.now, until)
        except StoreUnavailable:
            self._rests[place] = self.now() + _REST
            raise
        self._rests.pop(place, None)
        return link


def dial(address: Address, place: Place, patience: float) -> socket.socket:
    """A connected socket, past the login. The connection object that made it is done with it."""
    made = connected(address, place, patience)
    sock, made._sock = made._sock, None  # noqa: SLF001  (see `connected`)
    assert isinstance(sock, socket.socket)
    return sock


def connected(address: Address, place: Place, patience: float) -> Any:
    """The connection object: redis-py has no other way to hand its socket over than to let it be taken."""
    connection = address.connection(place, patience)
    failure: StoreError | None = None
    try:
        connection.connect()
    except RedisError as error:
        failure = translated(error, place)
    except Exception as error:  # a user's own credentials, or what is called on connecting
        what = f"no connection to {named(place)}: {type(error).__name__} in what is given to the driver"
        raise Unsent(what, step="see its cause") from error
    if failure is not None:  # raised here, where redis-py's error does not hang from it: it may hold the password
        raise Unsent(failure.what, step=failure.step) if isinstance(failure, StoreUnavailable) else failure
    return connection


def broken(error: OSError) -> StoreUnavailable:
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the server did not answer in time")
    return StoreUnavailable(f"the connection broke: {printable(error.strerror or type(error).__name__)}")
