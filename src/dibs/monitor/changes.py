"""Compare two scans of a store: holds that began, and holds that ended, and how.

A scan is a sample. A hold that begins and ends between two scans is never seen. A hold that is gone was

- released, if its lease had not run out yet. A hold that `break_` removed looks the same.
- expired, if its lease can have run out, and its renewals were overdue in the scan before: less than half of the
  longest lease seen was left. A hold without renewal that is released just before its lease runs out looks the same.
- ended, if neither is certain: its lease is shorter than the time between the scans, and it may have been renewed in
  between; or the store keeps no lease, because a connection or a session holds the lock.

A holder without a token is known by its owner: that one releases a lock and takes it again between two scans is not
seen.

So an expiry is recognised for certain if at least three scans are taken in a lease. The clock of this machine must not
be set between two scans.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dibs.info import Participant
from dibs.monitor.scan import Scan

_OVERDUE = 0.5
"""The watchdog renews a hold when two thirds of its lease are left."""
_Holders = dict[int | str, Participant]
"""By key."""


class Change(NamedTuple):
    name: str
    holder: Participant
    """As the later scan shows it, or, if it is gone, the earlier one."""


class Changes(NamedTuple):
    taken: list[Change]
    """Holds that the earlier scan did not show: acquisitions and hand-overs."""
    released: list[Change]
    expired: list[Change]
    ended: list[Change]
    """Holds that are gone; whether they were released or expired is not known."""


def end(one: Participant, passed: float, longest: float) -> Literal["released", "expired", "ended"]:
    """How a hold ended that is gone. `passed`: seconds since it was seen; `longest`: the longest `remaining` seen."""
    if one.remaining > passed:
        return "released"
    return "expired" if one.remaining < _OVERDUE * longest else "ended"


class Follower:
    """Compares each scan of a store with the one before. One thread at a time may use it."""

    def __init__(self) -> None:
        self._before: Scan | None = None
        self.longest: dict[tuple[str, int | str], float] = {}
        """The longest `remaining` seen of each hold: its lease is at least that long."""

    def changes(self, scan: Scan) -> Changes:
        """The changes since the scan before; the first scan shows none.

        If either scan is incomplete, only names that are in both are compared: another one may have been cut off.
        """
        found, before, self._before = Changes([], [], [], []), self._before, scan
        if before is not None:
            earlier, later = _holders(before), _holders(scan)
            is_whole = before.complete and scan.complete
            for name in earlier | later:
                if is_whole or (name in earlier and name in later):
                    self._compare(name, earlier.get(name, {}), later.get(name, {}), before, scan, found)
        self._note(scan)
        return found

    def _compare(
        self, name: str, earlier: _Holders, later: _Holders, before: Scan, after: Scan, found: Changes
    ) -> None:
        found.taken.extend(Change(name, one) for key, one in later.items() if key not in earlier)
        for key, one in earlier.items():
            if key not in later:
                passed = (after.as_of - before.as_of).total_seconds() + after.took
                ended = getattr(found, end(one, passed, self.longest[name, key]))
                ended.append(Change(name, one))

    def _note(self, scan: Scan) -> None:
        longest = self.longest
        self.longest = {
            (info.name, one.key): max(one.remaining, longest.get((info.name, one.key), 0.0))
            for info in scan.locks
            for one in info.holders
        }


def _holders(scan: Scan) -> dict[str, _Holders]:
    """By name and key. A name that is only waited for is there, too."""
    return {info.name: {one.key: one for one in info.holders} for info in scan.locks}
