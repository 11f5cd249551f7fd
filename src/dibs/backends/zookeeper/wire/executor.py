"""One way to ask: requests go out back to back, and the answer to the last one is waited for.

Answers are waited for in an inbox, so a blocking caller may lead there and read the socket itself. After the end of its
patience a caller knows nothing: the answer is dropped when it comes, the order of the others stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from dibs.backends.zookeeper.directory import Seen, Shared
from dibs.backends.zookeeper.paths import levels
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import SessionClient
from dibs.backends.zookeeper.wire.codec import Request, refusal
from dibs.backends.zookeeper.wire.session import LOST, PendingRequest, Watch
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreError, StoreUnavailable

Then = Callable[[PendingRequest], None]
_keys = count(1)
_REMADE = 20
"""How often a directory may be removed under us, amidst one request."""


class ZookeeperExecutor:
    def __init__(self, client: SessionClient, inbox: Inbox, acl: bytes, runtime: Runtime) -> None:
        self.client = client
        self._now = runtime.now
        self._call_soon = runtime.call_soon
        self.acl = acl
        self._inbox = inbox
        self._containers = True

    async def ready(self, until: float) -> None:
        """A session is up."""
        if not self.client.up:
            (call,) = await self.ask([codec.sync("/")], until)
            checked(call)

    def may_ask_again(self, until: float) -> bool:
        """After an answer was lost: there is time left, and somebody to connect."""
        return self._now() < until and not self.client.closing

    async def ask(
        self,
        requests: Sequence[Request],
        until: float,
        watch: Watch | None = None,
        drop: Sequence[Watch] = (),
        thens: Sequence[Then] = (),
    ) -> list[PendingRequest]:
        """Send requests and wait for all replies. StoreUnavailable: the last one was not answered, and nothing is known
        of any. The reader calls `thens` with the first replies, in their order."""
        calls = [PendingRequest(request) for request in requests]
        for call, then in zip(calls, thens, strict=False):
            call.then = then
        await self._exchange(calls, until, watch, drop)
        if not calls[-1].ended:
            raise StoreUnavailable(f"no answer in time{self._trouble()}")
        return self._answered(calls)

    async def ask_each(
        self, requests: Sequence[Request], until: float, drop: Sequence[Watch] = ()
    ) -> list[StoreUnavailable | int]:
        """The server's error for each, 0 for those that were done, or why there was no answer to that one. Those whose
        answer was lost are asked again as long as there is time."""
        results: list[StoreUnavailable | int] = [StoreUnavailable("no answer in time")] * len(requests)
        missing, dropped = list(range(len(requests))), drop
        while missing:
            calls = [PendingRequest(requests[number]) for number in missing]
            try:
                await self._exchange(calls, until, None, dropped)
            except StoreUnavailable as error:
                results = [error if isinstance(result, StoreUnavailable) else result for result in results]
            dropped = ()
            for number, call in zip(missing, calls, strict=True):
                if call.ended and call.error != LOST:
                    results[number] = call.error
            missing = [number for number in missing if isinstance(results[number], StoreUnavailable)]
            if not self.may_ask_again(until):
                break
        return results

    async def share(self, shared: Shared, until: float, since: float = FOREVER) -> Seen:
        """The replies to shared requests that were sent after `since`, or after this call."""
        latest = shared.latest
        if latest is not None and latest.sent_at >= since:
            return latest
        key = b"%d" % next(_keys)
        inbox, client = self._inbox, self.client
        replies: list[Seen] = []

        def replied(seen: Seen) -> None:
            replies.append(seen)
            client.tell(inbox, key, b"!")

        inbox.expect(key)
        try:
            self._recover()
            while not client.up:
                await self._arrival(key, until)
            shared.ask(replied)
            while not replies and self._now() < until:
                await inbox.wait(key, until)
        finally:
            inbox.forget(key)
        if not replies:
            raise StoreUnavailable(f"no answer in time{self._trouble()}")
        self._answered(replies[0].calls)
        return replies[0]

    def _answered(self, calls: list[PendingRequest]) -> list[PendingRequest]:
        if calls[0].error == codec.LOGIN_WANTED:  # and then it hangs up
            raise refusal(codec.LOGIN_WANTED)
        if calls[-1].error == LOST:
            raise StoreUnavailable(f"the connection broke before the answer came ({self.client.trouble})")
        return calls

    async def _exchange(
        self, calls: list[PendingRequest], until: float, watch: Watch | None, drop: Sequence[Watch]
    ) -> None:
        """Send requests, and wait in the inbox until the last one has ended, or until then. This thread may read."""
        key = b"%d" % next(_keys)
        inbox, client, last = self._inbox, self.client, calls[-1]
        first = last.then

        def replied(call: PendingRequest) -> None:
            if first is not None:
                first(call)
            client.tell(inbox, key, b"!")

        last.then = replied
        inbox.expect(key)
        try:
            self._recover()
            while not (client.up and self._send(calls, watch, drop)):
                await self._arrival(key, until)
            while not last.ended and self._now() < until:
                await inbox.wait(key, until)
        finally:
            inbox.forget(key)

    def _recover(self) -> None:
        if self._call_soon is None:  # in asyncio the heart reads, and nothing interrupts it
            self.client.recover()

    def _send(self, calls: list[PendingRequest], watch: Watch | None, drop: Sequence[Watch]) -> bool:
        calls[-1].sent_at = self._now()
        return self.client.send(calls, watch, drop, self._call_soon)

    async def ask_in(
        self,
        directories: Sequence[str],
        requests: Sequence[Request],
        until: float,
        thens: Sequence[Then] = (),
        *,
        missing: Callable[[list[PendingRequest]], bool] = lambda calls: calls[0].error == codec.NO_NODE,
    ) -> list[PendingRequest]:
        """The same where the first makes nodes in directories, which are made if they are `missing`. They are made in
        the same breath: a caller that ends in between would leave directories behind that nobody ever used, and which
        not every server removes."""
        making: list[Request] = []
        for _ in range(_REMADE):
            if making:
                requests_too, thens_too = [*making, *requests], [*[_nothing] * len(making), *thens]
                calls = await self.ask(requests_too, until, thens=thens_too)
            else:
                calls = await self.ask(requests, until, thens=thens)
            made, calls = calls[: len(making)], calls[len(making) :]
            if not missing(calls):
                return calls
            if any(call.error == codec.UNIMPLEMENTED for call in made):
                self._containers = False
            elif made and made[-1].error == codec.NO_AUTH:  # above it we need not be allowed to make anything
                raise refusal(codec.NO_AUTH)
            making = self._making(directories)
        raise StoreUnavailable("the directory of this name is removed repeatedly")

    def _making(self, directories: Sequence[str]) -> list[Request]:
        """Containers, which the server removes once they are empty; before 3.5.3 it has none."""
        mode = codec.CONTAINER if self._containers else codec.PERSISTENT
        paths = [path for directory in directories for path in levels(directory)]
        return [codec.create(path, b"", self.acl, mode) for path in paths]

    def _trouble(self) -> str:
        return "" if self.client.up else f" ({self.client.trouble})"

    async def _arrival(self, key: bytes, until: float) -> None:
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
    """The error of a call, if it is one of those that mean something here; anything else is raised."""
    if call.error != codec.OK and call.error not in allowed:
        raise refusal(call.error)
    return call.error


def _nothing(_: PendingRequest) -> None:
    """Nobody waits for that reply."""
