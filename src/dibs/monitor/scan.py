"""One bounded scan of a store, for the exporter and `dibs top`: the locks that are held or waited for. A scan asks the
store page by page, and stops after `MOST` names: then it is not complete, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice
from time import monotonic
from typing import NamedTuple

import dibs
from dibs.info import LockInfo, elapsed

MOST = 10_000
"""Most names of a scan."""
SORTS = ("pressure", "waiters", "age", "name")


class Scan(NamedTuple):
    as_of: datetime
    """When the scan began. The store changed while it was read: pages are consistent, the whole is not."""
    took: float
    locks: list[LockInfo]
    """In the order of the store."""
    complete: bool = True
    """False: there are more names."""


def scan(client: dibs.Client, prefix: str = "") -> Scan:
    """Raises what `Client.locks` raises."""
    began, as_of = monotonic(), datetime.now(UTC)
    found = list(islice(client.locks(prefix), MOST + 1))
    return Scan(as_of, monotonic() - began, found[:MOST], len(found) <= MOST)


def sync_clients(clients: Iterable[object], program: str) -> list[dibs.Client]:
    """Raises TypeError or ValueError, and names the program that needs them."""
    found = []
    for client in clients:
        if not isinstance(client, dibs.Client):
            raise TypeError(f"{program} takes clients of dibs.connect(), not {client!r}")
        found.append(client)
    if not found:
        raise ValueError(f"{program} needs at least one client")
    return found


def pressure(info: LockInfo, now: datetime) -> float:
    """The contention of a lock, in waiter-seconds: how long its waiters have waited, in sum."""
    return sum(elapsed(one, now) or 0.0 for one in info.waiters)


def sort_key(order: str, now: datetime) -> Callable[[LockInfo], tuple[object, ...]]:
    """`order`: one of SORTS. Locks that are equal in it are sorted by name."""
    if order == "waiters":
        return lambda info: (-len(info.waiters), info.name)
    if order == "age":
        return lambda info: (-max((elapsed(one, now) or 0.0 for one in info.holders), default=0.0), info.name)
    if order == "name":
        return lambda info: (info.name,)
    return lambda info: (-pressure(info, now), info.name)


def oldest_wait(locks: Iterable[LockInfo], now: datetime) -> float:
    """Seconds that the first of all waiters has waited; 0.0 if none waits."""
    return max((elapsed(one, now) or 0.0 for info in locks for one in info.waiters), default=0.0)
