"""A process that counts, waits, admits, leads and follows as the lines on its stdin say, with the public API only.

primitives.py URL [LEASE]
"""

from __future__ import annotations

import sys
import threading

from worker import now, outcome, say  # beside this script

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
        """-> waited True|False NOW"""
        say("waited", self.client.latch(name).wait(timeout=float(timeout)), now())

    def add(self, name: str, times: str) -> None:
        """Add one to the number in a cell, so often -> added NUMBER, as it stood after the last"""
        value = b""
        for _ in range(int(times)):
            value, _ = self.client.cell(name).update(lambda there: b"%d" % (int(there or b"0") + 1))
        say("added", value.decode())

    def admit(self, name: str, token: str) -> None:
        """-> admitted OUTCOME"""
        say("admitted", outcome(lambda: self.client.fence(name).admit(int(token))))

    def lead(self, name: str, timeout: str = "60") -> None:
        """-> leads TOKEN NOW | follows"""
        hold = self.client.election(name).lead().acquire(timeout=float(timeout))
        if hold is None:
            say("follows")
            return
        self.holds[name] = hold
        say("leads", hold.token, now())

    def resign(self, name: str) -> None:
        """-> resigned OUTCOME"""
        say("resigned", outcome(self.holds[name].release))

    def keep_leading(self, name: str) -> None:
        """The loop of the documentation, until stdin says `leave` -> leads TOKEN NOW, lost, leads..., then left"""
        left = threading.Event()

        def loop() -> None:
            election = self.client.election(name)
            while not left.is_set():
                try:
                    with election.lead() as hold:
                        say("leads", hold.token, now())
                        while not left.is_set():
                            hold.check()
                            hold.lost.wait(0.02)
                except dibs.LockLost:
                    say("lost")
                    continue

        thread = threading.Thread(target=loop)
        thread.start()
        sys.stdin.readline()
        left.set()
        thread.join()
        say("left")

    def follow(self, name: str) -> None:
        """Until killed -> leader PID TOKEN NOW at first and at each change; 0 0: nobody"""
        for leader in self.client.election(name).watch():
            say("leader", *((0, 0) if leader is None else (leader.pid, leader.token)), now())

    def close(self) -> None:
        self.client.close()
        say("closed")

    def obey(self) -> None:
        while line := sys.stdin.readline():
            word, *rest = line.split()
            getattr(self, word)(*rest)


if __name__ == "__main__":
    process = Primitives(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60.0)
    say("ready")
    process.obey()
