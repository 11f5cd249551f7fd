"""Requests to a server: asked once, or asked until answered.

A request ends done, not done or unknown. *Refused*: the server answered with an error, so it is not done; the store
decides whether asking again may help. *Unsent* (core/queue.py): it never left this process, so it is not done either.
Any other StoreUnavailable leaves the outcome unknown, and the caller must know that.
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
    """The way of one queue to one server: `Pool` of connections.py for threads, `AioTransport` for event loops."""

    async def exchange(self, request: Request_contra, until: float) -> Reply_co:
        """`until` may have passed: a reply that has come by then is still read. Raises Refusal."""

    def take_now(self) -> Any:
        """An idle connection for the caller alone: a `Connection`, or an `AioConnection`. None: none is ready."""

    def give(self, connection: Any, *, is_checked: bool = False) -> None:
        """Give it back. `is_checked`: an exchange on it was completed, and left nothing behind."""

    async def connect(self, until: float) -> None:
        """Have a connection ready."""

    def renew(self) -> None:
        """Use no connection any more that is open now."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close what is open, and touch nothing else of the parent's."""


class Refusal(Exception):
    """An error that the server answered with; each store has its own."""


class Executor(Generic[Request, Reply]):
    """The base of a store's own, which knows its refusals."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def ask_once(self, request: Request, until: float) -> Reply:
        """Asked again only after a refusal, if that may help."""
        raise NotImplementedError

    async def ask_often(self, request: Request, until: float) -> tuple[Reply, bool]:
        """Asked until it is answered: for requests that may be done twice. Also whether an earlier copy may have been
        done; one that was never sent was not."""
        pause, is_repeated = FIRST_PAUSE, False
        telling: StoreUnavailable | None = None
        while True:
            try:
                return await self.ask_once(request, until), is_repeated
            except Replaced:
                raise
            except StoreUnavailable as error:
                # That of a copy that may have been done says more than that the time was too short for another one.
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
