"""Keys, channels and holder ids as Redisson writes them.

The key of a lock is its name. Other keys and channels contain it in braces, which puts them into the same slot of a
cluster; a name that has a brace already stays as it is.
"""

from __future__ import annotations

from uuid import UUID

from dibs.backends.redis.keys import Keys, literal
from dibs.core.cells import CellKey

HOLDER = 56
"""The length of a holder id in bytes."""
_LEAST, _SPAN = 10**18, 8 * 10**18
"""Thread numbers have 19 digits, and fit into Java's long."""


class Names:
    """The keys and channels of one lock.

    >>> Names("invoice").queue, Names("{shop}:invoice").queue
    (b'redisson_lock_queue:{invoice}', b'redisson_lock_queue:{shop}:invoice')
    """

    __slots__ = (
        "deadlines", "key", "latch", "latch_channel", "lock_channel", "permits", "permits_channel", "queue", "readers",
        "rw_channel", "token",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        tagged = name if "{" in name else f"{{{name}}}"
        self.key = name.encode()
        self.queue = f"redisson_lock_queue:{tagged}".encode()
        self.deadlines = f"redisson_lock_timeout:{tagged}".encode()
        self.token = f"redisson_lock_token:{tagged}".encode()
        self.latch = f"redisson_unlock_latch:{tagged}:".encode()
        """The start of a latch: it ends with the id of a claim in hex."""
        self.readers = f"{tagged}:".encode()
        """The start of the keys of readers."""
        self.permits = f"{tagged}:timeout".encode()
        self.lock_channel = f"redisson_lock__channel:{tagged}".encode()
        self.rw_channel = f"redisson_rwlock:{tagged}".encode()
        self.permits_channel = f"redisson_sc:{tagged}".encode()
        self.latch_channel = f"redisson_countdownlatch__channel__{{{name}}}".encode()


class RedissonKeys:
    """The names of a client. `prefix` is what a NameMapper of Java puts before every name."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.own = Keys(prefix)
        """Cells have the keys of the other layout."""
        self.identity = self.own.identity

    def of(self, name: str) -> Names:
        return Names(self._prefix + name)

    def queue(self, name: str) -> bytes:
        return (self._prefix + name).encode()

    def pattern(self, prefix: str) -> bytes:
        return f"{literal(self._prefix + prefix)}*".encode()

    def name(self, key: bytes) -> str | None:
        try:
            name = key.decode()
        except UnicodeDecodeError:
            return None
        return name.removeprefix(self._prefix) if name.startswith(self._prefix) else None

    def cell(self, cell_key: CellKey) -> bytes:
        return self.own.cell(cell_key)


def client_id(id: bytes) -> bytes:
    """The first part of the holder ids of a client."""
    return str(UUID(bytes=id, version=4)).encode()


def holder_id(client: bytes, claim_id: bytes) -> bytes:
    """The id of one hold, unique like that of one thread in Java. It is of the claim, so a request can be repeated.

    >>> holder_id(client_id(bytes(16)), bytes(16))
    b'00000000-0000-4000-8000-000000000000:1000000000000000000'
    """
    return b"%b:%d" % (client, _LEAST + int.from_bytes(claim_id[:8]) % _SPAN)
