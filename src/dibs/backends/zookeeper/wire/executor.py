"""Requests over the session of a client: sent back to back, the caller waits for the last reply.

A caller waits in an inbox, so a blocking caller may lead there and read the socket itself. A caller that runs out of
time does not know the outcome. Its reply is dropped when it arrives, and the order of the others is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from dibs.backends.zookeeper.directory import Replies, Shared
from dibs.backends.zookeeper.paths import levels
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import SessionClient
from dibs.backends.zookeeper.wire.codec import Node, Request, refusal
from dibs.backends.zookeeper.wire.session import LOST, PendingRequest, Watch
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreError, StoreUnavailable

Then = Callable[[PendingRequest], None]
_keys = count(1)
_REMADE = 20
"""How often a directory may be removed during one request."""


class ZookeeperExecutor:
    def __init__(self, client: SessionClient, inbox: Inbox, acl: bytes, runtime: Runtime) -> None:
        self.client = client
        self._now = runtime.now
        self._call_soon = runtime.call_soon
        self.acl = acl
        self._inbox = inbox
        self._containers = True

    async def ready(self, until: float) -> None:
        """Wait until a session is up."""
        if not self.client.up:
            (call,) = await self.ask([codec.sync("/")], until)
            checked(call)

    async def ask(
        self,
        requests: Sequence[Request],
        until: float,
        watch: Watch | None = None,
        thens: Sequence[Then] = (),
    ) -> list[PendingRequest]:
        """Send requests and wait for all replies. StoreUnavailable: the last one was not answered, and the outcome of
        all is unknown. The reader calls `thens` with the first replies, in their order."""
        calls = [PendingRequest(request) for request in requests]
        for call, then in zip(calls, thens, strict=False):
            call.then = then
        await self._exchange(calls, until, watch)
        return self._answered(calls)

    async def delete_each(
        self, paths: Sequence[str], until: float, drop: Sequence[Watch] = ()
    ) -> list[bool | StoreError]:
        """Delete nodes. Returns for each whether it existed, or an error.

        If a reply was lost, the request is sent again while there is time. A node that is missing then was probably
        deleted by the first copy, and counts as existing."""
        results: list[bool | StoreError | None] = [None] * len(paths)
        is_repeated = False
        if drop and not (paths and self.client.up):  # without a connection they are only forgotten
            self.client.send((), drop=drop)
        while True:
            calls = {n: PendingRequest(codec.delete(path)) for n, path in enumerate(paths) if results[n] is None}
            if not calls:
                break
            trouble: StoreUnavailable | None = None
            try:
                await self._exchange(list(calls.values()), until, None, () if is_repeated else drop)
            except StoreUnavailable as error:
                trouble = error
            for n, call in calls.items():
                if call.ended and call.error == codec.NO_NODE:
                    results[n] = is_repeated
                elif call.ended and call.error != LOST:
                    results[n] = call.error == codec.OK or refusal(call.error)
            is_repeated = True
            if self._now() >= until or self.client.closing:
                lost = trouble or StoreUnavailable(f"no answer in time{self._trouble()}")
                results = [lost if result is None else result for result in results]
        return [result for result in results if result is not None]

    async def delete(self, paths: Sequence[str], until: float) -> bool:
        """Delete nodes, as `delete_each`; whether all existed. Raises the first error."""
        return all_existed(await self.delete_each(paths, until))

    async def share(self, shared: Shared, until: float, since: float = FOREVER) -> Replies:
        """The replies to shared requests that were sent after `since`, or after this call."""
        latest = shared.latest
        if latest is not None and latest.sent_at >= since:
            return latest
        found: list[Replies] = []

        def send(wake: Callable[[], None]) -> bool:
            def replied(replies: Replies) -> None:
                found.append(replies)
                wake()

            shared.ask(replied)
            return True

        await self._wait(send, lambda: bool(found), until)
        if not found:
            raise StoreUnavailable(f"no answer in time{self._trouble()}")
        self._answered(found[0].calls)
        return found[0]

    def _answered(self, calls: list[PendingRequest]) -> list[PendingRequest]:
        if calls[0].error == codec.LOGIN_WANTED:  # after this reply the server closes the connection
            raise refusal(codec.LOGIN_WANTED)
        if not calls[-1].ended:
            raise StoreUnavailable(f"no answer in time{self._trouble()}")
        if calls[-1].error == LOST:
            raise StoreUnavailable(f"the connection broke before the answer came ({self.client.trouble})")
        return calls

    async def _exchange(
        self, calls: list[PendingRequest], until: float, watch: Watch | None, drop: Sequence[Watch] = ()
    ) -> None:
        """Send requests, and wait until the last one has ended or time is up."""
        last = calls[-1]

        def send(wake: Callable[[], None]) -> bool:
            def replied(call: PendingRequest) -> None:
                if then is not None:
                    then(call)
                wake()

            last.then = replied
            last.sent_at = self._now()
            return self.client.send(calls, watch, drop, self._call_soon)

        then = last.then
        await self._wait(send, lambda: last.ended, until)

    async def _wait(
        self, send: Callable[[Callable[[], None]], bool], is_done: Callable[[], bool], until: float
    ) -> None:
        """Send once a session is up, and wait in the inbox. `send` gets the function that wakes this caller, and
        returns False if the connection was lost."""
        key = b"%d" % next(_keys)
        inbox, client = self._inbox, self.client
        inbox.expect(key)
        try:
            if self._call_soon is None:  # in asyncio only the heart reads, and nothing interrupts it
                client.recover()
            while not (client.up and send(lambda: client.tell(inbox, key, b"!"))):
                await self._arrival(key, until)
            while not is_done() and self._now() < until:
                await inbox.wait(key, until)
        finally:
            inbox.forget(key)

    async def ask_in(
        self,
        directories: Sequence[str],
        requests: Sequence[Request],
        until: float,
        thens: Sequence[Then] = (),
        *,
        missing: Callable[[list[PendingRequest]], bool] = lambda calls: calls[0].error == codec.NO_NODE,
    ) -> list[PendingRequest]:
        """Send requests as `ask`, where the first one makes nodes in `directories`.

        If the directories are `missing`, they are made in the same write as the repeated requests. Otherwise a caller
        that ends in between would leave unused directories, which not every server removes."""
        making: list[Request] = []
        for _ in range(_REMADE):
            calls = await self.ask([*making, *requests], until, thens=[*[_ignore] * len(making), *thens])
            made, calls = calls[: len(making)], calls[len(making) :]
            if not missing(calls):
                return calls
            if any(call.error == codec.UNIMPLEMENTED for call in made):
                self._containers = False
            elif made and made[-1].error == codec.NO_AUTH:  # the parents may exist without the right to make them
                raise refusal(codec.NO_AUTH)
            # The server removes an empty container. Before 3.5.3 it has none.
            mode = codec.CONTAINER if self._containers else codec.PERSISTENT
            paths = [path for directory in directories for path in levels(directory)]
            making = [codec.create(path, b"", self.acl, mode) for path in paths]
        raise StoreUnavailable("the directory of this name is removed repeatedly")

    def _trouble(self) -> str:
        return "" if self.client.up else f" ({self.client.trouble})"

    async def _arrival(self, key: bytes, until: float) -> None:
        """Wait until a session is up, or cannot be."""
        client = self.client
        if client.closing:
            raise StoreUnavailable("the client was closed")
        client.arrive(self._inbox, key)
        if await self._inbox.wait(key, until) is None and not client.up:
            raise StoreUnavailable(
                f"no server accepted a session ({client.trouble})",
                step="check that the servers run, and that this machine can reach them",
            )
        if (refusal := client.refusal) is not None and not client.up:
            raise StoreError(refusal.what, step=refusal.step)


def checked(call: PendingRequest, *allowed: int) -> int:
    """The error of a request if it is OK or `allowed`; any other error is raised."""
    if call.error != codec.OK and call.error not in allowed:
        raise refusal(call.error)
    return call.error


def all_existed(results: Sequence[bool | StoreError]) -> bool:
    """Whether all nodes existed, by the results of `delete_each`. Raises the first error."""
    for result in results:
        if isinstance(result, StoreError):
            raise result
    return all(results)


def children_of(call: PendingRequest) -> list[str]:
    """The children of a directory; [] if it does not exist."""
    if checked(call, codec.NO_NODE):
        return []
    assert isinstance(call.value, list)
    return call.value


def node_of(call: PendingRequest) -> Node | None:
    """The node, or None if it does not exist."""
    if checked(call, codec.NO_NODE):
        return None
    assert isinstance(call.value, Node)
    return call.value


def _ignore(_: PendingRequest) -> None:
    pass
