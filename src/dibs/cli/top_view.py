"""The state of `dibs top`: the last scan, sorted and filtered, and the cursor. It neither draws nor reads keys.

All times are as of the scan, also when the store no longer answers: the heading says since when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dibs.info import LockInfo, Participant, clip, duration, seconds_since
from dibs.monitor.changes import Follower
from dibs.monitor.scan import SORTS, Scan, oldest_wait, sort_key

_LONGEST_ERROR = 300


class Sample(NamedTuple):
    """A scan, and what was counted since the scan before."""

    scan: Scan
    handovers: float = 0.0
    """Hand-overs a second that were seen."""
    longest: Mapping[tuple[str, int | str], float] = {}
    """The longest time left that was seen of each hold, by name and key."""

    @property
    def held(self) -> int:
        return sum(bool(info.holders) for info in self.scan.locks)

    @property
    def waiting(self) -> int:
        return sum(len(info.waiters) for info in self.scan.locks)

    def sorted(self, order: str = SORTS[0], wanted: str = "") -> list[LockInfo]:
        """The locks with that text in the name, in that order; capitals do not matter."""
        wanted = wanted.casefold()
        found = (info for info in self.scan.locks if wanted in info.name.casefold())
        return sorted(found, key=sort_key(order, self.scan.as_of))


def samples(scans: Iterable[Scan]) -> Iterator[Sample]:
    """A sample for each of consecutive scans."""
    follower, before, busy = Follower(), None, set[str]()
    for scan in scans:
        taken = follower.changes(scan).taken
        passed = 0.0 if before is None else seconds_since(before, scan.as_of)
        handovers = sum(one.name in busy for one in taken)  # a lock that was free is acquired, not handed over
        yield Sample(scan, handovers / passed if passed > 0 else 0.0, follower.longest)
        before, busy = scan.as_of, {info.name for info in scan.locks}


class View:
    def __init__(self, store: str, missing: Sequence[str]) -> None:
        """`missing`: what the store cannot show."""
        self._store, self._missing = store, missing
        self.sample: Sample | None = None
        self.error = ""
        self.sort = SORTS[0]
        self.wanted = ""
        """Part of the names to show."""
        self.is_typing = False
        """Keys go to the filter."""
        self.is_helping = False
        self.opened: str | None = None
        """The name of the lock that is open."""
        self.rows: list[LockInfo] = []
        self.cursor = 0
        self.first = 0
        """The first row of the list, or of the open lock, that is visible."""

    def show(self, sample: Sample) -> None:
        self.sample, self.error = sample, ""
        self.arrange()

    def fail(self, error: Exception) -> None:
        """The store did not answer; the view stays."""
        self.error = clip(error, _LONGEST_ERROR)

    def arrange(self) -> None:
        """Sort and filter. The cursor stays on its lock."""
        name = self.selected.name if self.selected else None
        self.rows = self.sample.sorted(self.sort, self.wanted) if self.sample else []
        at = next((at for at, info in enumerate(self.rows) if info.name == name), self.cursor)
        self.cursor = max(min(at, len(self.rows) - 1), 0)

    @property
    def selected(self) -> LockInfo | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def lease(self, info: LockInfo, one: Participant) -> float:
        """How much of the lease is left, from 0 to 1: of the most that was seen of this hold."""
        longest = self.sample.longest.get((info.name, one.key), 0.0) if self.sample else 0.0
        return min(one.remaining / longest, 1.0) if longest > 0 else 0.0

    def info(self) -> LockInfo:
        """The open lock; a name that is not listed is free."""
        name = self.opened or ""
        found = self.sample.scan.locks if self.sample else []
        return next((info for info in found if info.name == name), LockInfo(name=name))

    def heading(self) -> list[str]:
        if self.sample is None:
            return [self._store, self.error] if self.error else [f"{self._store}   waiting for the first answer"]
        scan = self.sample.scan
        said = f"{self._store}   as of {scan.as_of.astimezone():%H:%M:%S}"
        lines = [f"{said} (the store does not answer)" if self.error else said]
        if self.error:
            lines.append(self.error)
        more = "" if scan.complete else " (the store has more)"
        lines.append(
            f"held {self.sample.held}   waiting {self.sample.waiting}   "
            f"oldest wait {duration(oldest_wait(scan.locks, scan.as_of))}   "
            f"hand-overs {self.sample.handovers:.1f}/s   "
            f"{len(self.rows)} of {len(scan.locks)} names shown{more}"
        )
        if self._missing:
            lines.append(f"this store does not show {' or '.join(self._missing)}")
        return lines

    def move(self, by: int, page: int, last: int) -> None:
        """Move the cursor, or scroll the open lock. `page`: how many rows are visible; `last`: the last row."""
        if self.opened is not None:
            self.first = max(min(self.first + by, last - page + 1), 0)
        else:
            self.cursor = max(min(self.cursor + by, last), 0)

    def scroll(self, page: int) -> None:
        """Keep the cursor visible."""
        if self.opened is None:
            self.first = max(min(self.first, self.cursor, len(self.rows) - page), self.cursor - page + 1, 0)
