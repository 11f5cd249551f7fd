"""Who stands in a directory, and who of them holds: Curator's names, and the one rule over them. No I/O.

A node is called `_c_<uuid>-<word><number>`: the uuid is its claim's id, the number the server's. Order is the order of
the numbers as texts, whatever stands before them, as in Curator. What a word means:

| word                  | who writes it                                 | capacity | weighs        |
|-----------------------|-----------------------------------------------|----------|---------------|
| `lock-`               | lock, rlock; InterProcessMutex                | 1        | 1             |
| `latch-`              | election; LeaderLatch                         | 1        | 1             |
| `__READ__` `__WRIT__` | rwlock; InterProcessReadWriteLock             | many     | 1, all of it  |
| `striped-<n>-`        | the guard of n stripes                        | n        | 0             |
| `lease-`              | permits; InterProcessSemaphoreV2, in `leases` | permits  | 1             |

A node of another kind that stands before ours means that the name is busy as something else.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dibs.backends.zookeeper.wire.codec import Node
from dibs.core.queue import ELECTION
from dibs.core.rule import RW_CAPACITY, Claim, fits
from dibs.info import Participant, printable, read_description

LOCK, LATCH, LEASE, READ, WRITE = "lock-", "latch-", "lease-", "__READ__", "__WRIT__"
LOCKS_NODE, LEASES_NODE = "locks", "leases"
"""The two directories of a semaphore."""
ROTATE_AT = 2**30
"""From this number on a directory is removed as soon as it is empty, so that numbers begin again."""
REFUSE_AT = 2**31 - 2**20
"""From here on nobody may stand: at 2**31 numbers repeat, or fall."""

DIGITS = 10
"""Length of a sequence number, as the server writes it."""
_NAME = re.compile(r"(lock-|latch-|lease-|__READ__|__WRIT__|[a-z]{1,20}-[0-9]{1,9}-)(-?[0-9]{10})\Z")
"""Bounded: others may write names of any length."""
_WORDS = {("mutex", 1): LOCK, (ELECTION, 1): LATCH}
_KINDS = {LOCK: "mutex", LATCH: ELECTION, READ: "rw", WRITE: "rw", LEASE: "semaphore"}


class Contender(NamedTuple):
    number: str
    word: str
    name: str

    @property
    def kind(self) -> str:
        return _KINDS.get(self.word) or self.word.partition("-")[0]

    @property
    def capacity(self) -> int:
        """Capacity of its queue; names do not contain the capacity of a semaphore."""
        if self.kind == "rw":
            return RW_CAPACITY
        return 1 if self.word in _KINDS else int(self.word.split("-")[1])

    @property
    def weight(self) -> int:
        if self.word == WRITE:
            return RW_CAPACITY
        return 0 if self.kind == "striped" else 1


class Verdict(NamedTuple):
    """The place of one node in a list of children."""

    node_claims: bool
    holds: bool = False
    lower: int = 0
    """How many stand before it."""
    watch: str = ""
    """The one whose end it is to wait for."""
    foreign: str = ""
    """A child before it that is of another kind."""


def word_of(claim: Claim) -> str:
    if claim.kind == "rw":
        return WRITE if claim.weight == RW_CAPACITY else READ
    return _WORDS.get((claim.kind, claim.capacity)) or f"{claim.kind}-{claim.capacity}-"


def uuid_of(id: bytes) -> str:
    """
    >>> uuid_of(bytes(range(16)))
    '00010203-0405-0607-0809-0a0b0c0d0e0f'
    """
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def prefix_of(id: bytes) -> str:
    return f"_c_{uuid_of(id)}-"


def owner_of(name: str) -> str:
    """The part of a name that the nodes of one claim share: their protection, or else the whole name.

    >>> owner_of("_c_00010203-0405-0607-0809-0a0b0c0d0e0f-lock-0000000001")
    '_c_00010203-0405-0607-0809-0a0b0c0d0e0f-'
    """
    found = re.match(r"_c_[0-9a-fA-F-]{32,36}-", name)
    return found[0] if found else name


def id_of(name: str) -> bytes:
    """The id of the claim that a node belongs to; empty: none of ours.

    >>> id_of("_c_00010203-0405-0607-0809-0a0b0c0d0e0f-lock-0000000001") == bytes(range(16)), id_of("lock-0000000001")
    (True, b'')
    """
    try:
        return bytes.fromhex(owner_of(name)[3:-1].replace("-", ""))
    except ValueError:
        return b""


def number_of(path: str) -> int:
    """The sequence number of a node; -1: it has none.

    >>> number_of("/a/_c_x-lock-0000000012"), number_of("/a/lock--0000000012"), number_of("/a")
    (12, -12, -1)
    """
    digits = path[-11:]
    number = digits[1:]
    if not number.isdecimal():
        return -1
    return -int(number) if digits[0] == "-" and path[-12:-11] == "-" else int(number)


def leaf_of(path: str) -> str:
    """The name of a node in its directory."""
    return path.rpartition("/")[2]


def parse(name: str) -> Contender | None:
    number = name[-10:]
    if name[-15:-10] == LOCK and number.isdigit() and number.isascii():
        return Contender(number, LOCK, name)  # as the expression would find it, in a tenth of the time
    found = _NAME.search(name)
    return None if found is None else Contender(found[2], found[1], name)


def in_order(children: Iterable[str]) -> tuple[list[Contender], list[str]]:
    """The contenders in order, and the names that are none."""
    queue: list[Contender] = []
    strange: list[str] = []
    for name in children:
        found = parse(name)
        if found is None:
            strange.append(name)
        else:
            queue.append(found)
    # A READ that bears its writer's number (a writer that reads too, or was downgraded) comes right behind it.
    queue.sort(key=lambda one: (one.number, one.word != WRITE))
    return queue, strange


class Listing:
    """The children of a directory, parsed once for all claims that ask about it."""

    def __init__(self, children: Sequence[str]) -> None:
        self.queue, strange = in_order(children)
        self.strange = [name for name in strange if not name.startswith("%")]
        self._foreign = self.strange[0] if self.strange else ""
        words = {one.word for one in self.queue}
        self.word = None if self._foreign or len(words) > 1 else "".join(words)
        """That of all who stand there, "" where nobody does; None: there are several, or something else is there."""
        self._positions = {one.name: position for position, one in enumerate(self.queue)}
        self._others: dict[tuple[str, int], int] = {}
        self._ahead: Sequence[int] = range(len(self.queue) + 1)
        """The weight before each contender, and of all."""
        self._writers: list[int] = []
        """The position of the last writer before each contender, or -1."""
        if self.word not in (LOCK, LATCH):
            self._weigh()

    def _weigh(self) -> None:
        ahead, writer, sums = 0, -1, []
        for position, one in enumerate(self.queue):
            sums.append(ahead)
            self._writers.append(writer)
            ahead += one.weight
            writer = position if one.word == WRITE else writer
        self._ahead = [*sums, ahead]

    def before(self, own: str) -> str | None:
        """The nearest before it; "": nobody is. None: it is not there."""
        position = self._positions.get(own)
        return None if position is None else self.queue[position - 1].name if position else ""

    def judge(self, own: str, claim: Claim) -> Verdict:
        """By the rule: what stands before it, and whether it fits beside that."""
        position = self._positions.get(own)
        if position is None:
            return Verdict(node_claims=False)
        mine, other = self.queue[position], self._first_other(claim)
        foreign = self.queue[other].name if other < position else self._foreign
        if fits(self._ahead[position], mine.weight, claim.capacity):
            return Verdict(node_claims=True, holds=True, lower=position, foreign=foreign)
        # A reader waits for the nearest writer before it, all others for the nearest node.
        nearest = self._writers[position] if mine.word == READ else -1
        if nearest < 0:
            nearest = position - 1
        return Verdict(node_claims=True, lower=position, watch=self.queue[nearest].name, foreign=foreign)

    def would_hold(self, claim: Claim) -> tuple[bool, str, str]:
        """Whether a claim without a node would hold; the node to watch until it might; a node of another kind."""
        queue, capacity = self.queue, claim.capacity
        other = self._first_other(claim)
        foreign = queue[other].name if other < len(queue) else self._foreign
        last = queue[-1].name if queue else ""
        if queue and not fits(self._ahead[-2], queue[-1].weight, capacity):
            return False, last, foreign  # somebody waits: nobody passes the queue
        return fits(self._ahead[-1], claim.weight, capacity), last, foreign

    def _first_other(self, claim: Claim) -> int:
        """The position of the first contender of another kind or size; behind all, if there is none."""
        wanted = (claim.kind, claim.capacity)
        if wanted not in self._others:
            some = self.queue if self.word is None else self.queue[:1]  # the others are like the first
            others = (position for position, one in enumerate(some) if (one.kind, one.capacity) != wanted)
            self._others[wanted] = next(others, len(self.queue))
        return self._others[wanted]


REVOKE = b"__REVOKE__"
_LONGEST = 200
_SOUND = 2**62
_YEARS = 4e12
"""Milliseconds; a time beyond it was not written by a clock."""


def written(description: str, timeout: float, ticket: int = 0, held: bool = False) -> bytes:
    """`ticket`: of the claim, where another node than this one gave it. `held`: it has just come to hold."""
    more = f'"session": {timeout:g}'
    if ticket:
        more += f', "ticket": {ticket}'
    if held:
        more += f', "held": {round(time.time() * 1000)}'
    return f"{description[:-1]}{', ' if len(description) > 2 else ''}{more}}}".encode()


def ticket_of(node: Node) -> int:
    """The token of the claim that a node belongs to."""
    said = _read(node.data).get("ticket")
    return said if isinstance(said, int) and said is not True and 0 < said < node.stat.czxid else node.stat.czxid


def participant(node: Node, weight: int, timeout: float) -> Participant:
    """`timeout`: of a session, where the node does not tell."""
    said = _read(node.data)
    held, lease = said.get("held"), said.get("session")
    since = held if isinstance(held, int) and node.stat.ctime <= held < _YEARS else node.stat.ctime
    return Participant(
        since=datetime.fromtimestamp(max(min(since, _YEARS), 0) / 1000, UTC),
        remaining=float(lease)
        if isinstance(lease, int | float) and 0 < lease < _SOUND and lease is not True
        else timeout,
        token=ticket_of(node),
        weight=weight,
        **_about(node.data, said),
    )


def _about(data: bytes, said: dict[str, Any]) -> dict[str, Any]:
    description = read_description(data.decode(errors="replace"))
    if not said and data and data != REVOKE:
        description["owner"] = printable(data[:_LONGEST].decode(errors="replace"))
    return description


def _read(data: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        said = json.loads(data)
        if isinstance(said, dict):
            return said
    return {}
