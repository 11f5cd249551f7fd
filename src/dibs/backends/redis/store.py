"""The `redis://` family: one server, a primary found by Sentinel, a cluster.

Making it does no I/O; the first question connects. A client has one subscription connection, and each way to the store
(the face's, the keeper's) connections of its own: what one of them suffers the other does not.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.kept import Kept
from dibs.backends.redis.address import Address
from dibs.backends.redis.cells import RedisCells
from dibs.backends.redis.ear import Ear
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.line import RedisLine
from dibs.backends.redis.link import Dialer
from dibs.backends.redis.pool import Pool
from dibs.backends.redis.port import Port, Wire
from dibs.backends.redis.where import where
from dibs.core.cells import Cells
from dibs.core.line import ATOMIC_TRY, CELLS, FAIR, LEASES, PERMITS, RECORDS, RW, VOTES, Line, Me
from dibs.core.runtime import Runtime
from dibs.runtime.threads import boottime
from dibs.url import Url


class RedisStore:
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, VOTES, RECORDS})

    def __init__(self, address: Address) -> None:
        self._address = address
        self.shown = address.shown
        self._keys = Keys(address.prefix)
        self._begin()

    def _begin(self) -> None:
        self._where = where(self._address, boottime)
        self._kept: Kept[Ear] = Kept()

    def open(self, runtime: Runtime, me: Me) -> Line:
        return RedisLine(self._port(runtime), self._listening(runtime, me), runtime, me, self._keys, self._address)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        return RedisCells(self._port(runtime), self._listening(runtime, me), runtime, me, self._keys)

    def close(self) -> None:
        self._kept.close()

    def before_fork(self) -> None:
        """The child closes what it inherits, without a word to the server."""

    def after_fork(self, child: bool) -> None:
        if child:
            self._kept.abandon()
            self._begin()

    def _port(self, runtime: Runtime) -> Port:
        wire = self._wire(runtime)
        self._kept.wires.append(wire)
        return Port(wire, self._where, runtime, self._address.replicas)

    def _wire(self, runtime: Runtime) -> Wire:
        dialer = Dialer(self._address, runtime.now)
        if runtime.soon is None:
            return Pool(dialer, self._where)
        from dibs.backends.redis.stream import Streams  # noqa: PLC0415  (threads have no use for asyncio)

        return Streams(dialer, self._where, runtime)

    def _listening(self, runtime: Runtime, me: Me) -> Ear | None:
        if self._kept.ear is None and self._address.wake == "messages":
            dialer = Dialer(self._address, runtime.now)
            self._kept.ear = Ear(dialer, self._where, runtime, me, self._keys.client(me.id))
        return self._kept.ear


def of_url(url: Url, **options: Any) -> RedisStore:
    return RedisStore(Address.of(url, **options))


def of_driver(driver: object, **options: Any) -> RedisStore:
    """With the settings of a client of redis-py's, of either face."""
    return RedisStore(Address.of_driver(driver, **options))
