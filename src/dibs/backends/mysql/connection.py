"""One connection. PyMySQL opens it (TCP, TLS, a Unix socket, the login, the database); then dibs takes over its socket.

The socket never blocks. A request is sent by `begin` and its reply is read by `received`; `exchange` waits in between.
`trip` does all of it at once, for the free path. After a refusal the connection is not used any more: the server then
rolls back what the statement had begun.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

import pymysql

from dibs.backends.common import tls
from dibs.backends.common.connections import STEP, Begun, not_watched, shut_down
from dibs.backends.common.round_trip import LEAST, RoundTrip
from dibs.backends.common.session_claims import SessionConnection
from dibs.backends.common.wakeup import Readiness
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.calls import LEAVE, MICROSECONDS, TAKE, Request, query
from dibs.backends.mysql.errors import EXISTS, strange, unsent
from dibs.backends.mysql.wire import QUIT, Refusal, Reply, Sets, preparation, prepared
from dibs.core.queue import Unsent
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

LOCKED = 1
"""Seconds that a statement waits for a lock in the server; a caller that has more time asks again."""
_IDLE = 600
"""Seconds after which the server ends the session of a silent client: its machine may be gone."""
_CHUNK = 65_536
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_NEWER = {"MariaDB": (10, 6), "MySQL": (8, 0)}
_BEGIN = query(
    f"SET SESSION innodb_lock_wait_timeout = {LOCKED}, lock_wait_timeout = {LOCKED}, wait_timeout = {_IDLE},"
    " sql_mode = 'STRICT_ALL_TABLES', autocommit = 1, completion_type = 'NO_CHAIN',"
    " time_zone = '+00:00', group_concat_max_len = 16777216"
    " /*M!100600 , tx_isolation = 'READ-COMMITTED', max_statement_time = 0 */"
    " /*!80000 , transaction_isolation = 'READ-COMMITTED', max_execution_time = 0 */"
)
"""READ COMMITTED: a statement that only reads a row does not lock it, and sees what was committed before it began."""
_ASK = query(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
    " ('version', 'wsrep_on', 'wsrep_provider', 'group_replication_single_primary_mode')"
)
_SIZE = query("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")
_IS_DYNAMIC = query("SELECT SYSDATE(6) > NOW(6)")
"""False with sysdate_is_now: the server then reads SYSDATE before it waits for a row lock."""
_TIME = query("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")


class MysqlConnection(SessionConnection):
    failures = (OSError,)
    number = 0
    """The server's number of this session; known in session mode only."""

    def __init__(
        self, address: Address, now: Callable[[], float], round_trip: RoundTrip, until: float, begun: Begun
    ) -> None:
        """Blocks; raises Unsent if the server cannot be reached, StoreError if it refuses."""
        super().__init__(now)
        # Kept until this connection ends: an interrupt in its destructor, which is Python code, would be swallowed.
        self._made = made = _connected(address, max(min(until - now(), STEP), LEAST), begun)
        made._rfile.close()  # noqa: SLF001  (PyMySQL has no public way to hand its socket over)
        self.sock: socket.socket
        # One statement: an interrupt leaves the socket with exactly one owner.
        self.sock, made._sock = made._sock, None  # noqa: SLF001
        begun(lambda: shut_down(self.sock))
        self.sock.setblocking(False)
        self._fd = self.sock.fileno()
        self.readiness = Readiness(self._fd)
        self.take_code = self.leave_code = b""
        """The first bytes of the commands that execute TAKE and LEAVE of calls.py; empty: there is no free path."""
        self._reply: Reply | None = None
        """The reply that the server owes."""
        self._unsent = b""
        """The rest of the request, if the socket's buffer was full."""
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
        """The number of the session, as the server or proxy gave it at the login."""
        return int(self._made.server_thread_id[0])

    def exchange(self, request: Request, until: float) -> Sets:
        """Ask, and wait for the reply. Anything that ends this early closes the connection, and so does a refusal."""
        with self._guarded():
            self.begin(request)
            found, trip = None, self.round_trip
            end = max(until, self._now() + trip.least)  # a server that drips counts as silent
            while found is None:
                left = max(min(end - self._now(), trip.attempt), 0.0)
                if not self.readiness.wait(left, writable=not self.is_flushed):
                    raise TimeoutError
                found = self.received()
        self.note(found)
        return found

    def trip(self, packed: bytes, until: float) -> bytes:
        """Send a request whose reply is one packet, wait once, read it. Anything that ends this early closes the
        connection."""
        try:
            self.sent_at = now = self._now()
            trip, sock = self.round_trip, self.sock
            patience = until - now
            patience = trip.attempt if patience >= trip.attempt else max(patience, trip.least)
            if sock.send(packed) != len(packed):
                raise StoreUnavailable("the connection took only a part of the request")
            if not self.readiness.readable.poll(patience * 1000):
                raise TimeoutError
            try:
                reply = sock.recv(_CHUNK)
            except _NOT_NOW:  # TLS: not a whole record
                reply = self._more(b"", now + patience)
            if len(reply) < 4 or reply[0] + 4 != len(reply) or reply[1:3] != b"\x00\x00":
                reply = self._whole(reply, until)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise broken(error) from None
            raise
        return reply

    def prepare(self, text: str, until: float) -> bytes:
        """The first bytes of the commands that execute this statement; empty: the server refuses it."""
        with self._guarded():
            request, reply = preparation(text), b""
            if self.sock.send(request) != len(request):
                raise StoreUnavailable("the connection took only a part of the request")
            while (code := prepared(reply)) is None:
                reply = self._more(reply, until)
        return code

    def _whole(self, reply: bytes, until: float) -> bytes:
        """Read the rest of a packet that came in several pieces, or is long."""
        until = max(until, self._now() + self.round_trip.least)  # a server that drips counts as silent
        while len(reply) < 4 or len(reply) < 4 + int.from_bytes(reply[:3], "little"):
            reply = self._more(reply, until)
        if len(reply) != 4 + int.from_bytes(reply[:3], "little"):
            raise StoreUnavailable("the server sent an unexpected message")
        return reply

    def _more(self, reply: bytes, until: float) -> bytes:
        """Wait for the next bytes, and add them."""
        while True:
            left = until - self._now()
            if left <= 0:
                raise TimeoutError
            try:
                received = self.sock.recv(_CHUNK)
            except _NOT_NOW:
                self.readiness.wait(left)
                continue
            if not received:
                raise StoreUnavailable("the server closed the connection")
            return reply + received

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Close the connection if an exchange ends early or is refused."""
        try:
            yield
        except BaseException as error:
            if not (isinstance(error, Refusal) and error.code in EXISTS):
                self.close()
            if isinstance(error, OSError):
                raise broken(error) from None
            raise

    def begin(self, request: Request) -> None:
        """Send a request without blocking. A caller that does not read the reply closes the connection."""
        self.sent_at, self._reply = self._now(), Reply()
        self._unsent = request(self.offset)
        self._flush()

    def received(self) -> Sets | None:
        """Read what has come, without blocking. None: the reply is not complete. Raises Refusal."""
        if not self.is_flushed:
            self._flush()
        reply = self._reply
        if reply is None:
            raise StoreUnavailable("the server sent an unexpected message")
        try:
            while not reply.feed(received := self.sock.recv(_CHUNK)):
                if len(received) < _CHUNK and not isinstance(self.sock, ssl.SSLSocket):
                    return None
        except _NOT_NOW:
            return None
        except OSError as error:
            raise broken(error) from None
        self._reply = None
        self._is_refused = reply.refusal is not None and reply.refusal.code not in EXISTS
        return reply.result()

    @property
    def owes_reply(self) -> bool:
        """A reply, or the end of one, has not been read."""
        return self._reply is not None

    def so_far(self) -> Sets:
        """The result sets that have come, of a reply that is not complete."""
        return Sets() if self._reply is None else self._reply.sets

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except _NOT_NOW:
            pass
        except OSError as error:
            raise broken(error) from None
        self.is_flushed = not self._unsent

    def note(self, found: Sets) -> None:
        """Measure a reply. A routine's last row begins with the server's time. The ticket of TAKE is a time, too."""
        there = found.made / MICROSECONDS if found.made else None
        if found and found[-1] and found[-1][0]:
            first = (found[-1][0][0] or b"")[:17]
            if first[:16].isdigit() and len(first) > 15 and first[16:] in (b"", b" "):
                there = int(first) / MICROSECONDS
        self.note_reply(there)

    def broken(self, error: Exception) -> StoreUnavailable:
        return broken(error)

    def fileno(self) -> int:
        return self._fd

    def is_open(self) -> bool:
        return self.sock.fileno() >= 0

    def is_reusable(self) -> bool:
        return self._reply is None and not self._is_refused and self.is_open()

    def is_stale(self) -> bool:
        return self.readiness.wait(0.0)

    def end(self) -> None:
        """Say goodbye, so that the server logs no lost connection. In the middle of a statement it would not listen."""
        if self._reply is None:
            with suppress(OSError, ValueError):
                self.sock.send(QUIT)
        self.close()

    def close(self) -> None:
        self.seat = None
        self.sock.close()

    def __del__(self) -> None:
        """An interrupt may strike before any caller has the connection."""
        if hasattr(self, "sock"):
            self.sock.close()

    def _begin(self, until: float) -> None:
        self.exchange(_BEGIN, until)
        said = pairs(self.exchange(_ASK, until))
        refusal = _unfit(said)
        if refusal is None and said.get("wsrep_on") == "ON" and said.get("wsrep_provider") not in (None, "", "none"):
            refusal = _too_many(pairs(self.exchange(_SIZE, until)).get("wsrep_cluster_size", ""))
        if refusal is not None:
            self.close()
            raise refusal
        self.exchange(_TIME, until)
        if self.offset == -inf:
            self.close()
            raise strange()


class Dialler:
    """How a store connects."""

    def __init__(self, address: Address, now: Callable[[], float], round_trip: RoundTrip) -> None:
        self._address = address
        self.now = now
        self.round_trip = round_trip

    def connect(self, until: float, begun: Begun = not_watched) -> MysqlConnection:
        return MysqlConnection(self._address, self.now, self.round_trip, until, begun)

    def ready(self, until: float, begun: Begun = not_watched) -> MysqlConnection:
        """Connect, and prepare the statements of the free path if the tables exist."""
        connection = self.connect(until, begun)
        try:
            if connection.exchange(_IS_DYNAMIC, until)[0][0][0] == b"1":
                connection.take_code = connection.prepare(TAKE, until)
                connection.leave_code = connection.prepare(LEAVE, until) if connection.take_code else b""
        except StoreUnavailable as error:
            raise Unsent(error.what, step=error.step) from None
        return connection


class Silent(StoreUnavailable, TimeoutError):
    """No reply came in time."""


def broken(error: Exception) -> StoreUnavailable:
    if isinstance(error, StoreUnavailable):
        return error
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
    except Exception as error:  # noqa: BLE001  (a login plugin of the user)
        what = f"no connection to {address.place}: {type(error).__name__} during the login"
        failure = Unsent(what, step="check user and password")
    raise failure  # outside of the handler: the frames of PyMySQL's error hold the password


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


def pairs(found: Sets) -> dict[str, str]:
    """Rows of a name, in lower case, and a value."""
    return {
        (row[0] or b"").decode(errors="replace").lower(): (row[1] or b"").decode(errors="replace") for row in found[0]
    }


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
