"""The bytes between us and the wire: as they are, or in TLS. No I/O, no threads: callers hold a lock.

    to_send = channel.begin()                 # what goes out first
    plain = channel.receive(raw)              # what came in, read; empty while hands are still being shaken
    to_send = channel.send(plain)             # what we say, as it goes out
    to_send = channel.outgoing()              # what else must go out now: ask after every receive

`Tls` keeps what is said before it is `ready` and gives it out with `outgoing`. A certificate that will not do, theirs
or ours, is a StoreError: another try changes nothing. Whatever else goes wrong in TLS is StoreUnavailable. After either
`outgoing` still has the word to the other side why we hang up. A stream that breaks off is silence, here.
"""

from __future__ import annotations

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
        """What was said, as far as it can be encrypted: not while hands are shaken, for the first time or anew."""
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
