"""A socket that never blocks, with or without TLS.

The owner holds a mutex over `send`, `put`, `flush` and `take_in`: TLS has one state for both directions.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dibs.backends.common.tls import failure
from dibs.backends.common.wakeup import READ, WRITE, new_poll
from dibs.errors import StoreUnavailable

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")
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
        """`connected`: an open connection to use instead of a new one."""
        try:
            self._socket = connected or socket.create_connection((host, port), timeout=patience)
        except OSError as error:
            raise StoreUnavailable(said(error)) from None
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.out = bytearray()
            """Bytes that the socket has not accepted yet."""
            self._is_sending = False
            self._tls = None if context is None else Tls(context, host)
            self.plain = self._socket if context is None else None
            """The socket, if its bytes are not encrypted."""
            if self._tls is not None:
                self._push(self._tls.begin())
        except BaseException:
            self._socket.close()
            raise

    @property
    def stuck(self) -> bool:
        return bool(self.out)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        self._push(data if self._tls is None else self._tls.send(data))

    def put(self, data: bytes) -> None:
        """Add data to the output buffer; the next `send` or `flush` sends it."""
        self.out += data if self._tls is None else self._tls.send(data)

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
        """Decrypt raw bytes, and send what TLS itself has to reply."""
        if self._tls is None:
            return raw
        try:
            return self._tls.receive(raw)
        finally:
            if more := self._tls.outgoing():
                self._push(more)

    def ready(self, patience: float) -> bool:
        """Wait until there is something to read or, if output is left, room to send. False also if another thread has
        closed the socket."""
        if (number := self.fileno()) < 0:
            return False
        poll = new_poll()
        poll.register(number, READ | WRITE if self.out else READ)
        return bool(poll.poll(max(patience, 0.0) * 1000))

    def close(self) -> None:
        self._socket.close()

    def _push(self, raw: bytes) -> None:
        if self._is_sending:  # after an interrupt nobody knows which bytes were sent, and some could be sent twice
            raise StoreUnavailable("the sender was interrupted")
        self._is_sending = True
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
        self._is_sending = False


class Tls:
    """TLS for one connection, without I/O. The certificate must be valid for `hostname`.

    Call `outgoing` after every `receive`, also after one that failed: it returns the alert for the server. Data that is
    sent during the handshake is kept until the handshake is over. A certificate that either side refuses is a
    StoreError, because another attempt changes nothing. Every other failure is StoreUnavailable.
    """

    def __init__(self, context: SSLContext, hostname: str) -> None:
        from ssl import MemoryBIO  # noqa: PLC0415  (a client without TLS does not load it)

        self.ready = False
        self._host = hostname
        self._in, self._out = MemoryBIO(), MemoryBIO()
        name = hostname.partition("%")[0].removesuffix(".")  # certificates contain neither zones nor the final dot
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)
        self._kept = b""
        self.outgoing = self._out.read

    def begin(self) -> bytes:
        """The first bytes of the handshake."""
        self._step(self._shake)
        return self._out.read()

    def receive(self, raw: bytes) -> bytes:
        """The decrypted bytes; b"" during the handshake."""
        self._in.write(raw)
        if not self.ready:
            self._step(self._shake)
        found = []
        while self.ready and (part := self._step(lambda: self._tls.read(CHUNK))):
            found.append(part)
        self._write()
        return b"".join(found)

    def send(self, plain: bytes) -> bytes:
        """The bytes to send now."""
        self._kept += plain
        self._write()
        return self._out.read()

    def _shake(self) -> None:
        self._tls.do_handshake()
        self.ready = True

    def _write(self) -> None:
        while self.ready and self._kept:
            done = self._step(lambda: self._tls.write(self._kept))
            if done is None:
                return
            self._kept = self._kept[done:]

    def _step(self, action: Callable[[], T]) -> T | None:
        """None: more input is needed, or the server closed TLS."""
        import ssl  # noqa: PLC0415  (see above)

        try:
            return action()
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return None
        except ssl.SSLError as error:
            raise failure(self._host, error) from None


def said(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error) or type(error).__name__
