"""The open resources of a network store, until it is closed or its process forks."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from dibs.backends.common.connections import C, Connect, Pool
from dibs.backends.common.executor import Transport
from dibs.backends.common.round_trip import RoundTrip
from dibs.core.runtime import Runtime


class Open(Protocol):
    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close the parent's sockets without a message to the server."""


Subscriber = TypeVar("Subscriber", bound=Open)


class Resources(Generic[Subscriber]):
    """The subscriber of a store, the transports of its queues, and the round trip to each of its servers."""

    def __init__(self) -> None:
        self.subscriber: Subscriber | None = None
        self.wires: list[Open] = []
        self._round_trips: dict[object, RoundTrip] = {}

    def round_trip(self, server: object = None) -> RoundTrip:
        """The round trip to a server, shared by the whole store."""
        return self._round_trips.setdefault(server, RoundTrip())

    def slowest(self) -> float:
        """The expected seconds of a reply from the slowest server."""
        return max((trip.expected for trip in tuple(self._round_trips.values())), default=0.0)

    def close(self) -> None:
        subscriber, self.subscriber = self.subscriber, None
        if subscriber is not None:
            subscriber.close()
        for transport in self.wires:
            transport.close()
        self.wires.clear()

    def abandon(self) -> None:
        if self.subscriber is not None:
            self.subscriber.abandon()
        for transport in self.wires:
            transport.abandon()


class NetworkStore(Generic[Subscriber]):
    """The base of a store. Making it does no I/O: the first request connects. Each queue (the caller's, the watchdog's)
    has connections of its own, so that neither can exhaust the other's."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self._begin()

    def _begin(self) -> None:
        self._resources: Resources[Subscriber] = Resources()

    def close(self) -> None:
        self._resources.close()

    def before_fork(self) -> None:
        """The child closes inherited sockets without a message to the server."""

    def after_fork(self, child: bool) -> None:
        if child:
            self._resources.abandon()
            self._begin()


def make_transport(
    connect: Connect[C], runtime: Runtime, round_trip: RoundTrip, shown: str, limit: int
) -> Transport[Any, Any]:
    """At most `limit` connections to one server, for the sync or the async API."""
    if runtime.call_soon is None:
        return Pool(connect, runtime.now, round_trip, shown, limit=limit, keep=limit)
    from dibs.backends.common.aio_connections import AioTransport  # noqa: PLC0415  (threads do not need asyncio)

    return AioTransport(connect, runtime.now, round_trip, shown, limit)
