"""The order of the nodes in a directory, and which of them hold: Curator's names, and the rule over them. No I/O.

A node is called `_c_<uuid>-<word><number>`: the uuid is the id of its claim, and the server assigns the number. Nodes
are ordered by their numbers as texts, whatever precedes them, as in Curator.

| word                  | used by                                       | capacity | weight        |
|-----------------------|-----------------------------------------------|----------|---------------|
| `lock-`               | lock, rlock; InterProcessMutex                | 1        | 1             |
| `latch-`              | election; LeaderLatch                         | 1        | 1             |
| `__READ__` `__WRIT__` | rwlock; InterProcessReadWriteLock             | many     | 1, all of it  |
| `striped-<n>-`        | the guard of n stripes                        | n        | 0             |
| `lease-`              | permits; InterProcessSemaphoreV2, in `leases` | permits  | 1             |

A node of another kind before ours means that the name is in use as something else.
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
"""From this number on, an empty directory is removed, so that numbers start again."""
REFUSE_AT = 2**31 - 2**20
"""From this number on, nodes are refused: at 2**31 numbers repeat, or fall."""

DIGITS = 10
"""Digits of a sequence number."""
_NAME = re.compile(r"(lock-|latch-|lease-|__READ__|__WRIT__|[a-z]{1,20}-[0-9]{1,9}-)(-?[0-9]{10})\Z")
"""Bounded, because others may write names of any length."""
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
        """Capacity of its queue; 1 for a semaphore, whose names do not contain it."""
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

    is_listed: bool
    holds: bool = False
    watch: str = ""
    """The node whose end it must wait for."""
    foreign: str = ""
    """A preceding node of another kind."""


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
    """The part of a name that all nodes of one claim share: Curator's protection prefix, or else the whole name.

    >>> owner_of("_c_00010203-0405-0607-0809-0a0b0c0d0e0f-lock-0000000001")
    '_c_00010203-0405-0607-0809-0a0b0c0d0e0f-'
    """
    found = re.match(r"_c_[0-9a-fA-F-]{32,36}-", name)
    return found[0] if found else name


def id_of(name: str) -> bytes:
    """The id of the claim of a node; empty: not a claim of dibs.

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
        return Contender(number, LOCK, name)  # as the expression below, ten times as fast
    found = _NAME.search(name)
    return None if found is None else Contender(found[2], found[1], name)


def in_order(children: Iterable[str]) -> tuple[list[Contender], list[str]]:
    """The contenders in order, and all other names."""
    queue: list[Contender] = []
    strange: list[str] = []
    for name in children:
        found = parse(name)
        if found is None:
            strange.append(name)
        else:
            queue.append(found)
    # A READ with the number of a writer (which also reads, or was downgraded) comes right behind it.
    queue.sort(key=lambda one: (one.number, one.word != WRITE))
    return queue, strange


class Listing:
    """The children of a directory, parsed once for all claims that need them."""

    def __init__(self, children: Sequence[str]) -> None:
        self.queue, strange = in_order(children)
        self.strange = [name for name in strange if not name.startswith("%")]
        self._foreign = self.strange[0] if self.strange else ""
        words = {one.word for one in self.queue}
        self.word = None if self._foreign or len(words) > 1 else "".join(words)
        """The word of all nodes, "" if there are none; None: they have several, or something else is there."""
        self._positions = {one.name: position for position, one in enumerate(self.queue)}
        self._others: dict[tuple[str, int], int] = {}
        self._ahead: Sequence[int] = range(len(self.queue) + 1)
        """The total weight before each contender, and of all."""
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
        """The nearest node before `own`; "": it is first. None: it is not listed."""
        position = self._positions.get(own)
        return None if position is None else self.queue[position - 1].name if position else ""

    def judge(self, own: str, claim: Claim) -> Verdict:
        """Apply the rule to a node."""
        position = self._positions.get(own)
        if position is None:
            return Verdict(is_listed=False)
        mine, other = self.queue[position], self._first_other(claim)
        foreign = self.queue[other].name if other < position else self._foreign
        if fits(self._ahead[position], mine.weight, claim.capacity):
            return Verdict(is_listed=True, holds=True, foreign=foreign)
        # A reader waits for the nearest writer before it, all others for the nearest node.
        nearest = self._writers[position] if mine.word == READ else -1
        if nearest < 0:
            nearest = position - 1
        return Verdict(is_listed=True, watch=self.queue[nearest].name, foreign=foreign)

    def would_hold(self, claim: Claim) -> tuple[bool, str, str]:
        """Whether a claim without a node would hold; the node to watch until then; a node of another kind."""
        queue, capacity = self.queue, claim.capacity
        other = self._first_other(claim)
        foreign = queue[other].name if other < len(queue) else self._foreign
        last = queue[-1].name if queue else ""
        if queue and not fits(self._ahead[-2], queue[-1].weight, capacity):
            return False, last, foreign  # others wait, and nobody passes them
        return fits(self._ahead[-1], claim.weight, capacity), last, foreign

    def _first_other(self, claim: Claim) -> int:
        """The position of the first contender of another kind or size; the length of the queue if there is none."""
        wanted = (claim.kind, claim.capacity)
        if wanted not in self._others:
            some = self.queue if self.word is None else self.queue[:1]  # all others have the same word
            others = (position for position, one in enumerate(some) if (one.kind, one.capacity) != wanted)
            self._others[wanted] = next(others, len(self.queue))
        return self._others[wanted]


REVOKE = b"__REVOKE__"
_LONGEST_OWNER = 200
_LONGEST_LEASE = 2**62
_YEARS = 4e12
"""Milliseconds; a later time is not credible."""


def written(description: str, timeout: float, ticket: int = 0, held: bool = False) -> bytes:
    """The data of a node. `ticket`: the claim's, if it is not the czxid of this node. `held`: the claim holds from now
    on."""
    more = f'"session": {timeout:g}'
    if ticket:
        more += f', "ticket": {ticket}'
    if held:
        more += f', "held": {round(time.time() * 1000)}'
    return f"{description[:-1]}{', ' if len(description) > 2 else ''}{more}}}".encode()


def ticket_of(node: Node) -> int:
    """The token of the claim of a node."""
    said = _read(node.data).get("ticket")
    return said if isinstance(said, int) and said is not True and 0 < said < node.stat.czxid else node.stat.czxid


def participant(node: Node, weight: int, timeout: float) -> Participant:
    """`timeout`: the default, if the node does not say how long its session lasts."""
    said = _read(node.data)
    held, lease = said.get("held"), said.get("session")
    since = held if isinstance(held, int) and node.stat.ctime <= held < _YEARS else node.stat.ctime
    description = read_description(node.data.decode(errors="replace"))
    if not said and node.data and node.data != REVOKE:
        description["owner"] = printable(node.data[:_LONGEST_OWNER].decode(errors="replace"))
    is_sound = isinstance(lease, int | float) and 0 < lease < _LONGEST_LEASE and lease is not True
    remaining = float(lease) if is_sound and lease is not None else timeout
    return Participant(
        since=datetime.fromtimestamp(max(min(since, _YEARS), 0) / 1000, UTC),
        remaining=remaining,
        token=ticket_of(node),
        weight=weight,
        **description,
    )


def _read(data: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        said = json.loads(data)
        if isinstance(said, dict):
            return said
    return {}
