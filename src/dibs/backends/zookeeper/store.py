"""The `zookeeper://` store: one session for each client, in Curator's formats.

Making a store does no I/O; the first request connects. All claims of a client live as long as its session, so the API
and the watchdog share one. In asyncio the session's own thread reads the socket, and the watchdog waits in an inbox of
its own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.cells import Puts, ZookeeperCells
from dibs.backends.zookeeper.node_claims import NodeClaims
from dibs.backends.zookeeper.queue import ZookeeperQueue
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import SessionClient
from dibs.backends.zookeeper.wire.exchange import Messages
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor
from dibs.core.cells import Cells
from dibs.core.queue import CELLS, FAIR, PERMITS, RECORDS, RW, ClientIdentity, Queue
from dibs.core.runtime import Inbox, Runtime
from dibs.url import Url

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_ACLS = {"open": codec.OPEN_ACL, "creator": codec.CREATOR_ACL, "creator-read": codec.CREATOR_READ_ACL}
_AT_ONCE = 100
"""Messages that one round of an event loop delivers."""


class ZookeeperStore:
    backend: ClassVar[str] = "zookeeper"
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, CELLS, RECORDS})

    def __init__(self, url: Url, **options: Any) -> None:
        self._address = Address(url, **options)
        self.shown = self._address.shown
        self._opened: _Opened | None = None

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        opened = self._open(runtime, me)
        return ZookeeperQueue(opened.executor(runtime, me), opened.node_claims, runtime, me, self._address)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        opened = self._open(runtime, me)
        return ZookeeperCells(opened.executor(runtime, me), opened.puts, runtime, me, self._address.chroot)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.client.close()
            self._opened = None

    def before_fork(self) -> None:
        """Nothing to prepare: the child closes what it inherits."""

    def after_fork(self, child: bool) -> None:
        if child and self._opened is not None:
            self._opened.client.abandon()
            self._opened = None

    def _open(self, runtime: Runtime, me: ClientIdentity) -> _Opened:
        if self._opened is None:
            self._opened = _Opened(self._address, runtime, me)
        return self._opened


class _Opened:
    """The part that all queues and cells of a client share."""

    def __init__(self, address: Address, runtime: Runtime, me: ClientIdentity) -> None:
        blocking = runtime.blocking()
        self._acl = _ACLS[address.acl]
        self._api_runtime = runtime
        self._leading: Inbox = me.inbox if runtime is blocking else blocking.inbox()
        self.node_claims = NodeClaims(me, runtime.now)
        self.feed = None if runtime is blocking else Feed(me.inbox, runtime)
        feed = None if self.feed is None else self.feed.put
        self.client = SessionClient(address, me.lease, blocking, self._leading, self.node_claims, feed)
        self.node_claims.client = self.client
        self.puts = Puts()

    def executor(self, runtime: Runtime, me: ClientIdentity) -> ZookeeperExecutor:
        inbox = me.inbox if runtime is self._api_runtime else self._leading
        return ZookeeperExecutor(self.client, inbox, self._acl, runtime)


class Feed:
    """Delivers messages to the inbox of an event loop, a few in each round, so that other tasks get their turns."""

    def __init__(self, inbox: Inbox, runtime: Runtime) -> None:
        self._inbox = inbox
        self._runtime = runtime
        self._messages: deque[tuple[bytes, bytes]] = deque()
        self._continues_in: AbstractEventLoop | None = None
        """The loop whose next round delivers more. It may be closed first, and another loop follow."""

    def put(self, messages: Messages) -> None:
        """Safe from any thread."""
        self._messages.extend(messages)
        self._runtime.call_back(self._begin)

    def _begin(self) -> None:
        if self._continues_in is not _loop():
            self._deliver()

    def _deliver(self) -> None:
        messages, loop = self._messages, _loop()
        self._inbox.deliver_all([messages.popleft() for _ in range(min(len(messages), _AT_ONCE))])
        self._continues_in = loop if messages else None
        if messages:
            loop.call_soon(self._deliver)


def _loop() -> AbstractEventLoop:
    from asyncio import get_running_loop  # noqa: PLC0415  (the sync API does not load it)

    return get_running_loop()
