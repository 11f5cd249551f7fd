"""Stripes: a fixed number of locks for any number of keys.

A key's stripe is chosen by a stable hash, the same in every process. Every stripe in use keeps a claim of weight 0 on
the name itself, one per client, whose capacity is the number of stripes: so another number of stripes on that name is
a Mismatch while any stripe is busy, and two ways to split the keys can never be in use at once.
"""

from __future__ import annotations

from zlib import crc32

from dibs.core import names
from dibs.core.client import Client
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options, count_of
from dibs.core.line import LEASES, PERMITS


class Striped:
    """`dibs.Striped` and its asyncio twin are faces of this."""

    def __init__(self, client: Client, name: str, stripes: object, options: Options) -> None:
        self.client = client
        self.name = names.check(name)
        client.require(PERMITS, "stripes")
        self.stripes = count_of(stripes, "stripes")
        self.timeout = options.timeout
        self._options = options
        # Where claims live by the session, only the stripe's own hold ends by itself: the guard has no shorter lease.
        lease = options.lease if options.renew or LEASES in client.store.capabilities else None
        shared = options._replace(owner="client", lease=lease, renew=True, max_hold=None, fair=None)
        self._guard = Lock(
            client, name, shared, kind="striped", capacity=self.stripes, weight=0, share=True
        )  # fmt: skip

    def index(self, key: object) -> int:
        """The stripe of a key: `str`, `bytes` or `int`; 42 and "42" are one key."""
        if isinstance(key, bool) or not isinstance(key, str | bytes | int):
            raise TypeError(f"a key must be a str, bytes or an int, not {key!r}")
        return crc32(key if isinstance(key, bytes) else str(key).encode()) % self.stripes

    def stripe(self, index: int) -> Lock:
        return Lock(self.client, names.stripe(self.name, index), self._options, guard=self._guard)
