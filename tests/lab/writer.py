"""A process that uses the two resources as the lines on its stdin say.

writer.py NAIVE FENCED
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from lab.resource import Fenced, Naive, Record


class Writer:
    def __init__(self, naive: str, fenced: str) -> None:
        self.naive = Naive(naive)
        self.fenced = Fenced(fenced)
        self.read: tuple[int, int | None] = (0, None)

    def begin(self, token: str) -> None:
        """-> begun NAIVE FENCED"""
        self.read = self.naive.begin(), self.fenced.begin(int(token))
        print("begun", *self.read)

    def write(self, token: str) -> None:
        """Both, with what `begin` gave plus one -> wrote ACCEPTED"""
        plain, guarded = self.read
        self.naive.write(plain + 1, int(token))
        print("wrote", self.fenced.write(int(token), (guarded or 0) + 1))

    def race(self, times: str) -> None:
        """Read and write back without any lock -> raced"""
        for _ in range(int(times)):
            value = self.naive.begin()
            os.sched_yield()
            self.naive.write(value + 1)
        print("raced")

    def count(self, times: str) -> None:
        """Add one in a single step; 0: until killed -> counted, again and again with how often"""
        done = 0
        while not done or done < int(times) or times == "0":
            self.naive.journal.step(_more)
            done += 1
            print("counted", done)

    def obey(self) -> None:
        for line in sys.stdin:
            word, *rest = line.split()
            getattr(self, word)(*rest)


def _more(last: Record) -> Record:
    return replace(last, pid=os.getpid(), value=last.value + 1)


if __name__ == "__main__":
    Writer(*sys.argv[1:]).obey()
