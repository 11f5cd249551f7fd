"""The `zookeeper://` store: one session for each client, in Curator's formats.

Making it does no I/O; the first question connects. All of a client's claims live by its session, so there is one for
the face and the watchdog alike. In asyncio the socket belongs to the session's own thread, and the watchdog waits in an
inbox of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.cells import Puts, ZookeeperCells
from dibs.backends.zookeeper.line import ZookeeperLine
from dibs.backends.zookeeper.stands import Stands
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import Wire
from dibs.backends.zookeeper.wire.port import Port
from dibs.backends.zookeeper.wire.stream import Feed
from dibs.core.cells import Cells
from dibs.core.line import CELLS, FAIR, PERMITS, RECORDS, RW, Line, Me
from dibs.core.runtime import Inbox, Runtime
from dibs.url import Url

_ACLS = {"open": codec.OPEN_ACL, "creator": codec.CREATOR_ACL, "creator-read": codec.CREATOR_READ_ACL}


class ZookeeperStore:
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, CELLS, RECORDS})

    def __init__(self, url: Url, **options: Any) -> None:
        self._address = Address.of(url, **options)
        self.shown = self._address.shown
        self._opened: _Opened | None = None

    def open(self, runtime: Runtime, me: Me) -> Line:
        opened = self._open(runtime, me)
        return ZookeeperLine(opened.port(runtime, me, self._address), opened.stands, runtime, me, self._address)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        opened = self._open(runtime, me)
        return ZookeeperCells(opened.port(runtime, me, self._address), opened.puts, runtime, me, self._address.chroot)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.wire.close()
            self._opened = None

    def before_fork(self) -> None:
        """The child closes what it inherits, without a word to the server."""

    def after_fork(self, child: bool) -> None:
        if child and self._opened is not None:
            self._opened.wire.abandon()
            self._opened = None

    def _open(self, runtime: Runtime, me: Me) -> _Opened:
        if self._opened is None:
            self._opened = _Opened(self._address, runtime, me)
        return self._opened


class _Opened:
    """Shared by all queues and cells of a client."""

    def __init__(self, address: Address, runtime: Runtime, me: Me) -> None:
        blocking = runtime.blocking()
        self._face = runtime
        self._leading: Inbox = me.inbox if runtime is blocking else blocking.inbox()
        self.stands = Stands(me, runtime.now)
        feed = None if runtime is blocking else Feed(me.inbox, runtime)
        self.wire = Wire(address, me.lease, blocking, self._leading, self.stands, feed)
        self.stands.wire = self.wire
        self.puts = Puts()

    def port(self, runtime: Runtime, me: Me, address: Address) -> Port:
        inbox = me.inbox if runtime is self._face else self._leading
        return Port(self.wire, inbox, _ACLS[address.acl], runtime)
