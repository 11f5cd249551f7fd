"""A socket that never blocks, the bytes between us and it (as they are, or in TLS), and a bell that wakes its reader.

`Plain` and `Tls` do no I/O:

    to_send = channel.begin()                 # what goes out first
    plain = channel.receive(raw)              # what came in, decrypted; empty during the handshake
    to_send = channel.send(plain)             # what we say, as it goes out
    to_send = channel.outgoing()              # what else must go out now: ask after every receive

`Tls` keeps what is said before it is `ready` and gives it out with `outgoing`. A certificate that is refused, theirs or
ours, is a StoreError: another try changes nothing. Every other failure of TLS is StoreUnavailable. After either,
`outgoing` still has the alert for the other side. The owner holds a lock over `send` and `take_in`, as both go through
the channel (TLS has one state for both ways). Only one thread at a time is in `Bell.wait`.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from dibs.backends.common.wakeup import READ, WRITE, new_poll
from dibs.errors import StoreUnavailable

if TYPE_CHECKING:
    from ssl import SSLContext


from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dibs.backends.common.tls import failure

if TYPE_CHECKING:
    from ssl import SSLContext


T = TypeVar("T")
_AT_ONCE = 1 << 16


class Plain:
    """Nothing is changed, nothing is kept."""

    ready = True

    def begin(self) -> bytes:
        return b""

    def receive(self, raw: bytes) -> bytes:
        return raw

    def send(self, plain: bytes) -> bytes:
        return plain

    def outgoing(self) -> bytes:
        return b""


class Tls:
    """One connection to one host, whose name its certificate must have."""

    def __init__(self, context: SSLContext, hostname: str) -> None:
        from ssl import MemoryBIO  # noqa: PLC0415  (who does not encrypt does not need it)

        self.ready = False
        self._host = hostname
        self._in, self._out = MemoryBIO(), MemoryBIO()
        name = hostname.partition("%")[0].removesuffix(".")  # certificates know neither zones nor the root's dot
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)
        self._kept = b""

    def begin(self) -> bytes:
        self._step(self._shake)
        return self._out.read()

    def receive(self, raw: bytes) -> bytes:
        self._in.write(raw)
        if not self.ready:
            self._step(self._shake)
        found = []
        while self.ready and (part := self._step(self._read)):
            found.append(part)
        self._write()
        return b"".join(found)

    def send(self, plain: bytes) -> bytes:
        self._kept += plain
        self._write()
        return self._out.read()

    def outgoing(self) -> bytes:
        return self._out.read()

    def _shake(self) -> None:
        self._tls.do_handshake()
        self.ready = True

    def _read(self) -> bytes:
        return self._tls.read(_AT_ONCE)

    def _encrypt(self) -> int:
        return self._tls.write(self._kept)

    def _write(self) -> None:
        """Encrypt what was said, unless a handshake is under way."""
        while self.ready and self._kept:
            done = self._step(self._encrypt)
            if done is None:
                return
            self._kept = self._kept[done:]

    def _step(self, action: Callable[[], T]) -> T | None:
        """None: it cannot go on before more comes in, or the other side said goodbye."""
        import ssl  # noqa: PLC0415  (as above)

        try:
            return action()
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return None
        except ssl.SSLError as error:
            raise failure(self._host, error) from None


CHUNK = 1 << 16


class Transport:
    def __init__(
        self,
        host: str,
        port: int,
        context: SSLContext | None,
        patience: float,
        connected: socket.socket | None = None,
    ) -> None:
        """`connected`: the connection, if it is made already."""
        try:
            self._socket = connected or socket.create_connection((host, port), timeout=patience)
        except OSError as error:
            raise StoreUnavailable(said(error)) from None
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.out = bytearray()
            """Bytes that are still to be sent."""
            self._amidst = False
            self._channel: Plain | Tls = Plain() if context is None else Tls(context, host)
            self.plain: socket.socket | None = self._socket if context is None else None
            """The socket itself, where its bytes are ours as they are."""
            self._push(self._channel.begin())
        except BaseException:
            self._socket.close()
            raise

    @property
    def stuck(self) -> bool:
        """Something is still to be sent."""
        return bool(self.out)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        self._push(self._channel.send(data))

    def put(self, data: bytes) -> None:
        """To be sent with what comes next."""
        self.out += self._channel.send(data)

    def flush(self) -> None:
        self._push(b"")

    def read(self) -> bytes:
        """The bytes that have arrived, as they are on the wire; b"" if none have."""
        try:
            raw = self._socket.recv(CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise StoreUnavailable(said(error)) from None
        if not raw:
            raise StoreUnavailable("the server closed the connection")
        return raw

    def take_in(self, raw: bytes) -> bytes:
        """Decrypt raw bytes; the channel may have to answer by itself."""
        try:
            return self._channel.receive(raw)
        finally:
            if more := self._channel.outgoing():
                self._push(more)

    def ready(self, patience: float) -> bool:
        """Wait until there is something to read, or room to send. Never, if another thread has closed it meanwhile."""
        if (number := self.fileno()) < 0:
            return False
        poll = new_poll()
        poll.register(number, READ | WRITE if self.stuck else READ)
        return bool(poll.poll(max(patience, 0.0) * 1000))

    def close(self) -> None:
        self._socket.close()

    def _push(self, raw: bytes) -> None:
        if self._amidst:  # an interrupt left it unknown what went out: sending on could say something twice
            raise StoreUnavailable("the sender was interrupted")
        self._amidst = True
        if raw:
            self.out += raw
        try:
            while self.out:
                sent = self._socket.send(self.out)
                del self.out[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            raise StoreUnavailable(said(error)) from None
        self._amidst = False


class Bell:
    """Waits for a link to become readable, or to be rung."""

    def __init__(self) -> None:
        self._subscriber, self._cord = socket.socketpair()
        self._subscriber.setblocking(False)
        self._cord.setblocking(False)
        self._poll = new_poll()
        self._poll.register(self._subscriber, READ)
        self._listens_to = self._subscriber.fileno()
        self._transport: Transport | None = None
        self._links = -1
        self._both_ways = False

    def ring(self) -> None:
        with suppress(OSError):  # full: it rings already; closed: nobody listens
            self._cord.send(b"!")

    def wait(self, transport: Transport | None, patience: float) -> bool:
        """True: the link has something to read, or can be written to again."""
        if transport is not self._transport:
            self._attend(transport)
        if (
            transport is not None
            and transport is self._transport
            and (stuck := bool(transport.out)) is not self._both_ways
        ):
            self._poll.modify(self._links, READ | WRITE if stuck else READ)
            self._both_ways = stuck
        heard = False
        for descriptor, _ in self._poll.poll(patience * 1000 if patience > 0 else 0):
            if descriptor == self._listens_to:
                with suppress(OSError):  # another ring was for the same; or it was closed meanwhile
                    self._subscriber.recv(4096)
            else:
                heard = True
        return heard

    def close(self) -> None:
        self._subscriber.close()
        self._cord.close()

    def _attend(self, transport: Transport | None) -> None:
        """An interrupt may come between any two lines: the next one begins from the start."""
        self._transport = None
        with suppress(KeyError, ValueError):  # it was not registered, or never was
            self._poll.unregister(self._links)
        if transport is not None and (number := transport.fileno()) >= 0:  # another thread may have closed it meanwhile
            self._links = number
            self._poll.register(number, READ)
            self._both_ways = False
            self._transport = transport


def said(error: OSError) -> str:
    """The error in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error) or type(error).__name__
