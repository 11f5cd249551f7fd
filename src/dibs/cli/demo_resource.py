"""The resource of the demo: it detects a second user, and refuses a token lower than one that it has accepted.

One directory with a record and a journal; every step (`begin`, `keep`, `write`, `end`) happens under the record's own
OS lock, and compares the token in that same step. It trusts nobody's word about exclusion:

- a lower token than the highest admitted is refused (`StaleToken`), and nothing is changed;
- whoever begins while another is marked inside *takes over* if its token is higher and the other's hold is over: past
  the deadline that the other wrote down itself, or its process is dead;
- anything else is an *overlap*: counted, and let in, as a resource without a guard would.

A turn is a read (`begin`), some work and a `write` of the value plus one: two at once would also lose a count.
`audit` tells the story again from the journal alone.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dibs import StaleToken
from dibs.cli.system import now

SIZE = 4096
"""The record is always this long and written by one call within one page: a kill leaves the old one or the new one."""
_PF_EXITING = 0x4


@dataclass(frozen=True)
class User:
    """Who uses the resource: one hold of one process."""

    worker: str
    pid: int
    token: int


@dataclass
class Mark:
    """A user inside, and until when its hold is valid by its own account."""

    worker: str
    pid: int
    token: int
    until: float
    since: float

    def is_of(self, user: User) -> bool:
        return (self.pid, self.token) == (user.pid, user.token)


@dataclass
class Record:
    highest: int = 0
    value: int = 0
    overlaps: int = 0
    takeovers: int = 0
    refused: int = 0
    turns: dict[str, int] = field(default_factory=dict)
    inside: list[Mark] = field(default_factory=list)


@dataclass
class Audit:
    """What the journal says."""

    writes: int = 0
    handovers: int = 0
    fell: int = 0
    """How often an accepted token was lower than one accepted before."""
    refused_writes: list[User] = field(default_factory=list)


class Resource:
    """One process's access to the resource; several objects, in one process or many, exclude each other."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / "resource", os.O_RDWR | os.O_CREAT, 0o600)
        self._journal = os.open(directory / "journal", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def close(self) -> None:
        os.close(self._file)
        os.close(self._journal)

    def begin(self, user: User, until: float) -> int:
        """Go inside; `until` is the user's own deadline. Gives the value."""

        def enter(record: Record) -> None:
            at = now()
            for mark in [mark for mark in record.inside if not mark.is_of(user)]:
                if user.token > mark.token and (at >= mark.until or is_dead(mark.pid)):
                    record.takeovers += 1
                    record.inside.remove(mark)
                else:
                    record.overlaps += 1
            record.inside = [mark for mark in record.inside if not mark.is_of(user)]
            record.inside.append(Mark(user.worker, user.pid, user.token, until, at))
            record.highest = user.token

        return self._step("begin", user, enter).value

    def keep(self, user: User, until: float) -> None:
        """The hold was renewed: write its new deadline down."""
        self._step("keep", user, lambda record: _prolong(record, user, until))

    def write(self, user: User, value: int, until: float) -> None:
        """The change itself; it counts as one turn of the worker."""

        def change(record: Record) -> None:
            record.value = value
            record.turns[user.worker] = record.turns.get(user.worker, 0) + 1
            _prolong(record, user, until)

        self._step("write", user, change)

    def end(self, user: User) -> None:
        def leave(record: Record) -> None:
            record.inside = [mark for mark in record.inside if not mark.is_of(user)]

        self._step("end", user, leave)

    def look(self) -> Record:
        fcntl.flock(self._file, fcntl.LOCK_SH)
        try:
            return self._read()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def audit(self) -> Audit:
        found, highest, last = Audit(), 0, ""
        for line in os.pread(self._journal, os.fstat(self._journal).st_size, 0).decode().splitlines():
            entry = json.loads(line)
            user = User(**entry["user"])
            if entry["refused"]:
                found.refused_writes += [user] if entry["step"] == "write" else []
                continue
            found.fell += user.token < highest
            highest = max(highest, user.token)
            found.writes += entry["step"] == "write"
            if entry["step"] == "begin":
                found.handovers += last not in ("", user.worker)
                last = user.worker
        return found

    def _step(self, what: str, user: User, change: Callable[[Record], None]) -> Record:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            record = self._read()
            refused = user.token < record.highest
            if refused:
                record.refused += 1
                record.inside = [mark for mark in record.inside if not mark.is_of(user)]
            else:
                change(record)
            entry = json.dumps({"at": now(), "step": what, "refused": refused, "user": asdict(user)})
            os.write(self._journal, f"{entry}\n".encode())
            self._save(record)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        if refused:
            raise StaleToken(
                f"{what} with token {user.token} was refused: token {record.highest} was accepted before",
                name=user.worker, step="acquire again",
            )  # fmt: skip
        return record

    def _read(self) -> Record:
        text = os.pread(self._file, SIZE, 0)
        if not text:
            return Record()
        said = json.loads(text)
        return Record(**{**said, "inside": [Mark(**mark) for mark in said["inside"]]})

    def _save(self, record: Record) -> None:
        text = json.dumps(asdict(record)).encode()
        if len(text) > SIZE:
            raise ValueError(f"the record of {len(record.turns)} workers does not fit in {SIZE} bytes")
        os.pwrite(self._file, text.ljust(SIZE), 0)


def _prolong(record: Record, user: User, until: float) -> None:
    for mark in record.inside:
        if mark.is_of(user):
            mark.until = until


def is_dead(pid: int) -> bool:
    """Killed, though its parent may not have noticed yet: a process that was only stopped is alive.

    The kernel gives back what a dying process held before it shows it as a zombie, and a store may grant at once;
    the flag "exiting" is set before both.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return not _answers(pid)
    fields = text.rpartition(")")[2].split()
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def _answers(pid: int) -> bool:
    """Where there is no /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
