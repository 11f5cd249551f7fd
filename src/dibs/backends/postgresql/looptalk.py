"""Questions on a connection that is somebody's own, from an event loop: see talk.py."""

from __future__ import annotations

import asyncio
from _thread import LockType

import psycopg
from psycopg.pq.abc import PGresult

from dibs.backends.common.aio_wait import readable
from dibs.backends.postgresql.answers import Refusal
from dibs.backends.postgresql.connection import Call, PostgresqlConnection, broken
from dibs.core.runtime import Runtime
from dibs.errors import StoreUnavailable

_GLANCE = 0.002
"""Seconds between two looks at a connection that a thread uses: the watchdog's, which renews."""


class LoopTalk:
    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now

    async def exchange(self, link: PostgresqlConnection, call: Call, until: float) -> PGresult:
        now = self._now()
        try:
            link.begin(call)
        except psycopg.Error as error:
            link.close()
            raise broken(error) from None
        trip = link.round_trip
        result = await self.arrived(link, min(max(until, now + trip.least), now + trip.attempt))
        if result is None:
            link.close()
            raise StoreUnavailable("the server did not answer in time")
        link.note(result)
        return result

    async def arrived(self, link: PostgresqlConnection, until: float) -> PGresult | None:
        try:
            while (result := link.received()) is None:
                patience = until - self._now()
                if not await readable(link.fileno(), patience, writable=not link.is_flushed):
                    return None
            return result
        except psycopg.Error as error:
            link.close()
            raise broken(error) from None
        except Refusal:
            raise
        except BaseException:
            link.close()
            raise

    async def have(self, busy: LockType, until: float) -> bool:
        while not busy.acquire(blocking=False):
            if self._now() >= until:
                return False
            await asyncio.sleep(_GLANCE)
        return True
