"""The one session in which a client listens, however many of its claims wait.

The session holds the user lock that bears the client's id, and sleeps in a routine (hear.sql). A client that makes one
of our claims hold, or changes a value that we watch, interrupts it; then the session asks what happened. A thread of
the subscriber reads it, for both APIs. Its first look finds earlier messages, so no waiter waits for it to be ready. A
renewal finds missed messages, a third of a waiting lease later.

Callers can also watch a cell or the leader of a queue. The server has a row for each watcher, which the next call of
watch.sql removes after the watcher has stopped.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from dibs.backends.common.connections import CONNECTING, STEP
from dibs.backends.common.subscriber import PAUSE, Messages, Waiters
from dibs.backends.common.wakeup import Wakeup
from dibs.backends.mysql.calls import MICROSECONDS, Request, query, routine_call
from dibs.backends.mysql.connection import Dialler, MysqlConnection
from dibs.backends.mysql.errors import MISSING
from dibs.backends.mysql.executor import MysqlExecutor, number, row
from dibs.backends.mysql.wire import Refusal, Sets
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

PATIENCE = 5
"""Seconds of one sleep: less than the wait_timeout of any server, and cheap."""
_MOST = 1000
"""Ids that are remembered as heard; a message that is heard twice does no harm."""
POLL_INTERVAL = 2.0
"""Seconds after which a watcher looks by itself, in case a message was lost."""
_REMEMBERED = 60.0
"""Seconds that the row of a watcher lasts at most; no call watches for longer."""
_REMOVED = 100
"""Rows of earlier watchers that one call removes at most."""
_NAP = 0.01
"""Seconds between two attempts to send, while the socket's buffer is full."""
_INTERRUPTED = 1317
_SAID = (
    "SELECT id, 'y' FROM dibs_claims WHERE client = {} AND freed = 1 AND NOT FIND_IN_SET(HEX(id), {}) UNION ALL"
    " SELECT id, 'l' FROM dibs_watchers WHERE client = {} AND told = 1 AND NOT FIND_IN_SET(HEX(id), {})"
)
"""The last statement of hear.sql, after the sleep was interrupted."""


class MysqlSubscriber:
    def __init__(self, dialler: Dialler, runtime: Runtime, me: ClientIdentity) -> None:
        self._dialler = dialler
        self._now = runtime.now
        self._me = me
        self.heard: dict[bytes, None] = {}
        """Keys whose message was delivered, and is still noted in the server."""
        self._stopped: deque[bytes] = deque()
        """The keys of watchers that have stopped."""
        self._connection: MysqlConnection | None = None
        self._closed = False
        self._wakeup = Wakeup()
        self._waiters = waiters = Waiters(runtime, me.inbox, self._turn)
        self.listen, self.ignore, self.hear = waiters.listen, waiters.ignore, waiters.hear

    def forget(self, key: bytes) -> None:
        """The next message for this key is a new one."""
        if key in self.heard:
            self.heard.pop(key, None)

    async def watch(
        self, executor: MysqlExecutor, space: str, name: bytes, seen: int, key: bytes, until: float
    ) -> None:
        """Wait until the version or the leader's ticket is not `seen`, a message comes, or a poll is due."""
        stopped: list[bytes] = []
        with suppress(IndexError):  # another thread took the last one
            while len(stopped) < _REMOVED:
                stopped.append(self._stopped.popleft())
        patience = int(min(until - self._now() + 1, _REMEMBERED) * MICROSECONDS)
        call = routine_call("watch", space, name, key, self._me.id, patience, b"".join(stopped))
        self.listen(key)
        try:
            _, there, left = map(number, row(await executor.ask(call, until), 3)[:3])
            if there == seen:
                by_itself = left / MICROSECONDS if left >= 0 else POLL_INTERVAL
                await self._me.inbox.wait(key, min(until, self._now() + min(by_itself, POLL_INTERVAL)))
        finally:
            self.ignore(key)
            self.forget(key)
            self._stopped.append(key)  # a request is not possible here: an interrupt awaits nothing

    def close(self) -> None:
        self._closed = True
        self._waiters.worker.stop()
        self._wakeup.poke()
        if not self._waiters.is_awake:
            self._end()

    def abandon(self) -> None:
        """In a forked child: send nothing, and leave the selector alone, which the kernel shares with the parent."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._wakeup.close()

    async def _turn(self) -> float | None:
        """In its own thread: listen while callers wait."""
        self._waiters.is_awake = True
        try:
            while self._waiters.keys and not self._closed:
                try:
                    self._deliver(self._ask())
                except Refusal as refusal:
                    self._hang_up()
                    if refusal.code in MISSING:  # no claim has joined yet
                        return PAUSE
                except StoreError:
                    self._hang_up()
                    return PAUSE
        finally:
            self._waiters.is_awake = False
            if self._closed:
                self._end()
        return PAUSE if self._waiters.keys else None

    def _ask(self) -> Messages:
        connection = self._connection
        if connection is not None and connection.is_stale():
            self._hang_up()
            connection = None
        if connection is None:
            connection = self._connection = self._listened()
            self._wakeup.attend(connection.sock)
        heard = ",".join([key.hex().upper() for key in list(self.heard)])
        found = self._exchange(connection, routine_call("hear", self._me.id, heard, PATIENCE))
        if found is None:
            found = self._exchange(connection, query(_SAID, self._me.id, heard, self._me.id, heard))
        return [] if found is None else [(row[0] or b"", row[1] or b"") for row in found[0]]

    def _listened(self) -> MysqlConnection:
        """A session that has our user lock. If another session has it, that is a lost one of ours, and is ended."""
        connection, mine = self._dialler.connect(self._now() + CONNECTING), f"dibs:{self._me.id.hex().upper()}"
        until = self._now() + STEP
        if connection.exchange(query(f"SELECT GET_LOCK('{mine}', 0)"), until)[0][0][0] == b"1":
            return connection
        with suppress(Refusal):  # it has ended
            connection.exchange(query(f"KILL CONNECTION IS_USED_LOCK('{mine}')"), until)
        connection.close()
        raise StoreUnavailable("this client is already subscribed")

    def _exchange(self, connection: MysqlConnection, request: Request) -> Sets | None:
        """Ask, and sleep until the reply comes or the subscriber is closed. None: the statement was interrupted."""
        connection.begin(request)
        end = self._now() + PATIENCE + connection.round_trip.attempt
        while True:
            left = end - self._now()
            ready = self._wakeup.sleep(max(left if connection.is_flushed else min(left, _NAP), 0.0))
            if self._closed or (left <= 0 and not ready):
                raise StoreUnavailable("the server did not answer in time")
            try:
                if (found := connection.received()) is not None:
                    return found
            except Refusal as refusal:
                if refusal.code != _INTERRUPTED:
                    raise
                return None

    def _deliver(self, told: Messages) -> None:
        if len(self.heard) > _MOST:
            self.heard.clear()
        self.heard.update((key, None) for key, _ in told)
        if told:
            self._me.inbox.deliver_all(told)

    def _end(self) -> None:
        """Close for good: in the thread that listened, or in the one that closes if none listens."""
        self._hang_up()
        self._wakeup.close()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._wakeup.ignore(connection.sock)
            connection.close()
