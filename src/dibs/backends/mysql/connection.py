"""One connection. PyMySQL makes it (TCP, TLS, a Unix socket, the login, the database); then the socket is ours.

After a refusal it is not used any more: the server rolls back what the statement had begun.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

import pymysql

from dibs.backends.common import tls
from dibs.backends.common.connections import STEP, Begun, Connection, not_watched, shut_down
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.common.wakeup import READ, new_poll
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.calls import LEAVE, MICROSECONDS, TAKE, Request
from dibs.backends.mysql.errors import EXISTS, strange, unsent
from dibs.backends.mysql.wire import QUIT, Refusal, Reply, Row, Sets, preparation, prepared, statement
from dibs.core.queue import Unsent
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

LOCKED = 1
"""Seconds that a statement waits for a lock in the server; whoever has more time asks again."""
_IDLE = 600
"""Seconds after which the server ends a session whose client is silent: its machine may be gone."""
_CHUNK = 65_536
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_NEWER = {"MariaDB": (10, 6), "MySQL": (8, 0)}
_BEGIN = statement(
    f"SET SESSION innodb_lock_wait_timeout = {LOCKED}, lock_wait_timeout = {LOCKED}, wait_timeout = {_IDLE},"
    " sql_mode = 'STRICT_ALL_TABLES', autocommit = 1, completion_type = 'NO_CHAIN',"
    " time_zone = '+00:00', group_concat_max_len = 16777216"
    " /*M!100600 , tx_isolation = 'READ-COMMITTED', max_statement_time = 0 */"
    " /*!80000 , transaction_isolation = 'READ-COMMITTED', max_execution_time = 0 */"
)
"""READ COMMITTED: a statement that only reads a row does not lock it, and sees what was committed before it began."""
_ASK = statement(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
    " ('version', 'wsrep_on', 'wsrep_provider', 'group_replication_single_primary_mode')"
)
_SIZE = statement("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")
_IS_DYNAMIC = statement("SELECT SYSDATE(6) > NOW(6)")
"""Not so with sysdate_is_now: then SYSDATE is read before the lock of a row was waited for."""
_TIME = statement("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")


class MysqlConnection(Connection):
    failures = (OSError,)

    def __init__(
        self, address: Address, now: Callable[[], float], round_trip: RoundTrip, until: float, begun: Begun
    ) -> None:
        """Blocks; raises Unsent if the server cannot be reached, StoreError if it refuses."""
        super().__init__(now)
        # Kept until our own end: its destructor is in Python, and an interrupt that strikes there is swallowed.
        self._made = made = _connected(address, min(until - now(), STEP), begun)
        made._rfile.close()  # noqa: SLF001  (PyMySQL has no other way to hand its socket over than to let it be taken)
        self.sock: socket.socket
        # In one step: an interrupt finds it with one of the two.
        self.sock, made._sock = made._sock, None  # noqa: SLF001
        begun(lambda: shut_down(self.sock))
        self._patience = -1.0
        self.is_plain = not isinstance(self.sock, ssl.SSLSocket)
        self._readable = new_poll()
        self._readable.register(self.sock.fileno(), READ)
        self.take_code = self.leave_code = b""
        """How the commands begin that execute TAKE and LEAVE of calls.py; empty: there is no free path."""
        self._answer = Reply()
        self._unsent = b""
        """Bytes that are still to be sent: the socket's buffer was full."""
        self._is_refused = False
        try:
            self._begin(until)
        except Refusal as refusal:
            self.close()
            raise unsent(refusal, address.place) from None
        except StoreUnavailable as error:
            raise Unsent(error.what, step=error.step) from None
        self.opened(round_trip)

    @property
    def greeted_as(self) -> int:
        """The number of the session, as whoever answers there said when we came."""
        return int(self._made.server_thread_id[0])

    def exchange(self, request: Request, until: float) -> Sets:
        """A refusal is raised as such, and closes it like anything else that is not an answer."""
        return self.ask(request.packed(self.offset), until)

    def ask(self, packed: bytes, until: float) -> Sets:
        try:
            sock, answer = self.sock, Reply()
            self.sent_at = self._set_timeout(until)
            sock.sendall(packed)
            if not answer.feed(sock.recv(_CHUNK)):
                self._rest(answer, until)
            found = answer.result()
        except Refusal as refusal:
            if refusal.code not in EXISTS:  # what a statement had begun by then is to be rolled back
                self.close()
            raise
        except OSError as error:
            self.close()
            raise error if isinstance(error, StoreError) else broken(error) from None
        except BaseException:
            self.close()
            raise
        self.note(found)
        return found

    def trip(self, packed: bytes, until: float) -> bytes:
        """Send a request whose reply is one packet, wait once, read that. Anything that ends it early closes this."""
        try:
            self.sent_at = now = self._now()
            trip, sock = self.round_trip, self.sock
            patience = until - now
            patience = trip.attempt if patience >= trip.attempt else max(patience, trip.least)
            if self.is_plain:
                if self._patience:
                    self._patience = 0.0
                    sock.setblocking(False)
                if sock.send(packed) != len(packed):
                    raise StoreUnavailable("the connection took only a part of the request")
                if not self._readable.poll(patience * 1000):
                    raise TimeoutError
            else:
                self._patience = patience
                sock.settimeout(patience)
                sock.sendall(packed)
            reply = sock.recv(_CHUNK)
            if len(reply) < 4 or reply[0] + 4 != len(reply) or reply[1:3] != b"\x00\x00":
                reply = self._whole(reply, until)
        except OSError as error:
            self.close()
            raise error if isinstance(error, StoreError) else broken(error) from None
        except BaseException:
            self.close()
            raise
        return reply

    def _whole(self, reply: bytes, until: float) -> bytes:
        """A packet that came in several pieces, or is long."""
        until = max(until, self._now() + self.round_trip.least)  # a server that drips counts as silent
        while len(reply) < 4 or len(reply) < 4 + int.from_bytes(reply[:3], "little"):
            reply = self._more(reply, until)
        if len(reply) != 4 + int.from_bytes(reply[:3], "little"):
            raise StoreUnavailable("the server sent an unexpected message")
        return reply

    def _more(self, reply: bytes, until: float) -> bytes:
        left = until - self._now()
        if left <= 0 or (self.is_plain and not self._readable.poll(left * 1000)):
            raise TimeoutError
        if not (more := self.sock.recv(_CHUNK)):
            raise StoreUnavailable("the server closed the connection")
        return reply + more

    def prepare(self, text: str, until: float) -> bytes:
        """How a command begins that executes this statement; empty: the server refuses it."""
        try:
            self._set_timeout(until)
            self.sock.sendall(preparation(text))
            reply = self._more(b"", until)
            while (code := prepared(reply)) is None:
                reply = self._more(reply, until)
        except OSError as error:
            self.close()
            raise error if isinstance(error, StoreError) else broken(error) from None
        except BaseException:
            self.close()
            raise
        return code

    def begin(self, request: Request) -> None:
        """Ask without blocking: see `Asked` of common/aio_connections.py."""
        if self._patience:
            self._patience = 0.0
            self.sock.setblocking(False)
        self.sent_at, self._answer = self._now(), Reply()
        self._unsent = request.packed(self.offset)
        self._flush()

    @property
    def is_flushed(self) -> bool:
        return not self._unsent

    def received(self) -> Sets | None:
        self._flush()
        answer = self._answer
        try:
            while True:
                received = self.sock.recv(_CHUNK)
                if answer.feed(received):
                    break
                if len(received) < _CHUNK and not isinstance(self.sock, ssl.SSLSocket):
                    return None
        except _NOT_NOW:
            return None
        self._is_refused = answer.refusal is not None and answer.refusal.code not in EXISTS
        return answer.result()

    def _flush(self) -> None:
        if self._unsent:
            with suppress(*_NOT_NOW):
                self._unsent = self._unsent[self.sock.send(self._unsent) :]

    def _rest(self, answer: Reply, until: float) -> None:
        end = max(until, self._now() + self.round_trip.least)  # a server that drips counts as silent
        while True:
            if self._now() >= end:
                raise TimeoutError
            self._set_timeout(end)
            if answer.feed(self.sock.recv(_CHUNK)):
                return

    def note(self, found: Sets) -> None:
        """A routine's reply ends with a row that begins with the server's time. A ticket that TAKE gave is one, too."""
        there = found.made / MICROSECONDS if found.made else None
        if found and found[-1] and found[-1][0]:
            first = (found[-1][0][0] or b"")[:17]
            if first[:16].isdigit() and len(first) > 15 and first[16:] in (b"", b" "):
                there = int(first) / MICROSECONDS
        self.note_reply(there)

    def broken(self, error: Exception) -> StoreUnavailable:
        return broken(error)

    def fileno(self) -> int:
        return self.sock.fileno()

    def is_open(self) -> bool:
        return self.sock.fileno() >= 0

    def is_reusable(self) -> bool:
        return self.sock.fileno() >= 0 and not self._is_refused

    def is_stale(self) -> bool:
        return bool(self._readable.poll(0.0))

    def end(self) -> None:
        """So that the server need not note that somebody just went away."""
        with suppress(OSError, ValueError):
            self.sock.settimeout(0)
            self.sock.send(QUIT)
        self.close()

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

    def _begin(self, until: float) -> None:
        self.ask(_BEGIN, until)
        said = dict(_pairs(self.ask(_ASK, until)))
        refusal = _unfit(said)
        if refusal is None and said.get("wsrep_on") == "ON" and said.get("wsrep_provider") not in (None, "", "none"):
            refusal = _too_many(dict(_pairs(self.ask(_SIZE, until))).get("wsrep_cluster_size", ""))
        if refusal is not None:
            self.close()
            raise refusal
        self.ask(_TIME, until)
        if self.offset == -inf:
            self.close()
            raise strange()


class Dialler:
    """How a store connects."""

    def __init__(self, address: Address, now: Callable[[], float], round_trip: RoundTrip) -> None:
        self._address = address
        self.shown = address.shown
        self.now = now
        self.round_trip = round_trip

    def connect(self, until: float, begun: Begun = not_watched) -> MysqlConnection:
        return MysqlConnection(self._address, self.now, self.round_trip, until, begun)

    def ready(self, until: float, begun: Begun = not_watched) -> MysqlConnection:
        """Connect, and prepare the statements of the free path, if the tables are there."""
        connection = self.connect(until, begun)
        try:
            if connection.ask(_IS_DYNAMIC, until)[0][0][0] == b"1":
                connection.take_code = connection.prepare(TAKE, until)
                connection.leave_code = connection.prepare(LEAVE, until) if connection.take_code else b""
        except StoreUnavailable as error:
            raise Unsent(error.what, step=error.step) from None
        return connection


class Silent(StoreUnavailable, TimeoutError):
    """Nothing came in time."""


def broken(error: Exception) -> StoreUnavailable:
    if isinstance(error, TimeoutError):
        return Silent("the server did not answer in time")
    why = error.strerror if isinstance(error, OSError) else None
    return StoreUnavailable(f"the connection broke: {printable(why or type(error).__name__)}")


def _connected(address: Address, patience: float, begun: Begun) -> Any:
    connection = address.connection(patience)
    begun(lambda: shut_down(connection._sock))  # noqa: SLF001  (see `MysqlConnection`)
    failure: StoreError
    try:
        connection.connect()
        return connection
    except pymysql.MySQLError as error:
        failure = _failure(address.place, error)
    except Exception as error:  # noqa: BLE001  (a plugin of the login that a user gave)
        what = f"no connection to {address.place}: {type(error).__name__} during the login"
        failure = Unsent(what, step="check user and password")
    raise failure  # here, where PyMySQL's error does not hang from it: its frames hold the password


def _failure(place: str, error: pymysql.MySQLError) -> StoreError:
    original = getattr(error, "original_exception", None)
    if isinstance(original, ssl.SSLError):
        return tls.failure(place, original)
    code, text = error.args if len(error.args) == 2 else (0, str(error))
    if isinstance(original, OSError) or code in (0, 2003, 2006, 2013):
        why = original.strerror or "no answer in time" if isinstance(original, OSError) else "the connection broke"
        step = "check the host name" if isinstance(original, socket.gaierror) else "check that the server runs there"
        return Unsent(f"no connection to {place}: {printable(str(why))}", step=step)
    return unsent(Refusal(int(code), str(text)), place)


def _pairs(found: Sets) -> list[tuple[str, str]]:
    return [(_text(row, 0).lower(), _text(row, 1)) for row in found[0]]


def _text(row: Row, at: int) -> str:
    return (row[at] or b"").decode(errors="replace")


def make_of(version: str) -> tuple[str, tuple[int, ...]]:
    """
    >>> make_of("10.11.6-MariaDB-0+deb12u1"), make_of("5.5.5-10.6.1-MariaDB"), make_of("8.0.36")
    (('MariaDB', (10, 11, 6)), ('MariaDB', (10, 6, 1)), ('MySQL', (8, 0, 36)))
    """
    make = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    numbers = version.removeprefix("5.5.5-").partition("-")[0].split(".")
    return make, tuple(int(number) for number in numbers if number.isdigit())


def _unfit(said: dict[str, str]) -> StoreError | None:
    version = said.get("version", "")
    make, numbers = make_of(version)
    if numbers < _NEWER[make]:
        least = ".".join(map(str, _NEWER[make]))
        return StoreError(f"{make} {printable(version)} is too old", step=f"{make} {least} or later")
    if said.get("group_replication_single_primary_mode") == "OFF":
        return _several("this group lets every member write")
    return None


def _too_many(size: str) -> StoreError | None:
    return _several(f"this is a Galera cluster of {size}") if size.isdigit() and int(size) > 1 else None


def _several(what: str) -> StoreError:
    return StoreError(
        f"{what}: two of its servers can grant the same lock, because they detect conflicts only at commit",
        step="use a setup with one writable server, or another store",
    )
