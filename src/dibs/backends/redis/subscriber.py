"""The subscriptions of a client, all on one connection; to the shards of a cluster, on one to each primary.

A client subscribes to a channel of its own, to which scripts send the ids of its claims that now hold. While a caller
waits for changes of a name, it also subscribes to the channel with the name of the key. Only a message with the full id
of a claim grants; any other message is a hint to ask the store.
"""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from dibs.backends.common.connections import CONNECTING, STEP, own
from dibs.backends.common.subscriber import PAUSE, Messages, Subscriber
from dibs.backends.redis.address import Endpoint
from dibs.backends.redis.connection import CHUNK, NOT_NOW, NOTHING, Replies, broken, dial
from dibs.backends.redis.errors import REDIRECTIONS, Refusal, final
from dibs.backends.redis.scripts import Command
from dibs.backends.redis.servers import Dialler
from dibs.backends.redis.topology import Topology
from dibs.core.queue import LOOK, ClientIdentity
from dibs.core.runtime import Event, Runtime
from dibs.errors import StoreError, StoreUnavailable

Route = Callable[[bytes, bytes, Sequence[bytes]], Messages]
"""From a channel, a message and the inbox keys of the channel's listeners to the messages for them."""
_SIGNAL = 17
"""Bytes of one signal in a message: the id of a claim, and one byte for the kind of signal."""
_ACKNOWLEDGED = 1.5
"""Seconds to wait for the acknowledgement of a subscription. Without one, the caller polls."""
_PING = Command("PING")


def to_all(_channel: bytes, _text: bytes, keys: Sequence[bytes]) -> Messages:
    """The route of our own layout: every message is a hint to ask the store."""
    return [(key, LOOK.value) for key in keys]


class RedisSubscriber:
    failures: type[Exception] = OSError

    def __init__(
        self, dialler: Dialler, topology: Topology, runtime: Runtime, identity: ClientIdentity, channel: bytes | None,
        route: Route,
    ) -> None:  # fmt: skip
        """`channel`: the client's own channel, if the layout has one. `route`: who hears a message on another one."""
        self._dialler = dialler
        self._topology = topology
        self._now = runtime.now
        self._inbox = identity.inbox
        self._channel = channel
        self._own = [] if channel is None else [channel]
        self._route = route
        self._listeners: dict[bytes, dict[bytes, None]] = {}
        """By channel: the inbox keys of the callers that listen to it."""
        self._sent: dict[bytes, int] = {}
        """By channel: subscriptions that the server has not acknowledged."""
        self._unheard: dict[bytes, bytes] = {}
        """By inbox key of a caller that waits for an acknowledgement: its channel."""
        self._refusal: Exception | None = None
        """Why subscribing fails for good: an error of the server, or of a function of the user."""
        self._ready: Event = runtime.event()
        self._trouble: StoreUnavailable | None = None
        self._dialled = 0
        self.is_sharded = False
        """Messages of a channel come from the primary that has its slot. Set before the first subscription."""
        self._fresh_id = runtime.fresh_id
        self.source = Subscriber[_Subscription](self, runtime, identity)
        self.hear, self.close, self.abandon = self.source.hear, self.source.close, self.source.abandon

    def is_ready(self) -> bool:
        return self.source.connection is not None

    async def ready(self, until: float) -> None:
        """Wait for the first connection. From then on the client hears its own channel; after a loss of the connection
        its waiters are told to ask the store."""
        subscriber = self.source
        if self._ready.is_set() and self._refusal is None:
            subscriber.ring()  # the connection was lost: without messages the waiters are only slower
            return
        refused = self._refusal  # it stays until an attempt succeeds: all callers until then get it
        wanted = self._fresh_id()
        subscriber.wanted[wanted] = None  # before it rings: an attempt that has failed is repeated for this caller
        try:
            subscriber.ring()
            if refused is not None:
                raise _own(refused)
            if not await self._ready.wait(until):
                raise _own(self._trouble or StoreUnavailable("no subscription was made in time"))
        finally:
            subscriber.wanted.pop(wanted, None)
        subscriber.check_open()
        if self._refusal is not None:
            raise _own(self._refusal)

    async def listen(self, channel: bytes, key: bytes, until: float) -> None:
        """Deliver every message of a channel to the inbox under `key`, from the return of this call until `ignore`."""
        if not self.is_ready():
            await self.ready(until)
        until = min(until, self._now() + _ACKNOWLEDGED)
        heard = self._fresh_id()
        self._inbox.expect(heard)
        try:
            with self.source.mutex:
                known = channel in self._listeners and not self._sent.get(channel)
                if not known:
                    self._unheard[heard] = channel
                self.source.check_open()  # only now: `close` wakes the callers in `_unheard`
                if channel not in self._listeners:
                    self._send("SUBSCRIBE", channel)
                self._listeners.setdefault(channel, {})[key] = None
            self.source.listen(key)
            if known:
                return
            if await self._inbox.wait(heard, until) is None:
                raise StoreUnavailable("the subscription was not acknowledged in time")
            self.source.check_open()
            if self._refusal is not None:
                raise _own(self._refusal)
        finally:
            self._unheard.pop(heard, None)
            self._inbox.forget(heard)

    def listeners(self, channel: bytes) -> list[bytes]:
        return list(self._listeners.get(channel, ()))

    def hears(self, channel: bytes, key: bytes) -> bool:
        return key in self._listeners.get(channel, ())

    def ignore(self, channel: bytes, key: bytes) -> None:
        self.source.ignore(key)
        with self.source.mutex:
            keys = self._listeners.get(channel)
            if keys is None or key not in keys:
                return
            del keys[key]
            if not keys:
                del self._listeners[channel]
                self._send("UNSUBSCRIBE", channel)

    def _send(self, verb: str, channel: bytes) -> None:
        """Called with the mutex. If the command cannot be sent at once, connect again, which subscribes to all."""
        connection = self.source.connection
        if connection is not None:
            try:
                connection.send(self._command(verb, channel), self._topology.locate(channel))
            except OSError:
                self.source.lose(connection)
                self.source.ring()
        if verb == "SUBSCRIBE":
            self._sent[channel] = self._sent.get(channel, 0) + 1

    def _parse(self, reply: Any, found: Messages) -> None:
        if isinstance(reply, Refusal):
            if self.is_sharded and reply.code in REDIRECTIONS:
                raise _moved()
            self._refusal = final(reply, self._channel or b"")
            found.extend((key, b"no") for key in list(self._unheard))
            return
        if not isinstance(reply, list) or len(reply) != 3:
            return
        what, channel, text = reply
        if what == b"sunsubscribe" and channel in self._listeners:
            raise _moved()
        if what in (b"message", b"smessage") and isinstance(text, bytes):
            if channel == self._channel:
                if len(text) % _SIGNAL == 0:
                    found.extend((text[at : at + 16], text[at + 16 : at + 17]) for at in range(0, len(text), _SIGNAL))
            else:
                found.extend(self._route(channel, text, self.listeners(channel)))
        elif what in (b"subscribe", b"ssubscribe"):
            self._acknowledged(channel, found)

    def _acknowledged(self, channel: bytes, found: Messages) -> None:
        self._refusal = None
        with self.source.mutex:
            left = self._sent.get(channel, 1) - 1
            if left:
                self._sent[channel] = left
            else:
                self._sent.pop(channel, None)
        if not left:
            found.extend((key, b"yes") for key in list(self._unheard) if self._unheard.get(key) == channel)

    # Called by common/subscriber.py: see MessageProtocol there.

    def connect(self) -> None:
        endpoints = self._endpoints(self._now() + CONNECTING)
        try:
            self._connect_to(endpoints)
        except StoreUnavailable:
            for endpoint in endpoints:  # all callers that would find that out may be waiting for this connection
                self._topology.forget(endpoint)
            raise

    def failed(self, error: Exception) -> float | None:
        if isinstance(error, StoreUnavailable):
            self._trouble = error
            return PAUSE
        self._refusal = error
        self._ready.set()
        return None

    def read(self, connection: _Subscription, found: Messages) -> bool:
        is_alive = False
        for part in connection.parts:
            is_alive = self._read(part, found) or is_alive
        return is_alive

    def _read(self, part: _Part, found: Messages) -> bool:
        sock, answers, is_alive = part.sock, part.answers, False
        try:
            while True:
                with self.source.mutex:  # TLS cannot read and write at the same time
                    received = sock.recv(CHUNK)
                answers.feed(received)
                is_alive = True
                while (reply := answers.next()) is not NOTHING:
                    self._parse(reply, found)
                if len(received) < CHUNK and not isinstance(sock, ssl.SSLSocket):
                    return True
        except NOT_NOW:
            return is_alive

    def ping(self, connection: _Subscription) -> None:
        for part in connection.parts:
            part.send(_PING)

    def closed(self) -> None:
        self._ready.set()
        self._inbox.deliver_all([(key, b"no") for key in list(self._unheard)])

    def _connect_to(self, endpoints: Sequence[Endpoint]) -> None:
        mutex = self.source.mutex
        connection = _Subscription()
        try:
            for endpoint in endpoints:
                connection.add(endpoint, dial(self._dialler.address, endpoint, STEP))
            with mutex:
                # A caller that adds a channel later subscribes to it, on the connection that is open then.
                channels = [*self._own, *self._listeners]
                self._sent = dict.fromkeys(self._listeners, 1)
            self._begin(connection, channels)
            with mutex:
                more = [channel for channel in self._listeners if channel not in channels]
                for channel in more:
                    connection.send(self._command("SUBSCRIBE", channel), self._topology.locate(channel))
                self._sent = {**dict.fromkeys(channels[len(self._own) :], 0), **dict.fromkeys(more, 1)}
                self.source.adopt(connection, is_first=not self._ready.is_set())
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                raise broken(error) from None
            raise
        self._refusal = self._trouble = None
        self._ready.set()
        heard = [(key, b"yes") for key in list(self._unheard) if self._unheard.get(key) in channels]
        self._inbox.deliver_all(heard)

    def _endpoints(self, until: float) -> list[Endpoint]:
        """The servers to subscribe at: all that have a shard, or one. In a cluster that is another one each time."""
        if self.is_sharded:
            self._topology.learn(until)  # a slot may have moved since
        elif not self._topology.all():
            self._topology.learn(until)
        endpoints = self._topology.all()
        if not endpoints:
            raise StoreUnavailable("no server is known now")
        self._dialled += 1
        return endpoints if self.is_sharded else [endpoints[self._dialled % len(endpoints)]]

    def _command(self, verb: str, *channels: bytes) -> Command:
        return Command(f"S{verb}" if self.is_sharded else verb, *channels)

    def _begin(self, connection: _Subscription, channels: Sequence[bytes]) -> None:
        """Subscribe, and wait for the acknowledgements."""
        for part in connection.parts:
            own = [channel for channel in channels if connection.part_of(self._topology.locate(channel)) is part]
            part.begin([self._command("SUBSCRIBE", channel) for channel in own], own)


class _Subscription:
    """The connections that receive messages: one, or one to each shard."""

    def __init__(self) -> None:
        self._by_endpoint: dict[Endpoint, _Part] = {}
        self._selector: selectors.DefaultSelector | None = None

    @property
    def parts(self) -> list[_Part]:
        return list(self._by_endpoint.values())

    def add(self, endpoint: Endpoint, sock: socket.socket) -> None:
        if self._by_endpoint and self._selector is None:
            self._selector = selectors.DefaultSelector()  # its descriptor is readable if one of the sockets is
            for part in self.parts:
                self._selector.register(part.sock, selectors.EVENT_READ)
        if self._selector is not None:
            self._selector.register(sock, selectors.EVENT_READ)
        self._by_endpoint[endpoint] = _Part(sock)

    def fileno(self) -> int:
        return self.parts[0].sock.fileno() if self._selector is None else self._selector.fileno()

    def part_of(self, endpoint: Endpoint | None) -> _Part:
        """The connection for the channels of a server."""
        part = self._by_endpoint.get(endpoint) if endpoint is not None else None
        if part is not None:
            return part
        if len(self._by_endpoint) > 1:
            raise StoreUnavailable("the servers have changed")
        return self.parts[0]

    def send(self, command: Command, endpoint: Endpoint | None) -> None:
        self.part_of(endpoint).send(command)

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()
        for part in self.parts:
            part.sock.close()

    abandon = close


class _Part:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.answers = Replies()

    def begin(self, commands: Sequence[Command], channels: Sequence[bytes]) -> None:
        """Also check the right to publish: scripts ignore a refused PUBLISH, and waiters would be woken late without a
        visible reason."""
        self.sock.settimeout(STEP)
        if channels:
            may_publish = Command("PUBLISH", channels[0], b"").packed(0.0)
            self.sock.sendall(may_publish + b"".join([command.packed(0.0) for command in commands]))
        missing = len(channels)
        while missing:
            reply = self.answers.next()
            if reply is NOTHING:
                self.answers.feed(self.sock.recv(CHUNK))
            elif isinstance(reply, Refusal):
                raise final(reply, channels[0])
            elif isinstance(reply, list) and reply[0] in (b"subscribe", b"ssubscribe"):
                missing -= 1
        self.sock.setblocking(False)

    def send(self, command: Command) -> None:
        packed = command.packed(0.0)
        if self.sock.send(packed) < len(packed):
            raise StoreUnavailable("the server accepts no more subscriptions")


def _moved() -> StoreUnavailable:
    return StoreUnavailable("a channel has moved to another server")


def _own(error: Exception) -> Exception:
    """A copy for each caller, because the name of its lock is written into the error."""
    return own(error) if isinstance(error, StoreError) else error
