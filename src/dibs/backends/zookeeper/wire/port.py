"""One way to ask: requests go out back to back, and the answer to the last one is waited for.

Answers are waited for in an inbox, so a blocking caller may lead there and read the socket itself. After the end of its
patience a caller knows nothing: the answer is dropped when it comes, the order of the others stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from dibs.backends.zookeeper.paths import levels
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import Wire
from dibs.backends.zookeeper.wire.codec import Request, refusal
from dibs.backends.zookeeper.wire.session import LOST, Call
from dibs.backends.zookeeper.wire.watches import Watch
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreError, StoreUnavailable

_keys = count(1)
_SLICE = 1.0
"""Nobody waits longer without a look at the clock."""
_REMADE = 20
"""How often a directory may be removed under us, amidst one request."""


class Port:
    def __init__(self, wire: Wire, inbox: Inbox, acl: bytes, runtime: Runtime) -> None:
        self.wire = wire
        self._now = runtime.now
        self._soon = runtime.soon
        self.acl = acl
        self._inbox = inbox
        self._containers = True

    async def ready(self, until: float) -> None:
        """A session is up."""
        if not self.wire.up:
            (call,) = await self.ask([codec.sync("/")], until)
            checked(call)

    def may_ask_again(self, until: float) -> bool:
        """After an answer was lost: there is time left, and somebody to connect."""
        return self._now() < until and not self.wire.closing

    async def ask(
        self, requests: Sequence[Request], until: float, watch: Watch | None = None, drop: Sequence[Watch] = ()
    ) -> list[Call]:
        """All of them answered; raises StoreUnavailable if the last one was not: then nothing is known of any."""
        calls = [Call(request) for request in requests]
        last, wire = calls[-1], self.wire
        hand = self._inbox.lead() if wire.up else None
        if hand is None or not self._ask_alone(calls, until, watch, drop):
            await self._ask_among_others(calls, until, watch, drop)
        if not last.ended:
            raise StoreUnavailable(f"no answer in time{self._trouble()}")
        if calls[0].error == codec.LOGIN_WANTED:  # and then it hangs up
            raise refusal(codec.LOGIN_WANTED)
        if last.error == LOST:
            raise StoreUnavailable(f"the connection broke before the answer came ({wire.trouble})")
        return calls

    def _ask_alone(self, calls: list[Call], until: float, watch: Watch | None, drop: Sequence[Watch]) -> bool:
        """While nobody else reads: read the answer oneself. False: it could not be sent."""
        inbox, wire, last = self._inbox, self.wire, calls[-1]
        try:
            wire.recover()
            if not wire.send(calls, watch, drop):
                return False
            while not last.ended and (left := until - self._now()) > 0:
                others = wire.receive(min(left, _SLICE))
                if others:
                    inbox.deliver_all(others)
            return True
        finally:
            inbox.resign()

    async def _ask_among_others(
        self, calls: list[Call], until: float, watch: Watch | None, drop: Sequence[Watch]
    ) -> None:
        """Whoever reads brings the answer, perhaps ourselves."""
        key = b"%d" % next(_keys)
        inbox, wire, last = self._inbox, self.wire, calls[-1]
        last.then = lambda _: wire.tell(inbox, key, b"!")
        inbox.expect(key)
        try:
            while not (wire.up and wire.send(calls, watch, drop, self._soon)):
                await self._arrival(key, until)
            while not last.ended and self._now() < until:
                await inbox.wait(key, until)
        finally:
            inbox.forget(key)

    async def ask_in(self, directories: Sequence[str], requests: Sequence[Request], until: float) -> list[Call]:
        """The same where the first makes a node in directories, which are made if they are not there."""
        for _ in range(_REMADE):
            calls = await self.ask(requests, until)
            if calls[0].error != codec.NO_NODE:
                return calls
            await self.make(directories, until)
        raise StoreUnavailable("the directory of this name is removed again and again")

    async def make(self, directories: Sequence[str], until: float) -> None:
        """Containers, which the server removes once they are empty; before 3.5.3 it has none."""
        paths = [path for directory in directories for path in levels(directory)]
        mode = codec.CONTAINER if self._containers else codec.PERSISTENT
        calls = await self.ask([codec.create(path, b"", self.acl, mode) for path in paths], until)
        if any(call.error == codec.UNIMPLEMENTED for call in calls):
            self._containers = False
        elif calls[-1].error == codec.NO_AUTH:  # above them we may not be allowed to make anything, nor need to
            raise refusal(codec.NO_AUTH)

    def _trouble(self) -> str:
        return "" if self.wire.up else f" ({self.wire.trouble})"

    async def _arrival(self, key: bytes, until: float) -> None:
        wire = self.wire
        if wire.closing:
            raise StoreUnavailable("its client was closed")
        wire.arrive(self._inbox, key)
        if await self._inbox.wait(key, until) is None and not wire.up:
            raise StoreUnavailable(f"no server took the session up ({wire.trouble})")
        if (refusal := wire.refusal) is not None and not wire.up:
            raise StoreError(refusal.what, step=refusal.step)


def checked(call: Call, *allowed: int) -> int:
    """The error of a call, if it is one of those that mean something here; anything else is raised."""
    if call.error != codec.OK and call.error not in allowed:
        raise refusal(call.error)
    return call.error
