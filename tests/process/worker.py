"""A process that does what the lines on its stdin say, with the public API only, and says what came of it.

worker.py URL LEASE
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

import dibs


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write: a parent and its fork may share this pipe


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

    def enter(self, name: str) -> None:
        """`with` around the next commands, until `leave` -> held TOKEN, then left OUTCOME"""

        def body() -> None:
            with self.lock(name) as hold:
                self.holds[name] = hold
                say("held", hold.token)
                self.obey(end="leave")

        say("left", outcome(body))

    def state(self, name: str) -> None:
        """-> state CHECK lost|valid owned|not REMAINING NOW REASON"""
        hold, at = self.holds[name], now()
        check, lost, owned = outcome(hold.check), hold.lost.is_set(), self.lock(name).owned()
        say(
            "state",
            check,
            "lost" if lost else "valid",
            "owned" if owned else "not",
            hold.remaining,
            at,
            hold.lost_reason,
        )

    def write(self, name: str, resource: str) -> None:
        """Write the hold's token, whatever became of the hold, to a resource that takes everything and to one that
        refuses lower tokens than the highest it saw, in the same step -> wrote visible|hidden accepted|refused"""
        token = self.holds[name].token
        with closing(sqlite3.connect(resource, timeout=60)) as connection, connection:
            naive = connection.execute("UPDATE resource SET naive = ?", (token,)).rowcount
            fenced = connection.execute("UPDATE resource SET fenced = ? WHERE fenced <= ?", (token, token)).rowcount
        say("wrote", "visible" if naive else "hidden", "accepted" if fenced else "refused")

    def queue(self, name: str) -> None:
        """-> line HOLDERS WAITERS"""
        info = self.client.inspect(name)
        say("line", len(info.holders), len(info.waiters))

    def twice(self, one: str, patient: str, other: str, hasty: str) -> None:
        """Two threads of one client, each with its own timeout; what the hasty one gets is said as by `take`."""
        patient_one = partial(self.lock(one).acquire, timeout=float(patient))
        threading.Thread(target=outcome, args=(patient_one,), daemon=True).start()
        self.take(other, hasty)

    def spin(self, name: str) -> None:
        """Take and give back without a pause, until killed."""
        say("spinning")
        while True:
            with self.lock(name):
                pass

    def obey(self, end: str | None = None) -> None:
        while line := sys.stdin.readline():
            word, *rest = line.split()
            if word == end:
                return
            getattr(self, word)(*rest)


if __name__ == "__main__":
    worker = Worker(sys.argv[1], float(sys.argv[2]))
    say("ready")
    worker.obey()
