"""The `zookeeper://` store: one session for each client, in Curator's formats.

Making it does no I/O; the first question connects. All of a client's claims live by its session, so there is one for
the API and the watchdog alike. In asyncio the socket belongs to the session's own thread, and the watchdog waits in an
inbox of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.cells import Puts, ZookeeperCells
from dibs.backends.zookeeper.node_claims import NodeClaims
from dibs.backends.zookeeper.queue import ZookeeperQueue
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import SessionClient
from dibs.backends.zookeeper.wire.exchange import Feed
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor
from dibs.core.cells import Cells
from dibs.core.queue import CELLS, FAIR, PERMITS, RECORDS, RW, ClientIdentity, Queue
from dibs.core.runtime import Inbox, Runtime
from dibs.url import Url

_ACLS = {"open": codec.OPEN_ACL, "creator": codec.CREATOR_ACL, "creator-read": codec.CREATOR_READ_ACL}


class ZookeeperStore:
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, CELLS, RECORDS})

    def __init__(self, url: Url, **options: Any) -> None:
        self._address = Address.of(url, **options)
        self.shown = self._address.shown
        self._opened: _Opened | None = None

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        opened = self._open(runtime, me)
        return ZookeeperQueue(
            opened.executor(runtime, me, self._address), opened.node_claims, runtime, me, self._address
        )

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        opened = self._open(runtime, me)
        return ZookeeperCells(
            opened.executor(runtime, me, self._address), opened.puts, runtime, me, self._address.chroot
        )

    def close(self) -> None:
        if self._opened is not None:
            self._opened.client.close()
            self._opened = None

    def before_fork(self) -> None:
        """The child closes what it inherits, without a word to the server."""

    def after_fork(self, child: bool) -> None:
        if child and self._opened is not None:
            self._opened.client.abandon()
            self._opened = None

    def _open(self, runtime: Runtime, me: ClientIdentity) -> _Opened:
        if self._opened is None:
            self._opened = _Opened(self._address, runtime, me)
        return self._opened


class _Opened:
    """Shared by all queues and cells of a client."""

    def __init__(self, address: Address, runtime: Runtime, me: ClientIdentity) -> None:
        blocking = runtime.blocking()
        self._api_runtime = runtime
        self._leading: Inbox = me.inbox if runtime is blocking else blocking.inbox()
        self.node_claims = NodeClaims(me, runtime.now)
        feed = None if runtime is blocking else Feed(me.inbox, runtime)
        self.client = SessionClient(address, me.lease, blocking, self._leading, self.node_claims, feed)
        self.node_claims.client = self.client
        self.puts = Puts()

    def executor(self, runtime: Runtime, me: ClientIdentity, address: Address) -> ZookeeperExecutor:
        inbox = me.inbox if runtime is self._api_runtime else self._leading
        return ZookeeperExecutor(self.client, inbox, _ACLS[address.acl], runtime)
