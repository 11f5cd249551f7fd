"""A protected resource, twice: `Naive` trusts the lock, `Fenced` compares the token.

    naive = Naive(path)                      fenced = Fenced(path)
    value = naive.begin()                    value = fenced.begin(token)     None: the token is stale
    ... work under the lock ...              ... work under the lock ...
    naive.write(value + 1)                   fenced.write(token, value + 1)  False: the token is stale

Both are counters in a file, for any number of threads and processes. Each call is one atomic step under an OS lock of
the file. `tally()` counts from the file alone what was written and lost.

The file is a journal: a record of 128 bytes for each call, written at once within one page, so a kill leaves it whole
or absent. A process that is stopped within a step blocks the others.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from pathlib import Path

SIZE = 128
"""Bytes of a record; it divides a page, so that none lies across two."""


class Step(StrEnum):
    BEGUN = "begun"
    WRITTEN = "written"
    REFUSED = "refused"


@dataclass(frozen=True)
class Record:
    step: Step
    at: float = 0.0
    pid: int = 0
    token: int = 0
    highest: int = 0
    value: int = 0

    def text(self) -> bytes:
        line = f"{self.step} {self.at:.6f} {self.pid} {self.token} {self.highest} {self.value}"
        return line.ljust(SIZE - 1).encode() + b"\n"

    @classmethod
    def read(cls, text: bytes) -> Record:
        step, at, *numbers = text.decode().split()
        return cls(Step(step), float(at), *map(int, numbers))


NEW = Record(Step.BEGUN)


@dataclass(frozen=True)
class Tally:
    acknowledged: int
    """Updates that were written; each was told so."""
    lost: int
    """Acknowledged updates missing from the value: somebody wrote over them without having seen them."""
    refused: int
    """Calls with a stale token that changed nothing."""
    stale: int
    """Updates accepted although a higher token had been seen before: never by `Fenced`, unless it is broken."""


class Journal:
    """The file; opened for each step, because threads and forked children would share a descriptor's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def step(self, decide: Callable[[Record], Record]) -> Record:
        """Append what `decide` makes of the last record, alone with the file."""
        with self._open(fcntl.LOCK_EX) as file:
            end = _whole(file)
            last = Record.read(os.pread(file, SIZE, end - SIZE)) if end else NEW
            made = decide(last)
            if os.pwrite(file, made.text(), end) != SIZE:
                raise OSError(f"no room for a record in {self.path}")
        return made

    def records(self) -> list[Record]:
        with self._open(fcntl.LOCK_SH) as file:
            text = os.pread(file, _whole(file), 0)
        return [Record.read(text[start : start + SIZE]) for start in range(0, len(text), SIZE)]

    @contextmanager
    def _open(self, how: int) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, how)
            yield file
        finally:
            os.close(file)


class Naive:
    """Writes whatever it is told: what is lost through it shows how often the lock alone did not protect."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.journal = Journal(Path(path))

    def begin(self) -> int:
        """The value, to which the caller adds one."""
        return self.journal.step(lambda last: _record(Step.BEGUN, value=last.value)).value

    def write(self, value: int, token: int = 0) -> None:
        self.journal.step(lambda last: _record(Step.WRITTEN, token, value=value))

    def tally(self) -> Tally:
        return tally(self.journal.records())


class Fenced:
    """Refuses a token lower than the highest it has seen; the same token may come again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.journal = Journal(Path(path))

    def begin(self, token: int) -> int | None:
        """The value, and nobody with a lower token writes from now on; None if this one is itself too low."""
        made = self.journal.step(lambda last: _admit(Step.BEGUN, last, token, last.value))
        return None if made.step is Step.REFUSED else made.value

    def write(self, token: int, value: int) -> bool:
        return self.journal.step(lambda last: _admit(Step.WRITTEN, last, token, value)).step is Step.WRITTEN

    def tally(self) -> Tally:
        return tally(self.journal.records())


def tally(records: Iterable[Record]) -> Tally:
    """Trusts no verdict in the records: stale is what the order of the tokens says."""
    found = list(records)
    written = [record for record in found if record.step is Step.WRITTEN]
    tokens = [record.token if record.step is not Step.REFUSED else 0 for record in found]
    seen = accumulate(tokens, max)
    return Tally(
        acknowledged=len(written),
        lost=len(written) - (found[-1].value if found else 0),
        refused=sum(record.step is Step.REFUSED for record in found),
        stale=sum(record.step is Step.WRITTEN and record.token < top for record, top in zip(found, seen, strict=True)),
    )


def _admit(step: Step, last: Record, token: int, value: int) -> Record:
    if token < last.highest:
        return _record(Step.REFUSED, token, last.highest, last.value)
    return _record(step, token, token, value)


def _record(step: Step, token: int = 0, highest: int = 0, value: int = 0) -> Record:
    return Record(step, time.clock_gettime(time.CLOCK_BOOTTIME), os.getpid(), token, highest, value)


def _whole(file: int) -> int:
    return os.fstat(file).st_size // SIZE * SIZE
