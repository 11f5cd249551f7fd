"""Requests to a server: sent once, or repeated until there is a reply.

A request ends done, not done or unknown. *Refused*: the server replied with an error, so it is not done; the store
decides whether asking again may help. *Unsent* (core/queue.py): it never left this process, so it is not done either.
After any other StoreUnavailable the outcome is unknown, and the caller must handle that.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE
from dibs.core.queue import Replaced, Unsent
from dibs.core.runtime import Runtime
from dibs.errors import StoreUnavailable

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Request_contra = TypeVar("Request_contra", contravariant=True)
Reply_co = TypeVar("Reply_co", covariant=True)


class Transport(Protocol[Request_contra, Reply_co]):
    """The connections of one queue to one server: `Pool` of connections.py, or `AioTransport` for event loops."""

    async def exchange(self, request: Request_contra, until: float) -> Reply_co:
        """Send a request, and wait for the reply. If `until` has passed, a reply that has arrived is still read. Raises
        Refusal."""

    def take_now(self) -> Any:
        """Take an idle connection, a `Connection` or an `AioConnection`. None: none is ready."""

    def give(self, connection: Any, *, is_checked: bool = False) -> None:
        """Return it. `is_checked`: the last exchange on it was complete, so it is known to be reusable."""

    async def connect(self, until: float) -> None:
        """Make sure that a connection is open."""

    def renew(self) -> None:
        """Stop using the connections that are open now."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close the connections without a message to the server."""


class Refusal(Exception):
    """The server replied with an error. Each store has its own subclass."""


class Executor(Generic[Request, Reply]):
    """The base of a store's executor, which knows the store's refusals."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def ask_once(self, request: Request, until: float) -> Reply:
        """Send a request. It is repeated only after a refusal, if that may help."""
        raise NotImplementedError

    async def ask_often(self, request: Request, until: float) -> tuple[Reply, bool]:
        """Repeat an idempotent request until there is a reply. Gives also whether an earlier copy may have run."""
        pause, is_repeated = FIRST_PAUSE, False
        telling: StoreUnavailable | None = None
        while True:
            try:
                return await self.ask_once(request, until), is_repeated
            except Replaced:
                raise
            except StoreUnavailable as error:
                # Prefer the error of a copy that was sent to a later one that says only that time ran out.
                now = self._runtime.now()
                if telling is None or not (is_repeated and (isinstance(error, Unsent) or now >= until)):
                    telling = error
                if now + pause >= until:
                    raise telling from telling.__cause__
                is_repeated = is_repeated or not isinstance(error, Unsent)
            await self.pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def pause(self, seconds: float) -> None:
        await self._runtime.sleep(seconds + self._runtime.jitter(seconds))
