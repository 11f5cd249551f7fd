"""One connection to one server, through libpq. psycopg's `pq` is its C interface. The rest of psycopg is not used: an
execution by it takes twice the time, and its generators know no deadline for each call.

`is_direct`: the server itself answers, and not a pooler. Only then are statements prepared, and only then is anything
set for the whole session.
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
from dibs.backends.postgresql.errors import Refusal, not_connected, strange
from dibs.backends.postgresql.routines import Statement
from dibs.core.queue import Unsent
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import printable

MICROSECONDS = 1_000_000
_HELLO = b"SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint, pg_backend_pid()"
_PLANS = b"SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off"
"""See sql/guard.sql."""
_ALIVE = b"; SET client_connection_check_interval = 500"
"""A server that lets a verb wait for a lock then notices that nobody wants the answer any more."""
_HAS_ALIVE = 140_000
_STATED = (b"BEGIN ISOLATION LEVEL READ COMMITTED", b"COMMIT")
_OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)
_FATAL = (b"FATAL", b"PANIC")
_NAP = 0.25
"""Seconds after which a dial looks whether it is still wanted."""


class RoutineCall(NamedTuple):
    """A statement with its values; `at` is the place of the instant `by`, which becomes one of the server's clock."""

    statement: Statement
    values: Sequence[bytes]
    by: float = 0.0
    at: int = -1

    def packed(self, offset: float) -> Sequence[bytes]:
        if self.at < 0:
            return self.values
        values = list(self.values)
        values[self.at] = b"%d" % ((self.by + offset) * MICROSECONDS)
        return values


class PostgresqlConnection(SessionConnection):
    failures = (psycopg.Error,)

    def __init__(self, dialler: Dialler, attempt: Attempt, until: float, begun: Begun) -> None:
        """Blocks; raises Unsent if the server cannot be reached, StoreError if it refuses."""
        super().__init__(dialler.now)
        self.conn: PGconn | None = None
        self.prepared: set[bytes] = set()
        """The names of the statements that the server has prepared for it."""
        self._results: list[PGresult] = []
        """The results of the reply so far."""
        self._next: RoutineCall | None = None
        """The request that waits for its statement to be prepared."""
        self.is_flushed = True
        self._is_piped = False
        self._fd = -1
        self.is_stated = dialler.is_stated
        """The transaction of each verb is begun and ended by itself: by default it would not be READ COMMITTED."""
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
        except (ValueError, TypeError):
            self.close()
            raise strange() from None
        except Refusal as refusal:
            self.close()
            raise Unsent(f"{attempt.shown} refuses: {refusal.text}") from None
        except StoreUnavailable as error:
            self.close()
            raise Unsent(error.what, step=error.step) from None
        except BaseException:
            self.close()
            raise

    def exchange(self, call: RoutineCall, until: float) -> PGresult:
        """Ask, and wait for the answer. A refusal leaves the connection usable."""
        with self.guarded():
            self.begin(call)
            now, trip = self.sent_at, self.round_trip
            result = self._settled(min(max(until, now + trip.least), now + trip.attempt))
        self.note(result)
        return result

    def ask_now(self, statement: Statement, values: Sequence[bytes], until: float) -> list[bytes]:
        """Ask a statement that is prepared here: send, poll, read. Gives the words of the one value that a routine of
        ours answers with. A refusal leaves the connection usable, and anything else that ends this closes it."""
        trip = self.round_trip
        conn: Any = self.conn  # a closed connection has nothing prepared
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
                result = self._settled(limit)
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
        # As `note_reply`.
        self.used_at = now = self._now()
        trip.add(now - sent_at)
        there = int(words[0]) / MICROSECONDS
        offset = max(there - now, self.offset)
        self.offset = min(there - sent_at, offset)
        return words

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """An exchange that ends early closes the connection; a refusal leaves it usable."""
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
        """Ask; the reply is read by `received`. A caller that does not read it closes the connection. Never blocks."""
        conn = self._open()
        self.sent_at = self._now()
        self._results.clear()
        self._next = None
        if self.is_stated:
            self._send_stated(conn, call)
        else:
            self._send(conn, call)
        self.is_flushed = not conn.flush()

    def simple(self, sql: bytes, until: float) -> PGresult:
        """Statements without values; the result of the last one."""
        with self.guarded():
            conn = self._open()
            self.sent_at = self._now()
            self._results.clear()
            self._next = None
            conn.send_query(sql)
            self.is_flushed = not conn.flush()
            return self._settled(until)

    def received(self) -> PGresult | None:
        """The reply, if all of it has come; None: more is to come. Never blocks."""
        conn, results = self.conn, self._results
        if conn is None:
            raise StoreUnavailable("the connection was closed")
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
        """Each reply of ours begins with the server's time."""
        value = result.get_value(0, 0) if result.ntuples else None
        stamp = b"" if value is None else value.partition(b" ")[0]
        # A reply of another shape is not our routine's: the caller reports it.
        self.note_reply(int(stamp) / MICROSECONDS if stamp.isdigit() else None)

    def age_of(self, result: PGresult) -> float:
        """How long ago the server said this, as far as its clock and ours can tell."""
        stamp = (result.get_value(0, 0) or b"").partition(b" ")[0]
        return self._now() - (int(stamp) / MICROSECONDS - self.offset) if stamp.isdigit() else inf

    def is_stale(self) -> bool:
        return self.readiness.wait(0.0)

    def is_open(self) -> bool:
        return self.conn is not None

    def is_reusable(self) -> bool:
        """It is in no transaction."""
        conn = self.conn
        return conn is not None and conn.transaction_status == pq.TransactionStatus.IDLE

    def fileno(self) -> int:
        """Also of one that libpq has closed already, which may still be watched."""
        return self._fd

    def broken(self, error: Exception) -> StoreUnavailable:
        return broken(error)

    def close(self) -> None:
        self.seat = None
        self.prepared.clear()
        conn, self.conn = self.conn, None
        if conn is not None:
            conn.finish()

    def abandon(self) -> None:
        """The server must hear no goodbye, which would end the parent's session."""
        conn, self.conn = self.conn, None
        if conn is not None:
            with suppress(OSError, psycopg.Error):
                os.close(conn.socket)

    def _abort(self) -> None:
        """By another thread. libpq may exchange its socket at any moment, so that must be left alone."""
        self._is_aborted = True

    def _open(self) -> PGconn:
        if self.conn is None:
            raise StoreUnavailable("the connection was closed")
        return self.conn

    def _connect(self, address: Address, attempt: Attempt, until: float) -> PGconn:
        self.conn = conn = pq.PGconn.connect_start(attempt.conninfo)
        while True:
            if conn.status == pq.ConnStatus.BAD:
                raise not_connected(attempt.shown, address.cleaned(conn.get_error_message()))
            state = conn.connect_poll()
            if state == pq.PollingStatus.OK:
                return conn
            if state == pq.PollingStatus.FAILED:
                raise not_connected(attempt.shown, address.cleaned(conn.get_error_message()))
            there = Readiness(conn.socket)  # each of a host's addresses has another socket
            while not there.wait(min(until - self._now(), _NAP), writable=state != pq.PollingStatus.READING):
                if self._now() >= until or self._is_aborted:
                    raise StoreUnavailable(f"{attempt.shown} does not answer", step="check that the server runs there")

    def _set_up(self, version: int, until: float) -> None:
        try:
            self.simple(_PLANS + (_ALIVE if version >= _HAS_ALIVE else b""), until)
        except Refusal:  # a platform that cannot look after its clients
            self.simple(_PLANS, until)

    def _send(self, conn: PGconn, call: RoutineCall) -> None:
        """A statement that is not prepared yet is prepared first, and `received` goes on from there."""
        if self.is_direct and call.statement.name not in self.prepared:
            conn.send_prepare(call.statement.name, call.statement.sql, call.statement.types)
            self._next = call
        else:
            self._put(conn, call)

    def _put(self, conn: PGconn, call: RoutineCall) -> None:
        statement, values = call.statement, call.packed(self.offset)
        if self.is_direct:
            conn.send_query_prepared(statement.name, values, statement.formats)
        else:
            conn.send_query_params(statement.sql, values, statement.types, statement.formats)

    def _send_stated(self, conn: PGconn, call: RoutineCall) -> None:
        """In one round trip: the verb is committed whether or not we go on to live."""
        conn.enter_pipeline_mode()
        self._is_piped = True
        statement, (begin, commit) = call.statement, _STATED
        conn.send_query_params(begin, None)
        conn.send_query_params(statement.sql, call.packed(self.offset), statement.types, statement.formats)
        conn.send_query_params(commit, None)
        conn.pipeline_sync()

    def _settled(self, until: float) -> PGresult:
        result = self._awaited(until)
        if result is None:
            raise StoreUnavailable("the server did not answer in time")
        return result

    def _awaited(self, until: float) -> PGresult | None:
        while True:
            left = until - self._now()
            ready = self.readiness.wait(left, writable=not self.is_flushed)
            if not ready and left <= 0:
                return None
            result = self.received()
            if result is not None:
                return result

    def _checked(self) -> PGresult:
        """The answer; of several statements the one that failed, or else the one that answers with rows."""
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
    """How a store connects: to the first of several hosts that will do. It also remembers what answers there."""

    def __init__(self, address: Address, now: Callable[[], float], round_trip: RoundTrip) -> None:
        self.address = address
        self.now = now
        self.round_trip = round_trip
        self._first = 0
        """Which of the hosts answered last."""
        self.is_direct = True
        """The last connection reached the server itself."""
        self.is_pooled = False
        """A prepared statement was missing later: there is a pooler in between that does not show."""
        self.is_stated = False
        """By default a transaction there is not READ COMMITTED."""

    def connect(self, until: float, begun: Begun = not_watched) -> PostgresqlConnection:
        attempts = self.address.attempts()
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
        if self.address.was_let_in and not isinstance(failure, StoreUnavailable):  # it may be let in again
            failure = Unsent(failure.what, step=failure.step)
        raise failure

    def elsewhere(self) -> None:
        """This host cannot be written to: the next connection begins with another one."""
        self._first += 1


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


def broken(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the connection broke: {printable(' '.join(str(error).split())[:200])}")
