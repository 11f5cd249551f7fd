"""Samples of one store for any number of viewers, taken by one thread, and only while somebody views.

The sampler scans all names at most once a second, and more seldom if a scan takes long. In between it reads the
names that are shown again, once a second, so that their changes are seen soon. A store that does not answer
leaves the last sample in place, with the error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice, zip_longest
from time import monotonic, thread_time, time

import dibs
from dibs._shared import place
from dibs.errors import BadName, DibsError
from dibs.info import Break, LockInfo, clip, elapsed, seconds_since
from dibs.monitor import break_log
from dibs.monitor.changes import end
from dibs.monitor.history import KINDS, History
from dibs.monitor.scan import MOST

TICK = 1.0
"""Seconds between two samples."""
CPU_SHARE, TIME_SHARE = 0.08, 0.15
"""Most of a core, and of the time, that scans of all names may take: the store works during the rest of the time."""
LINGER = 5.0
"""Seconds that sampling goes on after the last request."""
MOST_SHOWN = 200
"""Most names that are read between two scans."""
_SLACK = 0.5
"""Seconds by which the remaining lease of a hold may rise without a renewal: the request took longer the first time."""
_JITTER = 0.1
"""Seconds by which a scan may end late before the shown names are read apart from it."""
_LONGEST_ERROR = 500
_log = logging.getLogger("dibs.dashboard")


class Entry:
    """A lock as it was last seen, and the leases of its holders."""

    __slots__ = ("at", "info", "leases", "renewed", "scan", "seen", "vacant")

    def __init__(self, info: LockInfo, at: datetime, scan: int) -> None:
        self.info = info
        self.at = at
        self.scan = scan
        """The number of the scan during which, or after which, it was read."""
        self.leases = {one.key: one.remaining for one in info.holders}
        """The largest remaining time that was seen of each hold: the store does not know the lease itself."""
        self.renewed: set[int] = set()
        """Tokens of the holds that were seen to be renewed."""
        self.seen = {
            (kind, one.key): at
            for kind, some in zip(KINDS, (info.holders, info.waiters), strict=True)
            for one in some
            if elapsed(one, at) is None
        }
        """When somebody was first seen to hold or to wait whose beginning is not known."""
        self.vacant = not info.holders
        """Whether nobody held it in the last two samples."""

    def trouble(self) -> str | None:
        """The warning that the page shows with this lock, or None."""
        if self.vacant and self.info.waiters:
            return "nobody holds it"
        for one in self.info.holders:
            lease = self.leases[one.key]
            renewed = one.token in self.renewed or (elapsed(one, self.at) or 0.0) > lease
            if renewed and one.remaining < lease / 2:
                return "renewals are late"
        return None


class Viewer:
    """Somebody who views the store, until `Sampler.leave`."""

    def __init__(self, wake: Callable[[], None], shown: Callable[[], Iterable[str]], opened: str | None = None) -> None:
        self.wake = wake
        """Called by the sampler's thread after each sample."""
        self.opened = opened
        """The name whose page is shown."""
        self.shown = shown
        """The names that are shown to the viewer, most important first."""


class Sampler:
    def __init__(self, client: dibs.Client) -> None:
        self.client = client
        self.lock = threading.RLock()
        """Guards everything below; never held while the store is asked."""
        self.history = History()
        self.entries: dict[str, Entry] = {}
        self.contended: dict[str, LockInfo] = {}
        """The locks with waiters."""
        self.held = 0
        """How many names are held."""
        self.version = int(time() * 1000)
        """Rises with each change, and with each sample while anybody waits; not with a draining lease. It starts at the
        clock: a restarted process reuses none."""
        self.sample = 0
        """How many samples were taken."""
        self.is_known = False
        """Whether a sample was taken since somebody views the store."""
        self.scans = 0
        """How many scans of all names were taken."""
        self.began = self.as_of = self.scanned_at = datetime.now(UTC)
        self.complete = True
        self.error: str | None = None
        self.breaks: dict[str, Break | None] = {}
        """The last `dibs break` of each name whose page is shown."""
        self.latency = 0.0
        """Seconds that the last request for one name took."""
        self._viewers: list[Viewer] = []
        self._wanted_until = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._next_scan = 0.0
        self._begun = 0
        """Scans that have begun."""
        self._shown_at = 0.0
        """When the shown names were last read."""

    @property
    def running(self) -> bool:
        return self._thread is not None

    def want(self) -> None:
        """Take samples for some seconds from now on."""
        with self.lock:
            self._wanted_until = monotonic() + LINGER
            self._start()

    def join(self, viewer: Viewer) -> None:
        with self.lock:
            self._viewers.append(viewer)
            self._start()

    def leave(self, viewer: Viewer) -> None:
        with self.lock:
            self._viewers.remove(viewer)

    def close(self) -> None:
        """End the thread; a later viewer starts another."""
        with self.lock:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None:
            thread.join(TICK)  # it is a daemon: a request that is under way cannot delay the end of the process

    def _start(self) -> None:
        if self._thread is None:
            self._stop = threading.Event()
            self._next_scan = 0.0
            self.is_known = False  # nothing that was seen before is recent
            self._thread = threading.Thread(target=self._run, args=[self._stop], name="dibs-sampler", daemon=True)
            self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        while True:
            began = monotonic()
            self._take(baseline=not self.is_known)
            with self.lock:
                if stop.is_set():
                    return
                if not self._viewers and monotonic() > self._wanted_until:
                    self._thread = None
                    return
            self._wake()
            if stop.wait(max(began + TICK - monotonic(), 0.05)):
                return

    def _take(self, *, baseline: bool) -> None:
        """Take one sample. `baseline`: nobody viewed the store before, so differences are no changes."""
        try:
            if monotonic() >= self._next_scan:
                self._scan(baseline=baseline)
            else:
                self._read_shown()
            self._read_opened()
            error = None
        except (DibsError, OSError) as raised:
            error = clip(raised, _LONGEST_ERROR)
        except Exception as raised:  # noqa: BLE001  (if the thread died, old rows would be shown as new for ever)
            _log.warning("cannot sample %s", place(self.client), exc_info=True)
            error = f"the samples failed ({type(raised).__name__}); the log of the dashboard says why"
        with self.lock:
            self.version += self.error != error
            self.error = error
            self.sample += 1
            self.is_known = True

    def _scan(self, *, baseline: bool) -> None:
        began, spent, as_of = monotonic(), thread_time(), datetime.now(UTC)
        self._begun = scan = self._begun + 1
        try:
            found = list(self._all_names(baseline=baseline))
        finally:  # also after a failure: the store may be overloaded
            pause = max((thread_time() - spent) / CPU_SHARE, (monotonic() - began) / TIME_SHARE)
            self._next_scan = began + max(TICK * 0.9, pause)
        complete, seen = len(found) <= MOST, {info.name: info for info in found[:MOST]}
        with self.lock:
            for name, entry in self.entries.items():
                if name not in seen and entry.scan < scan:
                    seen[name] = LockInfo(name=name)
            changed = False
            for name, info in seen.items():
                known = self.entries.get(name)
                if known is None or known.scan < scan:  # else it was read meanwhile, and is newer
                    unsure = baseline or not (complete or info.holders or info.waiters)
                    changed = self._note(info, as_of, baseline=unsure) or changed
            self.version += changed or self.scans == 0 or self.complete != complete
            self.as_of = self.scanned_at = as_of
            self.complete = complete
            self.scans += 1
        asked = self._shown_at = monotonic()
        name = next(iter(self.entries), "dibs")
        self._inspect(name)
        self.latency = monotonic() - asked

    def _all_names(self, *, baseline: bool) -> Iterator[LockInfo]:
        """At most one more than `MOST`. A scan that takes long does not delay the names that are shown."""
        for info in islice(self.client.locks(), MOST + 1):
            yield info
            if not baseline and monotonic() >= self._shown_at + TICK + _JITTER:
                self._read_shown()
                with self.lock:
                    self.sample += 1
                self._wake()

    def _wake(self) -> None:
        with self.lock:
            viewers = list(self._viewers)
        for viewer in viewers:
            viewer.wake()

    def _read_shown(self) -> None:
        with self.lock:
            lists = [list(islice(viewer.shown(), MOST_SHOWN)) for viewer in self._viewers]
        turns = chain.from_iterable(zip_longest(*lists))  # no viewer takes up all the places
        for name in islice(dict.fromkeys(name for name in turns if name is not None), MOST_SHOWN):
            began = monotonic()
            self._read(name)
            self.latency = monotonic() - began
        with self.lock:
            self.as_of = datetime.now(UTC)
        self._shown_at = monotonic()

    def _read_opened(self) -> None:
        """The last break of each name whose page is shown; and the name itself, if a scan may have left it out."""
        with self.lock:
            opened = dict.fromkeys(viewer.opened for viewer in self._viewers if viewer.opened is not None)
        for name in [] if self.complete else islice(opened, MOST_SHOWN):
            self._read(name)
        found = {name: break_log.last(self.client, name) for name in islice(opened, MOST_SHOWN)}
        with self.lock:
            for name, one in found.items():
                if one is not None and one != self.breaks.get(name):
                    self.history.broken(name, one.token)
                    self.version += 1
            self.breaks = found

    def _read(self, name: str) -> None:
        at, info = datetime.now(UTC), self._inspect(name)
        if info is not None:
            with self.lock:
                self.version += self._note(info, at, baseline=False)

    def _inspect(self, name: str) -> LockInfo | None:
        """None: somebody else wrote this name into the store, and it is not valid."""
        try:
            return self.client.inspect(name)
        except BadName:
            return None

    def _note(self, info: LockInfo, at: datetime, *, baseline: bool) -> bool:
        """Replace what is known of one name; whether anything but the time left of leases changed."""
        old = self.entries.get(info.name)
        if old is None and not info.holders and not info.waiters:
            return False
        before = LockInfo(name=info.name) if old is None else old.info
        passed = 0.0 if old is None or baseline else seconds_since(old.at, at)
        entry = Entry(info, at, self._begun)
        differs = _parts(before) != _parts(info)
        changed = differs
        if old is not None:
            changed = self._renewals(old, entry, passed) or differs
            if not baseline:
                entry.seen |= {who: first for who, first in old.seen.items() if who in entry.seen}
            entry.vacant = entry.vacant and not old.info.holders
            changed = changed or old.trouble() != entry.trouble()
        if differs and not baseline:
            ran_out = set() if old is None else _ran_out(old, passed)
            self.history.compare(before, info, ran_out, at)
        if before.waiters or info.waiters:
            self.history.waited(before, passed, at)
        self.held += bool(info.holders) - bool(before.holders)
        if info.waiters:
            self.contended[info.name] = info
        else:
            self.contended.pop(info.name, None)
        if info.holders or info.waiters:
            self.entries[info.name] = entry
        else:
            del self.entries[info.name]
        return changed or bool(info.waiters)  # they have waited longer

    def _renewals(self, old: Entry, new: Entry, passed: float) -> bool:
        """Compare the leases of the holds that are in both samples; whether one was renewed."""
        found = False
        remained = {one.key: one.remaining for one in old.info.holders}
        for one in new.info.holders:
            if one.key not in remained:
                continue
            lease = new.leases[one.key] = max(old.leases[one.key], one.remaining)
            if not one.token:
                continue  # it may have released the lock and taken it again, which looks like a renewal
            if one.token in old.renewed:
                new.renewed.add(one.token)
            drained = one.remaining != remained[one.key]  # a session that holds a lock has no time left of its own
            if drained and one.remaining > remained[one.key] - passed + min(_SLACK, lease / 6):
                new.renewed.add(one.token)
                found = True
                self.history.renewed(new.info.name, one.token, new.at)
        return found


def _parts(info: LockInfo) -> tuple[object, ...]:
    """All that does not change with time alone."""
    return (
        info.kind,
        info.capacity,
        [(one.key, one.weight) for one in info.holders],
        [(one.key, one.weight) for one in info.waiters],
    )


def _ran_out(old: Entry, passed: float) -> set[int | str]:
    """Holds that have expired if they are gone now."""
    return {one.key for one in old.info.holders if end(one, passed, old.leases[one.key]) == "expired"}
