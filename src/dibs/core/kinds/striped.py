"""Stripes: a fixed number of locks for any number of keys.

A stable hash, the same in every process, chooses the stripe of a key. While a client uses a stripe, it keeps a guard:
a claim of weight 0 on the name itself, whose capacity is the number of stripes. So another number of stripes is a
Mismatch while any stripe is busy, and all clients split the keys in the same way.
"""

from __future__ import annotations

from zlib import crc32

from dibs.core import names
from dibs.core.client import Client
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options, count_of
from dibs.core.queue import LEASES, PERMITS


class Striped:
    def __init__(self, client: Client, name: str, stripes: object, options: Options) -> None:
        self.client = client
        self.name = names.check(name)
        client.require(PERMITS, "stripes")
        self.stripes = count_of(stripes, "stripes")
        self.timeout = options.timeout
        self._options = options
        # Where claims live by the session, only the hold of the stripe ends early: the guard has no shorter lease.
        lease = options.lease if options.renew or LEASES in client.store.capabilities else None
        shared = options._replace(owner="client", lease=lease, renew=True, max_hold=None, fair=None)
        self._guard = Lock(client, name, shared, kind="striped", capacity=self.stripes, weight=0, share=True)

    def describe(self) -> str:
        return self.client.place(self.name)

    def index(self, key: object) -> int:
        """The stripe of a key: `str`, `bytes` or `int`; 42 and "42" are one key."""
        if isinstance(key, bool) or not isinstance(key, str | bytes | int):
            raise TypeError(f"a key must be a str, bytes or an int, not {key!r}")
        return crc32(key if isinstance(key, bytes) else str(key).encode()) % self.stripes

    def stripe(self, index: int) -> Lock:
        return Lock(self.client, names.stripe(self.name, index), self._options, guard=self._guard)
