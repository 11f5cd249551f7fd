"""Seam 3 over nodes: the value is the node's data as it is, the version its own (one more, as 0 is unset).

A put that was answered is remembered here until no copy of it can come. One that was not may have happened: beside each
put, in the same step, a node of its id comes to `%written`, which says so when it is asked again, and goes once it is
answered. It lives by the session: if that ended meanwhile, what happened is not known, and is said so.
"""

from __future__ import annotations

from dibs.backends.zookeeper.contenders import uuid_of
from dibs.backends.zookeeper.nodes import node_of
from dibs.backends.zookeeper.paths import value_path
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Event, Refused, Request
from dibs.backends.zookeeper.wire.port import Port, checked
from dibs.backends.zookeeper.wire.session import Session
from dibs.backends.zookeeper.wire.watches import DATA, EXISTENCE
from dibs.core.cells import FENCE, UNSET, Kept, Spot, Write, record_of, token_of
from dibs.core.line import LOOK, Me
from dibs.core.runtime import Runtime
from dibs.errors import Conflict, StoreUnavailable

_LARGEST_VERSION = 2**31 - 2
_REMADE = 20
"""How often directories may be removed under us, amidst one put."""


class ZookeeperCells:
    def __init__(
        self, port: Port, written: dict[bytes, tuple[int, float]], runtime: Runtime, me: Me, chroot: str
    ) -> None:
        self._port = port
        self._written = written
        self._runtime = runtime
        self._me = me
        self._chroot = chroot
        self._asked_in: dict[bytes, Session] = {}
        """The session in which a put that is not answered yet was first asked."""

    async def get(self, spot: Spot, until: float) -> Kept:
        path = self._path(spot)
        calls = await self._port.ask([codec.sync(path), codec.get(path)], until)
        node = node_of(calls[1])
        return UNSET if node is None else Kept(node.data, node.stat.version + 1)

    async def put(self, write: Write, until: float) -> int:
        now = self._runtime.now()
        if now > write.by:
            raise StoreUnavailable("it came too late to be put")
        self._forget(now)
        if write.id in self._written:
            return self._written[write.id][0]
        await self._port.ready(until)
        session = self._port.wire.session
        if write.asked and self._asked_in.get(write.id, session) is not session:
            raise StoreUnavailable("the session ended before it was answered")
        write.asked = True
        self._asked_in[write.id] = session
        version = await self._put(write, until)
        self._asked_in.pop(write.id, None)
        self._written[write.id] = (version, write.by)
        return version

    async def _put(self, write: Write, until: float) -> int:
        path = self._path(write.spot)
        directory = path.rpartition("/")[0]
        notes = f"{directory.rpartition('/')[0]}/%written"
        note = f"{notes}/{uuid_of(write.id)}"
        if write.version > _LARGEST_VERSION:
            raise await self._conflict(write, until)
        change: Request = (
            codec.put(path, write.value, write.version - 1)
            if write.version
            else codec.create(path, write.value, self._port.acl, codec.PERSISTENT)
        )
        data = b"%d" % (write.version + 1)
        both = codec.multi([codec.create(note, data, self._port.acl, codec.EPHEMERAL), change])
        for _ in range(_REMADE):
            call, there = await self._port.ask([both, codec.exists(path)], until)
            checked(call)
            if not isinstance(call.value, Refused) or call.value.errors[0] == codec.NODE_EXISTS:
                self._port.wire.post(codec.delete(note))
                return write.version + 1
            if codec.NO_NODE not in call.value.errors or (write.version and there.error == codec.NO_NODE):
                raise await self._conflict(write, until)
            await self._port.make([directory, notes], until)
        raise StoreUnavailable("the directory of this name is removed again and again")

    async def watch(self, spot: Spot, version: int, key: bytes, until: float) -> None:
        path = self._path(spot)

        def told(_: Event) -> None:
            self._port.wire.tell(self._me.inbox, key, LOOK.value)

        watch = (DATA if version else EXISTENCE, path, told)
        asking = codec.get(path, watch=True) if version else codec.exists(path, watch=True)
        try:
            (call,) = await self._port.ask([asking], until, watch)
            if version:
                node = node_of(call)
                unchanged = node is not None and node.stat.version + 1 == version
            else:
                unchanged = checked(call, codec.NO_NODE) == codec.NO_NODE
            if unchanged:
                await self._me.inbox.wait(key, until)
        finally:
            self._port.wire.send((), drop=[watch])

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        spot = Spot(FENCE, name)
        path = self._path(spot)
        while True:
            kept = await self.get(spot, until)
            highest = token_of(kept)
            if shared or token <= highest:
                return highest
            if kept.version:
                (call,) = await self._port.ask([codec.put(path, record_of(token), kept.version - 1)], until)
            else:
                first = codec.create(path, record_of(token), self._port.acl, codec.PERSISTENT)
                (call,) = await self._port.ask_in([path.rpartition("/")[0]], [first], until)
            if checked(call, codec.BAD_VERSION, codec.NODE_EXISTS) == codec.OK:
                return highest

    def close(self) -> None:
        """The session is the store's."""

    def _path(self, spot: Spot) -> str:
        return self._chroot + value_path(spot.space, spot.name)

    async def _conflict(self, write: Write, until: float) -> Conflict:
        there = await self.get(write.spot, until)
        return Conflict(f"it is at version {there.version}, not at {write.version}", step="read it again, then write")

    def _forget(self, now: float) -> None:
        for id in [id for id, (_, by) in self._written.items() if by < now]:
            del self._written[id]
