"""One worker process of the demo, and the resource that all workers use under the lock.

The resource is a record and a journal in one directory. Every step happens under an OS lock on the record, and compares
the token. It does not trust the lock:

- A token below the highest admitted one is refused (`StaleToken`), and nothing changes.
- A worker that enters while another is inside *takes over* if its token is higher and the other's hold is over: it is
  past the deadline that it wrote itself, or its process is dead.
- Anything else is an *overlap*: counted, and let in. Two turns at once would also lose a count, as a turn is a read
  (`begin`), some work and a `write` of the value plus one. `audit` checks the journal alone.

The worker is an ordinary program on the public API. The URL is in $DIBS_URL, the options are a JSON object in its
argument. It writes JSON lines to stdout, and reads `start`, `go` and `again` from stdin. With `pause_at` N it halts
inside turn N, where the demo kills or pauses it. The number of finished turns is in the resource, so a restarted worker
does the rest. It ends with the demo.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import dibs
from dibs import StaleToken
from dibs.cli.system import ORPHANED, die_with, exists, now

SIZE = 4096
"""Bytes of the record, written by one call within one page: a kill leaves the old or the new record."""
_PF_EXITING = 0x4


@dataclass(frozen=True)
class User:
    """One hold of one process."""

    worker: str
    pid: int
    token: int


@dataclass
class Mark:
    """A user inside, and the deadline that it wrote."""

    user: User
    until: float


@dataclass
class Record:
    highest: int = 0
    value: int = 0
    overlaps: int = 0
    takeovers: int = 0
    refused: int = 0
    turns: dict[str, int] = field(default_factory=dict)
    inside: list[Mark] = field(default_factory=list)

    def leave(self, user: User) -> None:
        self.inside = [mark for mark in self.inside if mark.user != user]

    def prolong(self, user: User, until: float) -> None:
        for mark in self.inside:
            if mark.user == user:
                mark.until = until


@dataclass
class Audit:
    writes: int = 0
    handovers: int = 0
    fell: int = 0
    """Accepted tokens that were lower than an earlier one."""
    refused_writes: list[User] = field(default_factory=list)


class Resource:
    """Access to the resource; several objects, in one process or many, exclude each other."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / "resource", os.O_RDWR | os.O_CREAT, 0o600)
        self._journal = os.open(directory / "journal", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def close(self) -> None:
        os.close(self._file)
        os.close(self._journal)

    def begin(self, user: User, until: float) -> int:
        """Enter; `until` is the user's deadline. Returns the value."""

        def enter(record: Record) -> None:
            at = now()
            record.leave(user)
            for mark in list(record.inside):
                if user.token > mark.user.token and (at >= mark.until or is_dead(mark.user.pid)):
                    record.takeovers += 1
                    record.inside.remove(mark)
                else:
                    record.overlaps += 1
            record.inside.append(Mark(user, until))
            record.highest = user.token

        return self._step("begin", user, enter).value

    def keep(self, user: User, until: float) -> None:
        """Note the new deadline after a renewal."""
        self._step("keep", user, lambda record: record.prolong(user, until))

    def write(self, user: User, value: int, until: float) -> None:
        """Write the value; this counts as one turn of the worker."""

        def change(record: Record) -> None:
            record.value = value
            record.turns[user.worker] = record.turns.get(user.worker, 0) + 1
            record.prolong(user, until)

        self._step("write", user, change)

    def end(self, user: User) -> None:
        self._step("end", user, lambda record: record.leave(user))

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
                record.leave(user)
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
        return Record(**{**said, "inside": [Mark(User(**mark["user"]), mark["until"]) for mark in said["inside"]]})

    def _save(self, record: Record) -> None:
        text = json.dumps(asdict(record)).encode()
        if len(text) > SIZE:
            raise ValueError(f"the record of {len(record.turns)} workers does not fit in {SIZE} bytes")
        os.pwrite(self._file, text.ljust(SIZE), 0)


def is_dead(pid: int) -> bool:
    """Whether the process is dead or dying; a stopped one is alive.

    The kernel releases the resources of a dying process before it is a zombie, and a store may grant the lock at once;
    the flag "exiting" is set before both.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return not exists(pid)
    fields = text.rpartition(")")[2].split()
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


NAME = "shared-resource"
NAMESPACE = "dibs-demo"
SHORTEST_TURN, LONGEST_TURN = 0.005, 0.030


def main() -> None:
    options = SimpleNamespace(**json.loads(sys.argv[1]))
    die_with(options.parent)
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    with dibs.connect(lease=options.lease, owner=options.worker, namespace=NAMESPACE) as client:
        Worker(client, Resource(Path(options.directory)), options, orders).work()


class Worker:
    def __init__(
        self, client: dibs.Client, resource: Resource, options: SimpleNamespace, orders: SimpleQueue[str]
    ) -> None:
        self._client = client
        self._resource = resource
        self._options = options
        self._orders = orders
        self._pause_at: int | None = options.pause_at

    def work(self) -> None:
        # Connect before the start, so that all workers start at the same time.
        self._client.inspect(NAME)
        say("ready")
        self._orders.get()
        while (number := self._resource.look().turns.get(self._options.worker, 0)) < self._options.turns:
            asked = now()
            if self._options.no_lock:
                # One token for all, as without a lock: the resource must detect this.
                self._use(1, lambda: float(self._options.lease), None, number)
                continue
            try:
                with self._client.lock(NAME) as hold:
                    say("took", token=hold.token, waited=now() - asked)
                    self._use(hold.token, lambda: hold.remaining, hold, number)  # called within this turn
            except dibs.LockLost:
                say("lost")
        say("done")

    def _use(self, token: int, remaining: Callable[[], float], hold: dibs.Hold | None, number: int) -> None:
        options, resource = self._options, self._resource
        user = User(options.worker, os.getpid(), token)
        try:
            value = resource.begin(user, _until(remaining))
            chance = random.Random(f"{options.seed}:{options.worker}:{number}")  # noqa: S311  # no secret
            time.sleep(chance.uniform(SHORTEST_TURN, LONGEST_TURN))
            if hold is not None and self._pause_at is not None and number >= self._pause_at:
                self._pause(user, hold)
            # No `hold.check()` on purpose: a process may be stopped between any check and its write. Then only the
            # comparison in the resource protects it.
            resource.write(user, value + 1, _until(remaining))
            resource.end(user)
        except dibs.StaleToken as refusal:
            say("refused", token=token, why=refusal.what)

    def _pause(self, user: User, hold: dibs.Hold) -> None:
        """Halt inside, just after a renewal: a process stopped during one would keep the database locked."""
        before, give_up = hold.remaining, now() + self._options.lease
        while (left := hold.remaining) <= before and now() < give_up:
            before = left
            time.sleep(0.002)
        self._resource.keep(user, _until(lambda: hold.remaining))
        say("holding", token=hold.token)
        if self._orders.get() == "go":
            self._pause_at = None
        say("went on", token=hold.token, lost=hold.lost.is_set())


def _until(remaining: Callable[[], float]) -> float:
    at = now()  # read first: the deadline must not be too late
    return at + remaining()


def say(what: str, **facts: object) -> None:
    """One write per line: the demo reads whole lines."""
    os.write(1, (json.dumps({"what": what, **facts}) + "\n").encode())


def _listen(orders: SimpleQueue[str]) -> None:
    # Not `sys.stdin`: its lock, held by a waiting thread, would block the interpreter's exit.
    text = b""
    while said := os.read(0, 1024):
        *lines, text = (text + said).split(b"\n")
        for line in lines:
            orders.put(line.decode())
    os._exit(ORPHANED)


if __name__ == "__main__":
    main()
