"""Locks inside a transaction of the caller: its connection takes them, and the end of the transaction frees them.

There is no lease and nothing to renew: the database keeps others out until the transaction is committed or rolled back.
If the connection breaks, the changes are rolled back, too. So the hold cannot be lost on its own, and leaving a `with`
block frees nothing. The same transaction may take a name again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from dibs.core import names
from dibs.core.client import Client
from dibs.core.deadline import LEAST_PATIENCE, patience
from dibs.core.kinds.lock import not_free
from dibs.core.kinds.options import checked_info, checked_owner, limit_of
from dibs.core.queue import Enclosing, Transaction
from dibs.errors import DibsError


class Within:
    def __init__(self, client: Client, caller: Transaction) -> None:
        self.client = client
        self.caller = caller
        wanted = cast("Enclosing", client.store).server
        if caller.server != wanted:
            raise TypeError(f"{client.shown} needs a connection to {wanted}, not to {caller.server}")

    def describe(self) -> str:
        return self.client.shown


class EnclosedHold(NamedTuple):
    """A lock that a transaction of the caller holds until it ends."""

    name: str
    token: int
    label: str
    since: datetime
    mode: str = "exclusive"

    def acquired_at(self) -> datetime:
        return self.since

    def describe(self) -> str:
        return f"{self.name!r}, token {self.token}"


class EnclosedLock:
    def __init__(self, within: Within, name: object, timeout: object, owner: object, info: object) -> None:
        client = within.client
        self._client = client
        self._caller = within.caller
        self.name = names.check(name)
        self._timeout = patience(timeout)
        self._label = client.label(checked_owner(owner))
        self._info: Mapping[str, Any] = checked_info(info)

    async def acquire(self, timeout: object, blocking: object) -> EnclosedHold | None:
        """Acquire, and wait while it is busy. None: busy until the timeout."""
        return await self._take(limit_of(self._timeout, timeout, blocking))

    async def enter(self) -> EnclosedHold:
        hold = await self._take(self._timeout)
        if hold is None:
            raise await not_free(self._client, self.name, self._timeout, None)
        return hold

    async def _take(self, limit: float | None) -> EnclosedHold | None:
        client = self._client
        began = client.now()
        try:
            encloses = await client.encloses()
            description = client.description(self._label, self._info)
            await self._caller.require_transaction("but the lock ends with one")
            wait = None if limit is None else max(limit - (client.now() - began), 0.0)
            least = max(client.retry if limit is None else limit, LEAST_PATIENCE)
            token = await encloses.enclose(self._caller, client.prefix + self.name, description, wait, least)
        except BaseException as error:
            if not isinstance(error, Exception):  # CancelledError and KeyboardInterrupt are none
                client.reporter.enclosed("cancelled", self.name, self._label, client.now() - began)
                raise
            client.reporter.enclosed("failed", self.name, self._label, client.now() - began, error=error)
            if not isinstance(error, DibsError):
                raise
            raise client.completed(error, self.name) from error.__cause__
        client.reporter.answered()
        waited = client.now() - began
        if token is None:
            client.reporter.enclosed("timed_out" if limit else "busy", self.name, self._label, waited)
            return None
        client.reporter.enclosed("acquired", self.name, self._label, waited, token=token)
        return EnclosedHold(self.name, token, self._label, datetime.now(UTC))

    def describe(self) -> str:
        return self._client.place(self.name)
