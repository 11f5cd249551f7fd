"""A process that obeys the lines on its stdin, with the public API only, and reports each outcome.

worker.py URL LEASE
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import dibs


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write: a parent and its fork may share this pipe


def wait_for_line() -> None:
    sys.stdin.readline()


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except dibs.DibsError as error:
        return type(error).__name__
    return "ok"


class Worker:
    def __init__(self, url: str, lease: float) -> None:
        self.client = dibs.connect(url, lease=lease)
        self.locks: dict[str, dibs.Lock] = {}
        self.holds: dict[str, dibs.Hold] = {}

    def lock(self, name: str) -> dibs.Lock:
        return self.locks.setdefault(name, self.client.lock(name))

    def take(self, name: str, timeout: str = "10") -> None:
        """-> took TOKEN SECONDS NOW | busy SECONDS | failed ERROR SECONDS"""
        begun = time.monotonic()
        try:
            hold = self.lock(name).acquire(timeout=None if timeout == "None" else float(timeout))
        except dibs.DibsError as error:
            say("failed", type(error).__name__, time.monotonic() - begun)
            return
        if hold is None:
            say("busy", time.monotonic() - begun)
            return
        self.holds[name] = hold
        say("took", hold.token, time.monotonic() - begun, now())

    def give(self, name: str) -> None:
        """-> gave OUTCOME, of the hold's own release"""
        say("gave", outcome(self.holds[name].release))

    def state(self, name: str) -> None:
        """-> state CHECK lost|valid owned|not REMAINING NOW REASON"""
        hold, at = self.holds[name], now()
        check, lost, owned = outcome(hold.check), hold.lost.is_set(), self.lock(name).owned()
        words = "lost" if lost else "valid", "owned" if owned else "not"
        say("state", check, *words, hold.remaining, at, hold.lost_reason)

    def ages(self, name: str) -> None:
        """-> ages SECONDS SECONDS: how old the hold is, by its own word and by the holder's record in the store"""
        (holder,) = self.client.inspect(name).holders
        times = self.holds[name].acquired_at, holder.since
        say("ages", *((datetime.now(UTC) - at).total_seconds() for at in times))

    def twice(self, one: str, patient: str, other: str, hasty: str) -> None:
        """Two threads of one client, each with its own timeout -> the outcome of the hasty one, as by `take`"""
        patient_one = partial(self.lock(one).acquire, timeout=float(patient))
        threading.Thread(target=outcome, args=(patient_one,), daemon=True).start()
        self.take(other, hasty)

    def obey(self) -> None:
        while line := sys.stdin.readline():
            word, *rest = line.split()
            getattr(self, word)(*rest)


if __name__ == "__main__":
    worker = Worker(sys.argv[1], float(sys.argv[2]))
    say("ready")
    worker.obey()
