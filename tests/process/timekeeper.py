"""A process that tells what its clocks say, and uses locks by the public API only, as the lines on its stdin say.

timekeeper.py URL LEASE
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

import dibs


class Timekeeper:
    def __init__(self, url: str, lease: str) -> None:
        self.client = dibs.connect(url, lease=float(lease))
        self.hold: dibs.Hold

    def clocks(self) -> None:
        """-> clocks WALL WALL WALL MONOTONIC BOOTTIME: three ways to ask for the wall clock"""
        print(
            "clocks", time.time(), datetime.now(UTC).timestamp(), time.clock_gettime(time.CLOCK_REALTIME),
            time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME),
        )  # fmt: skip

    def take(self, name: str, timeout: str) -> None:
        """-> took TOKEN SECONDS | busy SECONDS, by the monotonic clock"""
        begun = time.monotonic()
        hold = self.client.lock(name).acquire(timeout=float(timeout))
        if hold is None:
            print("busy", time.monotonic() - begun)
        else:
            self.hold = hold
            print("took", hold.token, time.monotonic() - begun)

    def state(self, name: str) -> None:
        """-> state valid|lost REMAINING AGE HOLDERS: the age by the hold's own word, then by each holder's record"""
        try:
            self.hold.check()
        except dibs.LockLost:
            print("state", "lost", self.hold.remaining)
            return
        ages = [self.hold.acquired_at, *(holder.since for holder in self.client.inspect(name).holders)]
        now = datetime.now(UTC)
        print("state", "valid", self.hold.remaining, *((now - age).total_seconds() for age in ages))

    def give(self) -> None:
        """-> gave"""
        self.hold.release()
        print("gave")

    def obey(self) -> None:
        print("ready")
        for line in sys.stdin:
            word, *rest = line.split()
            getattr(self, word)(*rest)
        self.client.close()


if __name__ == "__main__":
    Timekeeper(*sys.argv[1:]).obey()
