"""Interface Grantor: one way from a client to its store (core/acquire.py; of a quorum, core/quorum/grantor.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from dibs.core.grants import Grant, Hold, Request
from dibs.core.queue import Leave
from dibs.core.rule import Claim, Prepared, Standing
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo

Given = bool | Awaitable[bool] | None
"""How far the free path of a release came: see `Grantor.give`."""


class Grantor(Protocol):
    """One way to the store, for callers or for a lane of the watchdog. A lane has a blocking one, on a
    connection of its own. A call raises StoreUnavailable at `until`."""

    def take(self, hold: Hold, request: Request, description: str, prepared: Prepared | None) -> bool | Awaitable[bool]:
        """The free path of an acquire. True: held. False: call `acquire`, which goes on with the grant of the hold, if
        there is one. In asyncio it may return an awaitable of either."""

    def give(self, hold: Hold) -> Given:
        """The free path of a release. True: done. None: not begun, call `release`. Otherwise the hold is over: pass
        the result to `given`, which finishes the release."""

    async def given(self, hold: Hold, answer: bool | Awaitable[bool]) -> None: ...

    async def acquire(self, grant: Grant, weight: int, description: str, deadline: float) -> bool:
        """Acquire, and wait while it is busy. False: busy until the deadline."""

    async def release(self, grant: Grant, until: float) -> None: ...

    async def lighten(self, grant: Grant, weight: int, until: float) -> None:
        """Lower the weight of its claim."""

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Standing | StoreUnavailable | None]: ...

    async def give_back(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        """Remove claims, each with whether its joins were answered. An error for a claim: retry it."""

    async def connect(self, until: float) -> None:
        """Have a connection ready."""

    def round_trip(self) -> float:
        """Seconds that a reply may take."""

    async def inspect(self, name: str, until: float) -> LockInfo: ...

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]: ...

    async def revoke(self, name: str, token: int, until: float) -> bool: ...

    async def evict(self, name: str, token: int, until: float) -> bool: ...

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None: ...

    async def identity(self, until: float) -> str: ...

    async def ping(self, until: float) -> object:
        """Return when the store has answered: a primary, or a majority of a quorum."""

    async def doctor(self, until: float) -> list[Finding]: ...

    def close(self) -> None: ...
