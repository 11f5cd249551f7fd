"""An election: a queue whose holder leads. It has a kind of its own, so that no lock of that name interferes.

Leading is holding a lock, with the same lease, token and loss. Following is waiting for another token of the holder.
"""

from __future__ import annotations

from functools import partial

from dibs.core import names
from dibs.core.client import Client
from dibs.core.deadline import FOREVER
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options
from dibs.core.queue import ELECTION, FAIR
from dibs.errors import Mismatch
from dibs.info import LockInfo, Participant


class Election:
    def __init__(self, client: Client, name: str, options: Options) -> None:
        self.client = client
        self.name = names.check(name)
        client.require(FAIR, "elections: it has no queue")
        self._options = options
        self._encoded = client.prefix + name

    def lead(self) -> Lock:
        return Lock(self.client, self.name, self._options, kind=ELECTION)

    async def leader(self) -> Participant | None:
        return self._first(await self.client.look(self.name, self._encoded))

    async def change(self, seen: int | None) -> tuple[Participant | None, int]:
        """The leader and its token, as soon as the token is not `seen`. `seen=None` returns the present leader."""
        while True:
            leader = await self.leader()
            token = 0 if leader is None else leader.token
            if token != seen:
                if seen is not None:
                    self.client.reporter.leader_changed(self.name, leader)
                return leader, token
            watch = partial(self.client.opened.await_change, self._encoded, token)
            await self.client.await_notice(self.name, watch, FOREVER)

    def describe(self) -> str:
        return self.client.place(self.name)

    def _first(self, info: LockInfo) -> Participant | None:
        if not info.holders:
            return None
        if info.kind != ELECTION:
            raise self.client.error(
                Mismatch, self.name, f"busy as {info.kind}, not as an election", info=info,
                step="use one kind for one name",
            )  # fmt: skip
        return info.holders[0]
