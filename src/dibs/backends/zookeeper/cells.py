"""The interface `Cells` over nodes. The value is the node's data; the version is the node's plus one, as 0 means unset.

A put that was answered is remembered until no late copy of it can come. A put that was not answered may have happened.
So each put makes a node with its id in `%written`, in the same transaction. If the put is repeated, that node shows
that it was done; after the reply it is deleted. The node is ephemeral. If the session ended meanwhile, the outcome is
unknown, and the caller gets StoreUnavailable.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from dibs.backends.zookeeper.paths import value_path
from dibs.backends.zookeeper.queue_rule import uuid_of
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Event, Refused, Request
from dibs.backends.zookeeper.wire.executor import ZookeeperExecutor, checked, node_of
from dibs.backends.zookeeper.wire.session import DATA, EXISTENCE, PendingRequest, Session
from dibs.core.cells import FENCE, UNSET_CELL, CellKey, CellValue, Write, record_of, token_of
from dibs.core.queue import LOOK, ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import Conflict, StoreUnavailable

_LARGEST_VERSION = 2**31 - 2
_MOST_UNANSWERED = 64


class ZookeeperCells:
    def __init__(
        self, executor: ZookeeperExecutor, puts: Puts, runtime: Runtime, me: ClientIdentity, chroot: str
    ) -> None:
        self._executor = executor
        self._puts = puts
        self._runtime = runtime
        self._me = me
        self._chroot = chroot

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        path = self._path(cell_key)
        calls = await self._executor.ask([codec.sync(path), codec.get(path)], until)
        node = node_of(calls[1])
        return UNSET_CELL if node is None else CellValue(node.data, node.stat.version + 1)

    async def put(self, write: Write, until: float) -> int:
        now = self._runtime.now()
        if now > write.by:
            raise StoreUnavailable("the write came too late to count")
        puts = self._puts
        puts.forget(now)
        if write.id not in puts.versions:
            await self._executor.ready(until)
            session = self._executor.client.session
            if puts.first_session(write, session) is not session:
                raise StoreUnavailable("the session ended before it was answered")
            write.asked = True
            if write.version <= _LARGEST_VERSION:
                await self._put(write, until)
            puts.answered(write)
        if write.id not in puts.versions:
            there = await self.get(write.cell_key, until)
            raise Conflict(
                f"it is at version {there.version}, not at {write.version}", step="read the value again, then write"
            )
        return puts.versions[write.id]

    async def _put(self, write: Write, until: float) -> None:
        """The reader of the reply notes the version if the put was done, now or before, and deletes the node in
        `%written`, even if the caller no longer waits."""
        path = self._path(write.cell_key)
        directory = path.rpartition("/")[0]
        notes = f"{directory.rpartition('/')[0]}/%written"
        note = f"{notes}/{uuid_of(write.id)}"
        change: Request = (
            codec.put(path, write.value, write.version - 1)
            if write.version
            else codec.create(path, write.value, self._executor.acl, codec.PERSISTENT)
        )
        data = b"%d" % (write.version + 1)
        both = codec.multi([codec.create(note, data, self._executor.acl, codec.EPHEMERAL), change])

        def answered(call: PendingRequest) -> None:
            refused = call.value.errors if isinstance(call.value, Refused) else ()
            if call.error == codec.OK and (not refused or refused[0] == codec.NODE_EXISTS):
                self._puts.done(write)
                self._executor.client.post(codec.delete(note))

        def missing(calls: list[PendingRequest]) -> bool:
            refused = calls[0].value.errors if isinstance(calls[0].value, Refused) else ()
            return codec.NO_NODE in refused and not (write.version and calls[1].error == codec.NO_NODE)

        calls = await self._executor.ask_in(
            [directory, notes], [both, codec.exists(path)], until, [answered], missing=missing
        )
        checked(calls[0])

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        path = self._path(cell_key)

        def told(_: Event) -> None:
            self._executor.client.tell(self._me.inbox, key, LOOK.value)

        watch = (DATA if version else EXISTENCE, path, told)
        asking = codec.get(path, watch=True) if version else codec.exists(path, watch=True)
        try:
            (call,) = await self._executor.ask([asking], until, watch)
            if version:
                node = node_of(call)
                unchanged = node is not None and node.stat.version + 1 == version
            else:
                unchanged = checked(call, codec.NO_NODE) == codec.NO_NODE
            if unchanged:
                await self._me.inbox.wait(key, until)
        finally:
            self._executor.client.send((), drop=[watch])

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        cell_key = CellKey(FENCE, name)
        path = self._path(cell_key)
        while True:
            cell_value = await self.get(cell_key, until)
            highest = token_of(cell_value)
            if shared or token <= highest:
                return highest
            if cell_value.version:
                (call,) = await self._executor.ask([codec.put(path, record_of(token), cell_value.version - 1)], until)
            else:
                first = codec.create(path, record_of(token), self._executor.acl, codec.PERSISTENT)
                (call,) = await self._executor.ask_in([path.rpartition("/")[0]], [first], until)
            if checked(call, codec.BAD_VERSION, codec.NODE_EXISTS) == codec.OK:
                return highest

    def close(self) -> None:
        """Nothing to close: the session belongs to the store."""

    def _path(self, cell_key: CellKey) -> str:
        return self._chroot + value_path(cell_key.space, cell_key.name)


class Puts:
    """The puts of a client: those that were done, until no late copy can come, and the unanswered ones."""

    def __init__(self) -> None:
        self.versions: dict[bytes, int] = {}
        """The version that each put reached."""
        self._ends: deque[tuple[float, bytes]] = deque()
        self._unanswered: dict[bytes, tuple[Session, float]] = {}
        """The session in which each unanswered put was first sent, and until when it may be sent."""
        self._most = _MOST_UNANSWERED

    def first_session(self, write: Write, session: Session) -> Session:
        """The session in which a put was first sent; the given one if it was not sent yet."""
        return self._unanswered.setdefault(write.id, (session, write.by))[0]

    def answered(self, write: Write) -> None:
        self._unanswered.pop(write.id, None)

    def done(self, write: Write) -> None:
        if write.id not in self.versions:
            self.versions[write.id] = write.version + 1
            self._ends.append((write.by, write.id))
        self.answered(write)

    def forget(self, now: float) -> None:
        ends = self._ends
        while ends and ends[0][0] < now:
            with suppress(IndexError):  # another thread took the last one
                self.versions.pop(ends.popleft()[1], None)
        if len(self._unanswered) >= self._most:  # those whose callers gave up stay here
            for id in list(self._unanswered):
                if (write := self._unanswered.get(id)) is not None and write[1] < now:
                    self._unanswered.pop(id, None)
            self._most = 2 * len(self._unanswered) + _MOST_UNANSWERED
