"""One connection to one server. redis-py opens it (TCP, TLS or a Unix socket, the login, the database). Then we take
over its socket, because redis-py's command layer costs more time than all our work on a reply.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import hiredis
from redis.exceptions import RedisError

from dibs.backends.common.connections import STEP, Begun, Connection, not_watched, shut_down
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.common.wakeup import READ, WRITE, Readiness, new_poll
from dibs.backends.redis.address import Address, Endpoint
from dibs.backends.redis.discovery import named, translated
from dibs.backends.redis.errors import Refusal, final, strange
from dibs.backends.redis.scripts import DIGITS, MICROSECONDS, Command, Request
from dibs.core.queue import Unsent
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

Reply = Any
CHUNK = 65_536
MOST = 64 * 1024 * 1024
"""Bytes of one reply. Our scripts and commands never return more."""
NOTHING = object()
"""No complete reply has arrived."""
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""A socket that does not block has nothing to read, or no room to write."""
PUSH: type | tuple[()] = getattr(hiredis, "PushNotification", ())
TIME = Command("TIME")
_REPLY_ON = Command("CLIENT", "REPLY", "ON")
_SKIP = Command("CLIENT", "REPLY", "SKIP").packed(0.0)


class Replies:
    """A parser of replies from a stream of bytes."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=Refusal, protocolError=ProtocolBroken, notEnoughData=NOTHING)
        self._fed = 0

    def feed(self, received: bytes) -> None:
        if not received:
            raise StoreUnavailable("the server closed the connection")
        self._fed += len(received)
        if self._fed > MOST:
            raise StoreUnavailable(f"the server's reply is longer than {MOST >> 20} MiB")
        self._reader.feed(received)

    def next(self) -> Reply:
        """The next reply, or NOTHING."""
        try:
            reply = self._reader.gets()
        except ProtocolBroken as error:
            raise StoreUnavailable(f"the server there is not Redis: {printable(str(error)[:80])}") from None
        if reply is not NOTHING:
            self._fed = 0
        return reply

    def is_spent(self) -> bool:
        """No received bytes are left, apart from push messages, which answer no request."""
        return not self._reader.has_data() or all(isinstance(reply, PUSH) for reply in iter(self.next, NOTHING))


class ProtocolBroken(Exception):
    """The received bytes are not in Redis's protocol."""


class RedisConnection(Connection):
    """A connection after the login and a first TIME."""

    def __init__(
        self,
        address: Address,
        endpoint: Endpoint,
        now: Callable[[], float],
        round_trip: RoundTrip,
        until: float,
        begun: Begun = not_watched,
    ) -> None:
        """Blocks; raises Unsent if the server cannot be reached, StoreError if it refuses."""
        super().__init__(now)
        # Kept as long as this object: its destructor is Python code, which would swallow an interrupt.
        self._made = made = connected(address, endpoint, min(until - now(), STEP), begun)
        self.sock: socket.socket
        # In one step, so that an interrupt leaves the socket with one of the two.
        self.sock, made._sock = made._sock, None  # noqa: SLF001  (see `connected`)
        begun(lambda: shut_down(self.sock))
        self.poll: Any = None
        """Waits until the socket is readable. None with TLS: the socket has a timeout of its own."""
        self._patience = 0.0
        if not isinstance(self.sock, ssl.SSLSocket):
            self.sock.setblocking(False)
            self.poll = new_poll()
            self.poll.register(self.sock.fileno(), READ)
        self.answers = Replies()
        self.is_reusable = self.answers.is_spent  # type: ignore[method-assign]  # saves a call
        self.may_skip = False
        """The server accepts requests without a reply."""
        self._tell_time(until)
        if address.layout == "redisson":
            self.may_skip = self.exchange((_REPLY_ON,), until) == [b"OK"]
        self.opened(round_trip)

    def exchange(self, requests: Sequence[Request], until: float) -> list[Reply]:
        self.send(requests, until)
        return self.receive(len(requests), until)

    def send(self, requests: Sequence[Request], until: float) -> None:
        """Send requests. The caller reads the replies with `receive`, or closes the connection."""
        offset = self.offset
        try:
            self.sent_at = now = self._now()
            self._write(b"".join([request.packed(offset) for request in requests]), self._patience_of(until, now))
        except OSError as error:
            self.close()
            raise broken(error) from None
        except BaseException:
            self.close()
            raise

    def receive(self, count: int, until: float) -> list[Reply]:
        answers, now, found = self.answers, self._now(), list[Reply]()
        end, patience = 0.0, self._patience_of(until, now)
        try:
            while len(found) < count:
                reply = answers.next()
                if reply is not NOTHING:
                    if not isinstance(reply, PUSH):  # a push answers no request
                        found.append(reply)
                    continue
                if end:
                    now = self._now()
                    if now >= end:  # a server that sends byte by byte counts as silent
                        raise TimeoutError
                    patience = self._patience_of(end, now)
                end = end or max(until, now + self.round_trip.least)
                answers.feed(self._read(patience))
        except OSError as error:
            self.close()
            raise error if isinstance(error, StoreError) else broken(error) from None
        except BaseException:
            self.close()
            raise
        self.note(found[0])
        return found

    def read_now(self, received: bytes, until: float) -> Reply:
        """The reply that begins with these bytes: the free path parses only the common replies itself."""
        try:
            self.answers.feed(received)
        except BaseException:
            self.close()
            raise
        return self.receive(1, until)[0]

    def tell(self, request: bytes) -> bool:
        """Send a packed request without a reply. Best effort: its outcome is not known. False: the connection broke,
        and is closed. If the server has withdrawn the right to CLIENT REPLY, its errors are taken for the next reply:
        that request is then refused, asked again, and the connection given up because bytes are left on it."""
        if self.may_skip:
            try:
                self._write(_SKIP + request, self.round_trip.least)
            except OSError:
                self.close()
                return False
        return True

    def _write(self, data: bytes, patience: float) -> None:
        sock = self.sock
        if self.poll is None:
            self._set_timeout(patience)
            sock.sendall(data)
            return
        sent = sock.send(data)
        while sent < len(data):
            writable = new_poll()
            writable.register(sock.fileno(), WRITE)
            if not writable.poll(patience * 1000):
                raise TimeoutError
            with suppress(BlockingIOError):
                sent += sock.send(data[sent:])

    def _read(self, patience: float) -> bytes:
        if self.poll is None:
            self._set_timeout(patience)
        elif not self.poll.poll(patience * 1000):
            raise TimeoutError
        return self.sock.recv(CHUNK)

    def note(self, reply: Reply) -> None:
        """Measure a reply. The reply of a script begins with the server's time, or is the server's time."""
        if type(reply) is list and reply and type(reply[0]) is int:
            self.note_reply(reply[0] / MICROSECONDS)
        else:
            is_time = type(reply) is bytes and len(reply) == DIGITS and reply.isdigit()
            self.note_reply(int(reply) / MICROSECONDS if is_time else None)

    def is_stale(self) -> bool:
        return bool(self.poll.poll(0)) if self.poll is not None else Readiness(self.sock.fileno()).wait(0.0)

    def close(self) -> None:
        self.seat = None
        self.sock.close()

    def __del__(self) -> None:
        """Close the socket if an interrupt came before anyone had this object."""
        if hasattr(self, "sock"):
            self.sock.close()

    def _patience_of(self, until: float, now: float) -> float:
        trip, patience = self.round_trip, until - now
        return trip.attempt if patience >= trip.attempt else max(patience, trip.least)

    def _set_timeout(self, patience: float) -> None:
        if patience != self._patience:
            self._patience = patience
            # Not by SO_RCVTIMEO, which is cheaper: after a signal, Python would wait for the whole time again.
            self.sock.settimeout(patience)

    def _tell_time(self, until: float) -> None:
        (reply,) = self.exchange((TIME,), until)
        if isinstance(reply, Refusal):
            self.close()
            raise final(reply, b"")
        if not isinstance(reply, list) or len(reply) != 2 or not self.answers.is_spent():
            self.close()
            raise strange()
        self.note_reply(int(reply[0]) + int(reply[1]) / MICROSECONDS)


def dial(address: Address, endpoint: Endpoint, patience: float) -> socket.socket:
    """A connected socket, after the login."""
    made = connected(address, endpoint, patience)
    sock, made._sock = made._sock, None  # noqa: SLF001  (see `connected`)
    assert isinstance(sock, socket.socket)
    return sock


def connected(address: Address, endpoint: Endpoint, patience: float, begun: Begun = not_watched) -> Any:
    """A connected object of redis-py, whose private socket the caller takes: redis-py has no public way."""
    connection = address.connection(endpoint, patience)
    begun(lambda: shut_down(connection._sock))  # noqa: SLF001
    failure: StoreError | None = None
    try:
        connection.connect()
    except RedisError as error:
        failure = translated(error, endpoint)
    except Exception as error:  # from the user's credential provider or connect function
        what = f"no connection to {named(endpoint)}: {type(error).__name__} in what is given to the driver"
        raise Unsent(what, step="look at the cause of this error") from error
    if failure is not None:  # raised outside of `except`: redis-py's error may contain the password
        raise Unsent(failure.what, step=failure.step) if isinstance(failure, StoreUnavailable) else failure
    return connection


def broken(error: OSError) -> StoreUnavailable:
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the server did not answer in time")
    return StoreUnavailable(f"the connection broke: {printable(error.strerror or type(error).__name__)}")
