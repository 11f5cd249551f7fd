"""A process that counts, waits, leads and follows as the lines on its stdin say, with the public API only.

primitives.py URL LEASE
"""

from __future__ import annotations

import sys

from worker import outcome, say  # beside this script

import dibs


class Primitives:
    def __init__(self, url: str, lease: float) -> None:
        self.client = dibs.connect(url, lease=lease)
        self.holds: dict[str, dibs.Hold] = {}

    def arm(self, name: str, count: str) -> None:
        """-> armed OUTCOME"""
        say("armed", outcome(lambda: self.client.latch(name).arm(int(count))))

    def down(self, name: str, times: str) -> None:
        """Count down one at a time -> down NUMBER after each, then done"""
        for number in range(1, int(times) + 1):
            self.client.latch(name).count_down()
            say("down", number)
        say("done")

    def count(self, name: str) -> None:
        """-> count LEFT"""
        say("count", self.client.latch(name).count())

    def wait(self, name: str, timeout: str) -> None:
        """-> waited True|False"""
        say("waited", self.client.latch(name).wait(timeout=float(timeout)))

    def lead(self, name: str) -> None:
        """-> leads TOKEN"""
        hold = self.client.election(name).lead().acquire(timeout=60)
        assert hold is not None
        self.holds[name] = hold
        say("leads", hold.token)

    def resign(self, name: str) -> None:
        """-> resigned OUTCOME"""
        say("resigned", outcome(self.holds[name].release))

    def follow(self, name: str) -> None:
        """Until killed -> leader PID TOKEN at first and at each change; 0 0: nobody"""
        for leader in self.client.election(name).watch():
            say("leader", *((0, 0) if leader is None else (leader.pid, leader.token)))

    def close(self) -> None:
        self.client.close()
        say("closed")

    def obey(self) -> None:
        while line := sys.stdin.readline():
            word, *rest = line.split()
            getattr(self, word)(*rest)


if __name__ == "__main__":
    process = Primitives(sys.argv[1], float(sys.argv[2]))
    say("ready")
    process.obey()
