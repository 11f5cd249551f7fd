"""The figures of whole stores for Prometheus, in its text format: `app` is an ASGI application, and `dibs exporter`
serves the same text.

Each scrape needs one bounded scan of each store (`dibs.monitor.scan`). Scrapes at the same time share a scan, and a
scan serves all scrapes of the next second: a store is read at most once a second, however many scrapers there are. A
scan runs in a thread of its own. If it fails, or takes longer than the timeout, the scrape shows `dibs_store_up 0` and
no other gauge of that store.

Counters are sampled: they compare consecutive scans (`dibs.monitor.changes`), so they depend on scrapes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NamedTuple

import dibs
from dibs._shared import place
from dibs.info import LockInfo
from dibs.monitor.changes import Change, Follower
from dibs.monitor.groups import OTHER, Group, grouping
from dibs.monitor.scan import Scan, oldest_wait, scan, sync_clients

TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT = 5.0
"""Seconds that a scrape waits for a store: half of Prometheus's default `scrape_timeout`."""
_SHARED_FOR = 1.0
_MOST_GROUPS = 10_000
"""Groups of a store that have counters; further ones become `other`. A rule of the caller may make any number."""

METRICS = {
    "dibs_store_up": ("gauge", "1 if the store answered this scan in time, else 0."),
    "dibs_store_scan_duration_seconds": ("gauge", "Seconds that the scan of the store took."),
    "dibs_store_names": ("gauge", "Names that are held or waited for, up to the bound of a scan."),
    "dibs_store_complete": ("gauge", "0 if the store has more names than a scan reads, else 1."),
    "dibs_store_scans_total": ("counter", "Scans of the store, with those that failed."),
    "dibs_store_held": ("gauge", "Holders."),
    "dibs_store_waiting": ("gauge", "Waiters."),
    "dibs_store_oldest_wait_seconds": ("gauge", "Seconds that the longest-waiting waiter has waited; 0 if none waits."),
    "dibs_store_permits_used": ("gauge", "Permits of semaphores that are held."),
    "dibs_store_permits_limit": ("gauge", "Permits of the semaphores that are held or waited for."),
    "dibs_store_handovers_total": ("counter", "Sampled: holders in a scan that were not in the scan before."),
    "dibs_store_expired_total": (
        "counter", "Sampled: holds that ended by their lease between two scans. Needs three scans in a lease.",
    ),
}  # fmt: skip
"""Type and help of each metric, in the order of the text."""

Labels = tuple[tuple[str, str], ...]
Samples = MutableMapping[str, list[tuple[Labels, float]]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Totals(NamedTuple):
    """The counters of a group."""

    handovers: int = 0
    expired: int = 0


class Figures(NamedTuple):
    """What one scan shows; for a scan that failed, only that it did."""

    by_group: Mapping[str, list[LockInfo]]
    scan: Scan | None = None


class _Store:
    """One store: at most one scan at a time, and one a second."""

    def __init__(self, client: dibs.Client, group: Group, timeout: float) -> None:
        self.name = place(client)
        self.scans = 0
        self.totals: dict[str, Totals] = {}
        self._client, self._group_of, self._timeout = client, grouping(group), timeout
        self._follower = Follower()
        self._lock = threading.Lock()
        self._pending: Future[Figures] | None = None
        self._ended = 0.0
        """When the last scan ended, by the monotonic clock."""

    async def figures(self) -> Figures:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._shared()), self._timeout)
        except TimeoutError:
            return Figures({})

    def _shared(self) -> Future[Figures]:
        """The scan under way, or a recent one, or a new one."""
        with self._lock:
            pending = self._pending
            if pending is not None and not (pending.done() and self._ended + _SHARED_FOR <= time.monotonic()):
                return pending
            pending = self._pending = Future()
            pending.set_running_or_notify_cancel()  # a scraper that gives up must not cancel it for the others
            try:
                threading.Thread(target=self._scan, args=(pending,), name="dibs-exporter", daemon=True).start()
            except BaseException:
                self._pending = None
                raise
            return pending

    def _scan(self, pending: Future[Figures]) -> None:
        self.scans += 1
        try:
            found = self._read()
        except BaseException as error:  # noqa: BLE001  (a fault in the caller's `group` reaches the scrapers)
            self._ended = time.monotonic()
            pending.set_exception(error)
        else:
            self._ended = time.monotonic()
            pending.set_result(found)

    def _read(self) -> Figures:
        try:
            seen = scan(self._client)
        except dibs.DibsError:
            return Figures({})
        by_group: dict[str, list[LockInfo]] = {group: [] for group in self.totals}
        for info in seen.locks:
            by_group.setdefault(self._group(info.name), []).append(info)
        changes = self._follower.changes(seen)
        self._count(changes.taken, Totals(handovers=1))
        self._count(changes.expired, Totals(expired=1))
        if seen.took > self._timeout:  # its scrapers were told that it failed, and its figures are old now
            return Figures({})
        return Figures(by_group, seen)

    def _count(self, changes: Iterable[Change], more: Totals) -> None:
        for change in changes:
            group = self._group(change.name)
            now = self.totals[group]
            self.totals[group] = Totals(now.handovers + more.handovers, now.expired + more.expired)

    def _group(self, name: str) -> str:
        """The group; a new one gets its counters at 0, so that Prometheus sees the first increase."""
        group = str(self._group_of(name))
        if group not in self.totals:
            if len(self.totals) >= _MOST_GROUPS:
                group = OTHER
            self.totals.setdefault(group, Totals())
        return group


class Exporter:
    """The text for Prometheus about some stores.

    Args:
        clients: One for each store. They stay open, and the caller closes them.
        group: The rule that turns a name into its group: None, patterns, or a function.
        timeout: Seconds that a scrape waits for a store.

    Raises:
        ValueError: There is no client, or two are of the same store.
        TypeError: A client is not one of the sync API, or `group` is no rule.

    Example:
        >>> import asyncio, dibs
        >>> with dibs.connect("memory://example") as client, client.lock("invoice:42"):
        ...     text = asyncio.run(Exporter([client]).text())
        >>> [line for line in text.splitlines() if line.startswith("dibs_store_held")]
        ['dibs_store_held{store="memory://example",group="invoice:*"} 1']
    """

    def __init__(self, clients: Iterable[dibs.Client], group: Group = None, timeout: float = TIMEOUT) -> None:
        self._stores = [_Store(client, group, timeout) for client in sync_clients(clients, "the exporter")]
        names = [store.name for store in self._stores]
        if len(set(names)) < len(names):
            raise ValueError(f"each store can be exported once: {', '.join(sorted(names))}")

    async def text(self) -> str:
        """Scan all stores at the same time, and write their figures."""
        samples: Samples = {name: [] for name in METRICS}
        figures = await asyncio.gather(*(store.figures() for store in self._stores))
        for store, found in zip(self._stores, figures, strict=True):
            _add(samples, store, found)
        return "".join(_family(name, samples[name]) for name in METRICS if samples[name])


def _add(samples: Samples, store: _Store, figures: Figures) -> None:
    own: Labels = (("store", store.name),)
    seen = figures.scan
    samples["dibs_store_up"].append((own, seen is not None))
    samples["dibs_store_scans_total"].append((own, store.scans))
    for group, totals in store.totals.copy().items():
        labels = (*own, ("group", group))
        samples["dibs_store_handovers_total"].append((labels, totals.handovers))
        samples["dibs_store_expired_total"].append((labels, totals.expired))
    if seen is None:
        return
    samples["dibs_store_scan_duration_seconds"].append((own, seen.took))
    samples["dibs_store_names"].append((own, len(seen.locks)))
    samples["dibs_store_complete"].append((own, seen.complete))
    now = datetime.now(UTC)
    for group, locks in figures.by_group.items():
        labels = (*own, ("group", group))
        samples["dibs_store_held"].append((labels, sum(len(info.holders) for info in locks)))
        samples["dibs_store_waiting"].append((labels, sum(len(info.waiters) for info in locks)))
        samples["dibs_store_oldest_wait_seconds"].append((labels, oldest_wait(locks, now)))
        semaphores = [info for info in locks if info.kind == "semaphore"]
        if semaphores:
            used = sum(one.weight for info in semaphores for one in info.holders)
            samples["dibs_store_permits_used"].append((labels, used))
            samples["dibs_store_permits_limit"].append((labels, sum(info.capacity for info in semaphores)))


def _family(name: str, samples: Iterable[tuple[Labels, float]]) -> str:
    kind, text = METRICS[name]
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{key}="{escaped(said)}"' for key, said in labels)
        lines.append(f"{name}{{{pairs}}} {round(value, 6)}")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    r"""The value of a label between its quotes.

    >>> print(escaped('a "b"\\c'))
    a \"b\"\\c
    """
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def app(
    *clients: dibs.Client, group: Group = None, timeout: float = TIMEOUT
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Make an ASGI application that serves the metrics of whole stores at any path.

    It has no authentication of its own. An async program also passes sync clients: a scan runs in a thread.

    Args:
        clients: One for each store, made with `dibs.connect()`. They stay open, and the caller closes them.
        group: The rule that turns a name into its group: None, the default rule; a list of patterns; or a function,
            such as `str` for the name itself. Each group is a label value, so a store should have few.
        timeout: Seconds that a scrape waits for a store.

    Raises:
        ValueError: There is no client, or two are of the same store.
        TypeError: A client is not one of the sync API, or `group` is no rule.

    Example:
        >>> client = dibs.connect("memory://example")
        >>> metrics = app(client)
    """
    exporter = Exporter(clients, group, timeout)

    async def metrics(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"the exporter serves http, not {scope['type']!r}")
        if scope["method"] in ("GET", "HEAD"):
            status, text = 200, await exporter.text()
        else:
            status, text = 405, "use GET\n"
        body = text.encode()
        headers = [(b"content-type", TYPE.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return metrics
