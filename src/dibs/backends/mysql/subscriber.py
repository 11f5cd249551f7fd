"""The one session in which a client listens, however many of its claims wait.

It has the user lock that bears the client's id, and sleeps in a routine (hear.sql) until it is interrupted by whoever
made one of our claims hold, or changed what we watch; then it asks what that was. A thread of the subscriber reads it,
for the sync and the async API. Its first look finds what was said before it listened, so nobody waits for it to be
ready. A renewal finds what it misses, a third of a waiting lease later.
"""

from __future__ import annotations

from contextlib import suppress

from dibs.backends.common.connections import CONNECTING, STEP
from dibs.backends.common.subscriber import PAUSE, Messages, Waiters
from dibs.backends.common.wakeup import Wakeup
from dibs.backends.mysql.calls import Query, Request, RoutineCall
from dibs.backends.mysql.connection import Dialler, MysqlConnection
from dibs.backends.mysql.errors import MISSING
from dibs.backends.mysql.wire import Refusal, Reply, statement
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

PATIENCE = 5
"""Seconds of one sleep: less than the wait_timeout of any server, and cheap."""
_MOST = 1000
"""Ids that are remembered as heard; told twice is no harm."""
_CHUNK = 65_536
_INTERRUPTED = 1317
_SAID = (
    "SELECT id, 'y' FROM dibs_claims WHERE client = {} AND freed = 1 AND NOT FIND_IN_SET(HEX(id), {}) UNION ALL"
    " SELECT id, 'l' FROM dibs_watchers WHERE client = {} AND told = 1 AND NOT FIND_IN_SET(HEX(id), {})"
)
"""As hear.sql ends: what was said to whom was interrupted in its sleep."""


class MysqlSubscriber:
    def __init__(self, dialler: Dialler, runtime: Runtime, me: ClientIdentity) -> None:
        self._dialler = dialler
        self._now = runtime.now
        self._me = me
        self._heard: dict[bytes, None] = {}
        """Keys that were told already, and still count as told in the server."""
        self._link: MysqlConnection | None = None
        self._closed = False
        self._wakeup = Wakeup()
        self._waiters = waiters = Waiters(runtime, me.inbox, self._turn)
        self.listen, self.ignore, self.hear = waiters.listen, waiters.ignore, waiters.hear

    def forget(self, key: bytes) -> None:
        """A message for it from now on is a new one."""
        if key in self._heard:
            self._heard.pop(key, None)

    def close(self) -> None:
        self._closed = True
        self._waiters.worker.stop()
        self._wakeup.poke()
        if not self._waiters.is_awake:
            self._end()

    def abandon(self) -> None:
        """In a forked child: nothing is said to the server, and nothing is taken out of the selector, which the kernel
        shares with the parent."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._wakeup.close()

    async def _turn(self) -> float | None:
        """Of its own thread: one sleep, while somebody waits."""
        self._waiters.is_awake = True
        try:
            while self._waiters.keys and not self._closed:
                try:
                    self._deliver(self._ask())
                except Refusal as refusal:
                    self._hang_up()
                    if refusal.code in MISSING:  # nobody has joined anything yet
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
        link = self._link
        if link is not None and link.is_stale():
            self._hang_up()
            link = None
        if link is None:
            link = self._link = self._listened()
            self._wakeup.attend(link.sock)
        heard = ",".join([key.hex().upper() for key in list(self._heard)])
        try:
            answer = self._exchange(link, RoutineCall("hear", (self._me.id, heard, PATIENCE)))
            if answer.refusal is not None and answer.refusal.code == _INTERRUPTED:
                answer = self._exchange(link, Query(_SAID, self._me.id, heard, self._me.id, heard))
        except OSError as error:
            raise error if isinstance(error, StoreError) else StoreUnavailable("the connection broke") from None
        if answer.refusal is not None and answer.refusal.code == _INTERRUPTED:
            return []
        return [(row[0] or b"", row[1] or b"") for row in answer.result()[0]]

    def _exchange(self, link: MysqlConnection, request: Request) -> Reply:
        answer = Reply()
        link.sock.settimeout(link.round_trip.attempt)
        link.sock.sendall(request.packed(0.0))
        self._receive(link, answer)
        return answer

    def _listened(self) -> MysqlConnection:
        """A session that has our user lock. One that has it already is one of ours that was cut off, and the server has
        not seen that yet: it ends."""
        link, mine = self._dialler.connect(self._now() + CONNECTING), f"dibs:{self._me.id.hex().upper()}"
        until = self._now() + STEP
        if link.ask(statement(f"SELECT GET_LOCK('{mine}', 0)"), until)[0][0][0] == b"1":
            return link
        with suppress(Refusal):  # it has ended
            link.ask(statement(f"KILL CONNECTION IS_USED_LOCK('{mine}')"), until)
        link.close()
        raise StoreUnavailable("this client is already subscribed")

    def _receive(self, link: MysqlConnection, answer: Reply) -> None:
        end = self._now() + PATIENCE + link.round_trip.attempt
        while True:
            ready = self._wakeup.sleep(max(end - self._now(), 0.0))
            if self._closed or not ready:
                raise StoreUnavailable("the server did not answer in time")
            if link.sock.fileno() in ready and answer.feed(link.sock.recv(_CHUNK)):
                return

    def _deliver(self, told: Messages) -> None:
        if len(self._heard) > _MOST:
            self._heard.clear()
        self._heard.update((key, None) for key, _ in told)
        if told:
            self._me.inbox.deliver_all(told)

    def _end(self) -> None:
        """For good, by the thread that listened, or by the one that closes if nobody listens."""
        self._hang_up()
        self._wakeup.close()

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._wakeup.ignore(link.sock)
            link.close()
