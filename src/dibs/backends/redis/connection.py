"""One connection to one server. redis-py makes it (TCP, TLS, a Unix socket, the login, the database); then the socket
is ours: its command layer costs more than all that we do with the answer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis.exceptions import RedisError

from dibs.backends.common.connections import STEP, Begun, Connection, not_watched, shut_down
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.common.wakeup import Readiness
from dibs.backends.redis.address import Address, Place
from dibs.backends.redis.answers import Refusal, final, strange
from dibs.backends.redis.asking import named, translated
from dibs.backends.redis.scripts import MICROSECONDS, Command, Request
from dibs.core.line import Unsent
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

Reply = Any
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
            raise StoreUnavailable(f"the server's reply is longer than {MOST >> 20} MiB")
        self._reader.feed(received)

    def next(self) -> Reply:
        """NOTHING: more is to come."""
        try:
            reply = self._reader.gets()
        except ProtocolBroken as error:
            raise StoreUnavailable(f"the server there is not Redis: {printable(str(error)[:80])}") from None
        if reply is not NOTHING:
            self._fed = 0
        return reply

    def is_spent(self) -> bool:
        """Nothing is left of what came, but for pushes, which answer nothing."""
        return not self._reader.has_data() or all(isinstance(reply, PUSH) for reply in iter(self.next, NOTHING))


class ProtocolBroken(Exception):
    """What came is not in Redis's protocol."""


class RedisConnection(Connection):
    """To one server, after the login and a first TIME."""

    def __init__(
        self,
        address: Address,
        place: Place,
        now: Callable[[], float],
        round_trip: RoundTrip,
        until: float,
        begun: Begun = not_watched,
    ) -> None:
        """Blocks; raises Unsent if the server cannot be reached, StoreError if it refuses."""
        super().__init__(now)
        # Kept until our own end: its destructor is in Python, and an interrupt that strikes there is swallowed.
        self._made = made = connected(address, place, min(until - now(), STEP), begun)
        self.sock: socket.socket
        # In one step: an interrupt finds it with one of the two.
        self.sock, made._sock = made._sock, None  # noqa: SLF001  (see `connected`)
        begun(lambda: shut_down(self.sock))
        self._patience = 0.0
        self.answers = Answers()
        self.is_reusable = self.answers.is_spent  # type: ignore[method-assign]  # one call less for each exchange
        self._tell_time(until)
        self.opened(round_trip)

    def exchange(self, requests: Sequence[Request], until: float) -> list[Reply]:
        """As `send` and `receive`, in one piece for the usual case: one request, whose reply comes whole."""
        if len(requests) > 1:
            self.send(requests, until)
            return self.receive(len(requests), until)
        try:
            sock, answers = self.sock, self.answers
            self.sent_at = self._set_timeout(until)
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
        is_ours = type(reply) is list and reply and type(reply[0]) is int
        self.note_reply(reply[0] / MICROSECONDS if is_ours else None)
        return [reply]

    def send(self, requests: Sequence[Request], until: float) -> None:
        """The replies are read by `receive`; a caller that does not read them closes the connection."""
        offset = self.offset
        try:
            self.sent_at = self._set_timeout(until)
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
            self._set_timeout(until)
            return self._read(count, until)
        except OSError as error:
            self.close()
            raise error if isinstance(error, StoreError) else broken(error) from None
        except BaseException:
            self.close()
            raise

    def _read(self, count: int, until: float) -> list[Reply]:
        answers, sock = self.answers, self.sock
        end = max(until, self._now() + self.round_trip.least)  # a server that drips counts as silent
        found: list[Reply] = []
        while True:
            reply = answers.next()
            if reply is NOTHING:
                if self._now() >= end:
                    raise TimeoutError
                self._set_timeout(end)
                answers.feed(sock.recv(_CHUNK))
            elif not isinstance(reply, PUSH):  # a push answers nothing
                found.append(reply)
                if len(found) == count:
                    self.note(found[0])
                    return found

    def note(self, reply: Reply) -> None:
        """A script's reply begins with the server's time."""
        is_ours = type(reply) is list and reply and type(reply[0]) is int
        self.note_reply(reply[0] / MICROSECONDS if is_ours else None)

    def is_stale(self) -> bool:
        return Readiness(self.sock.fileno()).wait(0.0)

    def close(self) -> None:
        self.seat = None
        self.sock.close()

    def __del__(self) -> None:
        """An interrupt may have struck before anybody had it."""
        if hasattr(self, "sock"):
            self.sock.close()

    def _set_timeout(self, until: float) -> float:
        """Gives the instant at which it begins."""
        now, trip = self._now(), self.round_trip
        patience = until - now
        patience = trip.attempt if patience >= trip.attempt else max(patience, trip.least)
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
        self.note_reply(int(reply[0]) + int(reply[1]) / MICROSECONDS)


def dial(address: Address, place: Place, patience: float) -> socket.socket:
    """A connected socket, past the login. The connection object that made it is done with it."""
    made = connected(address, place, patience)
    sock, made._sock = made._sock, None  # noqa: SLF001  (see `connected`)
    assert isinstance(sock, socket.socket)
    return sock


def connected(address: Address, place: Place, patience: float, begun: Begun = not_watched) -> Any:
    """The connection object: redis-py has no other way to hand its socket over than to let it be taken."""
    connection = address.connection(place, patience)
    begun(lambda: shut_down(connection._sock))  # noqa: SLF001
    failure: StoreError | None = None
    try:
        connection.connect()
    except RedisError as error:
        failure = translated(error, place)
    except Exception as error:  # a user's own credentials, or what is called on connecting
        what = f"no connection to {named(place)}: {type(error).__name__} in what is given to the driver"
        raise Unsent(what, step="look at the cause of this error") from error
    if failure is not None:  # raised here, where redis-py's error does not hang from it: it may hold the password
        raise Unsent(failure.what, step=failure.step) if isinstance(failure, StoreUnavailable) else failure
    return connection


def broken(error: OSError) -> StoreUnavailable:
    if isinstance(error, TimeoutError):
        return StoreUnavailable("the server did not answer in time")
    return StoreUnavailable(f"the connection broke: {printable(error.strerror or type(error).__name__)}")
