"""One connection to one server, through psycopg's `pq`, the interface to libpq. The rest of psycopg is not used: its
`execute` takes twice the time, and its generators take no deadline for each request.

`is_direct`: the server itself replies, not a pooler. Only then are statements prepared and session settings changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from dibs.backends.common.connections import Begun, not_watched
from dibs.backends.common.round_trip import LEAST, RoundTrip
from dibs.backends.common.session_claims import SessionConnection
from dibs.backends.common.wakeup import Readiness
from dibs.backends.postgresql.address import Address, Attempt
from dibs.backends.postgresql.errors import Refusal, broken, not_connected, strange
from dibs.backends.postgresql.routines import Statement
from dibs.core.queue import Unsent
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

MICROSECONDS = 1_000_000
_HELLO = b"SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint, pg_backend_pid()"
_PLANS = b"SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off"
"""See sql/guard.sql."""
_CHECK_CLIENT = b"; SET client_connection_check_interval = 500"
"""The server then ends a routine that waits for a lock once its client is gone."""
_HAS_CHECK_CLIENT = 140_000
_OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)
_FATAL = (b"FATAL", b"PANIC")
_KNOWN_QUEUES = 10_000
_NAP = 0.25
"""Seconds between two checks whether a dial was aborted."""
Value = str | bytes | int
"""A value of a statement; booleans are int, too."""


class RoutineCall(NamedTuple):
    """A statement with its values. If `at` is not negative, the value there is the instant `by`, sent as a time of the
    server's clock."""

    statement: Statement
    values: Sequence[bytes]
    by: float = 0.0
    at: int = -1

    @classmethod
    def of(cls, statement: Statement, *values: Value, by: float = 0.0, at: int = -1) -> RoutineCall:
        return cls(statement, [_encoded(value) for value in values], by, at)

    def packed(self, offset: float) -> Sequence[bytes]:
        if self.at < 0:
            return self.values
        values = list(self.values)
        values[self.at] = b"%d" % ((self.by + offset) * MICROSECONDS)
        return values


def _encoded(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return (b"t" if value else b"f") if isinstance(value, bool) else b"%d" % value


class PostgresqlConnection(SessionConnection):
    failures = (psycopg.Error,)
    broken = staticmethod(broken)

    def __init__(self, dialler: Dialler, attempt: Attempt, until: float, begun: Begun) -> None:
        """Blocks. Raises Unsent if the server cannot be reached, StoreError if it refuses the login."""
        super().__init__(dialler.now)
        self.conn: PGconn | None = None
        self.prepared: set[bytes] = set()
        """The names of the statements that are prepared on this connection."""
        self._results: list[PGresult] = []
        """The results of the reply so far."""
        self._next: RoutineCall | None = None
        """The request to send once its statement is prepared."""
        self.is_flushed = True
        self._is_piped = False
        self._fd = -1
        self._needs_begin = dialler.needs_begin
        self._is_aborted = False
        begun(self._abort)
        try:
            self.conn = conn = self._connect(dialler.address, attempt, until)
            conn.nonblocking = 1
            self._fd = conn.socket
            self.readiness = Readiness(self._fd)
            hello = self.simple(_HELLO, until)
            self.note(hello)
            self.opened(dialler.round_trip)
            self.is_direct = int(hello.get_value(0, 1) or 0) == conn.backend_pid
            if self.is_direct:
                self._set_up(conn.server_version, until)
        except BaseException as error:
            self.close()
            if isinstance(error, Refusal):
                raise Unsent(f"{attempt.shown} refuses: {error.text}") from None
            if isinstance(error, StoreUnavailable):
                raise Unsent(error.what, step=error.step) from None
            if isinstance(error, (ValueError, TypeError)):
                raise strange() from None
            raise

    def exchange(self, call: RoutineCall, until: float) -> PGresult:
        """Send a request and wait for its reply. A refusal leaves the connection usable."""
        with self.guarded():
            self.begin(call)
            now, trip = self.sent_at, self.round_trip
            result = self._reply(min(max(until, now + trip.least), now + trip.attempt))
        self.note(result)
        return result

    def ask_now(self, statement: Statement, values: Sequence[bytes], until: float) -> list[bytes]:
        """Run a statement that is prepared on this connection: send, poll, read. Gives the words of the one value that
        our routines return. A refusal leaves the connection usable; any other exception closes it."""
        trip = self.round_trip
        conn: Any = self.conn  # not None: a closed connection has no prepared statements
        try:
            self.sent_at = sent_at = self._now()
            self._results.clear()
            self._next = None
            conn.send_query_prepared(statement.name, values, statement.formats)
            self.is_flushed = not conn.flush()
            limit = min(max(until, sent_at + trip.least), sent_at + trip.attempt)
            result = None
            if self.is_flushed and self.readiness.readable.poll((limit - sent_at) * 1000):
                conn.consume_input()
                if not conn.is_busy() and (result := conn.get_result()) is not None:
                    self._results.append(result)
                    if result.status != pq.ExecStatus.TUPLES_OK or conn.is_busy():
                        result = self.received()
                    elif conn.get_result() is not None:
                        raise strange()
            if result is None:
                result = self._reply(limit)
            value = result.get_value(0, 0) if result.ntuples == 1 else None
            words = [] if value is None else value.split(b" ")
            if len(words) < 2 or not words[0].isdigit() or conn.transaction_status != pq.TransactionStatus.IDLE:
                raise strange()
        except psycopg.Error as error:
            self.close()
            raise broken(error) from None
        except Refusal:
            raise
        except BaseException:
            self.close()
            raise
        # `note_reply`, without the call.
        self.used_at = now = self._now()
        trip.add(now - sent_at)
        there = int(words[0]) / MICROSECONDS
        offset = max(there - now, self.offset)
        self.offset = min(there - sent_at, offset)
        return words

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Close the connection if the exchange ends early. A refusal leaves it usable."""
        try:
            yield
        except psycopg.Error as error:
            self.close()
            raise broken(error) from None
        except Refusal:
            raise
        except BaseException:
            self.close()
            raise

    def begin(self, call: RoutineCall) -> None:
        """Send a request without blocking; `received` reads the reply. A caller that does not read it must close the
        connection."""
        conn = self._start()
        if self._needs_begin:
            self._send_in_transaction(conn, call)
        else:
            self._send(conn, call)
        self.is_flushed = not conn.flush()

    def simple(self, sql: bytes, until: float) -> PGresult:
        """Run statements without values, and give the result of the last one."""
        with self.guarded():
            conn = self._start()
            conn.send_query(sql)
            self.is_flushed = not conn.flush()
            return self._reply(until)

    def received(self) -> PGresult | None:
        """Read what has arrived, without blocking. Gives the reply once it is complete, else None."""
        conn, results = self._open(), self._results
        if not self.is_flushed:
            self.is_flushed = not conn.flush()
        conn.consume_input()
        while not conn.is_busy():
            result = conn.get_result()
            if result is None:
                if not self._is_piped:
                    break
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                conn.exit_pipeline_mode()
                self._is_piped = False
                break
            else:
                results.append(result)
        else:
            return None
        call = self._next
        if call is None and len(results) == 1 and results[0].status == pq.ExecStatus.TUPLES_OK:
            return results[0]
        answer = self._checked()
        if call is None:
            return answer
        self._next = None
        self.prepared.add(call.statement.name)
        results.clear()
        self._send(conn, call)
        self.is_flushed = not conn.flush()
        return None

    def note(self, result: PGresult) -> None:
        """Measure the reply that just arrived."""
        self.note_reply(_server_time(result))

    def age_of(self, result: PGresult) -> float:
        """Seconds since the server sent this reply, as far as both clocks can tell."""
        sent_at = _server_time(result)
        return inf if sent_at is None else self._now() - (sent_at - self.offset)

    def is_stale(self) -> bool:
        return self.readiness.wait(0.0)

    def is_open(self) -> bool:
        return self.conn is not None

    def is_reusable(self) -> bool:
        """Whether it is outside of a transaction."""
        conn = self.conn
        return conn is not None and conn.transaction_status == pq.TransactionStatus.IDLE

    def fileno(self) -> int:
        """The socket; also after libpq has closed it, because it may still be watched."""
        return self._fd

    def close(self) -> None:
        self.seat = None
        self.prepared.clear()
        conn, self.conn = self.conn, None
        if conn is not None:
            conn.finish()

    def abandon(self) -> None:
        """Close the socket only: libpq's farewell message would end the parent's session."""
        conn, self.conn = self.conn, None
        if conn is not None:
            with suppress(OSError, psycopg.Error):
                os.close(conn.socket)

    def _abort(self) -> None:
        """Called by another thread, which must not touch the socket: libpq may replace it at any moment."""
        self._is_aborted = True

    def _start(self) -> PGconn:
        conn = self._open()
        self.sent_at = self._now()
        self._results.clear()
        self._next = None
        return conn

    def _open(self) -> PGconn:
        if self.conn is None:
            raise StoreUnavailable("the connection was closed")
        return self.conn

    def _connect(self, address: Address, attempt: Attempt, until: float) -> PGconn:
        self.conn = conn = pq.PGconn.connect_start(attempt.conninfo)
        while conn.status != pq.ConnStatus.BAD:
            state = conn.connect_poll()
            if state == pq.PollingStatus.OK:
                return conn
            if state == pq.PollingStatus.FAILED:
                break
            readiness = Readiness(conn.socket)  # libpq uses another socket for each address of a host
            while not readiness.wait(min(until - self._now(), _NAP), writable=state != pq.PollingStatus.READING):
                if self._now() >= until or self._is_aborted:
                    raise StoreUnavailable(f"{attempt.shown} does not answer", step="check that the server runs there")
        raise not_connected(attempt.shown, address.cleaned(conn.get_error_message()))

    def _set_up(self, version: int, until: float) -> None:
        try:
            self.simple(_PLANS + (_CHECK_CLIENT if version >= _HAS_CHECK_CLIENT else b""), until)
        except Refusal:  # not every platform can check for a lost client
            self.simple(_PLANS, until)

    def _send(self, conn: PGconn, call: RoutineCall) -> None:
        """Prepare the statement first if that was not done; `received` then sends the request."""
        statement = call.statement
        if not self.is_direct:
            conn.send_query_params(statement.sql, call.packed(self.offset), statement.types, statement.formats)
        elif statement.name in self.prepared:
            conn.send_query_prepared(statement.name, call.packed(self.offset), statement.formats)
        else:
            conn.send_prepare(statement.name, statement.sql, statement.types)
            self._next = call

    def _send_in_transaction(self, conn: PGconn, call: RoutineCall) -> None:
        """Send BEGIN, the statement and COMMIT in one round trip."""
        conn.enter_pipeline_mode()
        self._is_piped = True
        statement = call.statement
        conn.send_query_params(b"BEGIN ISOLATION LEVEL READ COMMITTED", None)
        conn.send_query_params(statement.sql, call.packed(self.offset), statement.types, statement.formats)
        conn.send_query_params(b"COMMIT", None)
        conn.pipeline_sync()

    def _reply(self, until: float) -> PGresult:
        while True:
            left = until - self._now()
            if not self.readiness.wait(left, writable=not self.is_flushed) and left <= 0:
                raise StoreUnavailable("the server did not answer in time")
            result = self.received()
            if result is not None:
                return result

    def _checked(self) -> PGresult:
        """The result that failed, else the one with rows."""
        answer: PGresult | None = None
        for result in self._results:
            if result.status not in _OK:
                code = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
                text = printable(
                    (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
                )
                if result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) in _FATAL or not code:
                    raise StoreUnavailable(f"the server ended the connection: {text[:200]}")
                raise Refusal(code.decode(errors="replace"), text)
            if answer is None or result.status == pq.ExecStatus.TUPLES_OK:
                answer = result
        if answer is None:
            raise StoreUnavailable("the server closed the connection")
        return answer


class Dialler:
    """Connects to the first of several hosts that accepts, and remembers what was learned about the server."""

    def __init__(self, address: Address, now: Callable[[], float], round_trip: RoundTrip) -> None:
        self.address = address
        self.now = now
        self.round_trip = round_trip
        self._first = 0
        """The index of the host to try first."""
        self.is_direct = True
        """The last connection reached the server itself."""
        self.is_pooled = False
        """A prepared statement was missing later, so there is a pooler that does not show."""
        self.needs_begin = False
        """The default isolation level is not READ COMMITTED, so each request begins its own transaction."""

    def connect(self, until: float, begun: Begun = not_watched) -> PostgresqlConnection:
        attempts = self.address.attempts
        failures: list[StoreError] = []
        for n in range(len(attempts)):
            at = (self._first + n) % len(attempts)
            share = max((until - self.now()) / (len(attempts) - n), LEAST)
            try:
                connection = PostgresqlConnection(self, attempts[at], self.now() + share, begun)
            except StoreError as error:
                failures.append(error)
                continue
            self._first = at
            self.address.was_let_in = True
            self.is_direct = connection.is_direct = connection.is_direct and not self.is_pooled
            return connection
        failure = _summary(failures)
        if self.address.was_let_in and not isinstance(failure, StoreUnavailable):  # a later login may succeed
            failure = Unsent(failure.what, step=failure.step)
        raise failure

    def try_next_host(self) -> None:
        """Try another host first: this one is read-only."""
        self._first += 1


class Floors:
    """The id of the store, and for each name the lowest ticket that may still be in its queue. Routines start there, so
    they skip dead rows that cannot be vacuumed because a transaction stays open elsewhere."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.epoch = b""
        """The id of the store; empty: not known yet."""
        self.highest = 0
        """The highest ticket that this client was given."""

    def of(self, name: str) -> int:
        return self.known.get(name, 0)

    def learn(self, name: str, floor: bytes) -> None:
        if floor.isdigit() and floor != b"0":
            if len(self.known) >= _KNOWN_QUEUES:
                self.known.clear()
            self.known[name] = int(floor)

    def forget(self) -> None:
        self.known.clear()

    def start_afresh(self) -> None:
        self.epoch = b""
        self.forget()


def _summary(failures: Sequence[StoreError]) -> StoreError:
    for failure in failures:
        if not isinstance(failure, StoreUnavailable) or len(failures) == 1:
            return failure
    return Unsent(
        "; ".join(failure.what for failure in failures),
        step="check that the servers run, and that this machine can reach them",
    )


def rows(result: PGresult) -> list[list[bytes | None]]:
    return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]


def _server_time(result: PGresult) -> float | None:
    """The server's time in seconds, which begins each reply of ours. None: this is not a reply of our routines."""
    value = result.get_value(0, 0) if result.ntuples else None
    stamp = b"" if value is None else value.partition(b" ")[0]
    return int(stamp) / MICROSECONDS if stamp.isdigit() else None
