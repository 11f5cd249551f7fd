"""The parts of an open store that its queue, its cells and `doctor` share."""

from __future__ import annotations

from typing import NamedTuple

from dibs.backends.redis.address import Address
from dibs.backends.redis.executor import RedisExecutor
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.scripts import Requests
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.core.deadline import FOREVER
from dibs.core.queue import ClientIdentity
from dibs.core.rule import Claim, Prepared
from dibs.core.runtime import Runtime

SPIN = 0.1
"""Seconds between two polls where there are no messages."""


class Context(NamedTuple):
    executor: RedisExecutor
    subscriber: RedisSubscriber | None
    """None with wake="spin": there are no messages, and waiters poll."""
    runtime: Runtime
    identity: ClientIdentity
    keys: Keys
    address: Address

    @property
    def channel(self) -> bytes:
        """The channel of this client, on which scripts report its new holds."""
        return self.keys.client(self.identity.id)

    def prepare(self, prepared: Prepared, claim: Claim) -> Requests:
        """Pack the requests of a lock object, and cache them."""
        prepared.request = made = Requests(claim, self.channel, self.keys.queue(claim.name), self.keys.floor)
        return made

    @property
    def poll_interval(self) -> float:
        return FOREVER if self.subscriber is not None else SPIN
