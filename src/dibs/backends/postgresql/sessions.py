"""Connections that locks are held by, in session mode: one for each claim that holds or waits, and a few idle ones.

Each is the server's own (a pooler, or a standby, is refused), is used for one claim at a time, and has a lease of its
own: the server ends one that says nothing for so long (PostgreSQL 14 and later), counted from the end of the last
statement, so that the holder's own deadline, which counts from before it was sent, has passed by then. One of whose
state anything is in doubt is closed: with it goes what it held.
"""

from __future__ import annotations

from psycopg import pq

from dibs.backends.common.connections import SESSION_DIALS, Begun, Pool, expired
from dibs.backends.common.disconnects import Disconnects
from dibs.backends.postgresql.answers import Refusal, final
from dibs.backends.postgresql.connection import Dialler, PostgresqlConnection
from dibs.errors import StoreError

_TRUSTED = 0.1
"""Seconds after which an idle connection is looked at before it is used."""
_LONGEST = 2**31 - 1
_HAS_IDLE_TIMEOUT = _HAS_PIPELINES = 140_000
_HAS_USER_TIMEOUT = 120_000
_PROBES, _LONGEST_PROBE = 3, 32_767
_SETTINGS = (
    "SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0; SET lock_timeout = 0; "
    "SET idle_in_transaction_session_timeout = 0; "
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; "
    "SET tcp_keepalives_idle = {probe}; SET tcp_keepalives_interval = {probe}; SET tcp_keepalives_count = {probes}; "
)
_IDLE = "SET idle_session_timeout = {lease}; "
_UNHEARD = "SET tcp_user_timeout = {lease}; "
_ASKED = "SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint, pg_is_in_recovery()"


class Sessions:
    def __init__(self, dialler: Dialler, hangups: Disconnects[PostgresqlConnection], lease: float, most: int) -> None:
        self._dialler = dialler
        self._hangups = hangups
        self._now = dialler.now
        self._lease = lease
        self._most = most
        self._pool = Pool(
            self._connect, dialler.now, dialler.round_trip, dialler.address.shown, keep=most, dials=SESSION_DIALS
        )
        self._idle = self._pool.idle
        self._closed = False

    def idle(self) -> PostgresqlConnection | None:
        """One that is there, and surely lives longer than a question takes."""
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            age = self._now() - link.used_at
            if age < self._lease / 2 and (age < _TRUSTED or not link.is_stale()):
                return link
            self.drop(link)
        return None

    def dial(self, until: float) -> PostgresqlConnection:
        """Blocks. One that is not there in time is left to the next caller."""
        return self._pool.take(until)

    def _connect(self, until: float, begun: Begun) -> PostgresqlConnection:
        if pq.version() < _HAS_PIPELINES:
            raise StoreError(
                'the libpq here is older than 14, and cannot ask two things in one trip, as mode="session" does',
                step="install psycopg[binary], which brings its own",
            )
        link = self._dialler.connect(until, begun)
        try:
            if not link.is_direct:
                raise StoreError(
                    'a pooler answers, which lends one session to many: what mode="session" locks there others would '
                    "hold, or give back",
                    step='give a URL that reaches the server itself, or use mode="lease"',
                )
            answer = link.simple(self._settings(link).encode(), until)
            if answer.get_value(0, 1) != b"f":
                raise StoreError(
                    "this server is a standby: what is locked there is not locked on the primary",
                    step="name the primary, or several hosts: postgresql://h1,h2/db takes the one to write to",
                )
            link.note(answer)
        except Refusal as refusal:
            link.close()
            raise final(refusal) from None
        except BaseException:
            link.close()
            raise
        self._hangups.attend(link.fileno(), link)  # from now on its end is heard of
        return link

    def give(self, link: PostgresqlConnection) -> None:
        """It holds nothing any more."""
        if self._closed or not link.is_reusable() or len(self._idle) >= self._most:
            self.drop(link)
        else:
            self._idle.append(link)

    def drop(self, link: PostgresqlConnection) -> None:
        self._hangups.ignore(link.fileno(), link)
        link.close()

    def tidy(self) -> None:
        """Close those that nobody will use any more, before the server does and writes it into its log."""
        before = self._now() - self._lease / 2
        for link in expired(self._idle, lambda one: one.used_at <= before):
            self.drop(link)

    def ended(self, link: PostgresqlConnection) -> None:
        """The server hung up: if that one is idle, nobody need find out by using it."""
        try:
            self._idle.remove(link)
        except ValueError:  # somebody is about to use it, and finds out
            return
        self.drop(link)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self.drop(self._idle.pop())
        self._pool.close()

    def abandon(self) -> None:
        self._closed = True
        self._pool.abandon()

    def _settings(self, link: PostgresqlConnection) -> str:
        version = link.conn.server_version if link.conn is not None else 0
        text = _SETTINGS
        if version >= _HAS_USER_TIMEOUT:
            text += _UNHEARD
        if version >= _HAS_IDLE_TIMEOUT:
            text += _IDLE
        probe = max(round(self._lease / _PROBES), 1)
        lease = min(round(self._lease * 1000), _LONGEST)
        return text.format(lease=lease, probe=min(probe, _LONGEST_PROBE), probes=_PROBES) + _ASKED
