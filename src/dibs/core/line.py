"""Seam 2: what a store writes.

A `Store` is made by `connect()` and does no I/O until `open`. Each of its `Line`s is one way to talk to it: one for
the face and one, blocking, for the watchdog. Verbs are one round trip each; every verb evicts what expired where it
looks and signals whoever now holds. `until` is the instant after which the caller no longer waits for the answer: the
verb then raises `StoreUnavailable`, and the outcome is unknown. Invariants, each a test in dibs.testing.contract:

1. Ticket order is visibility order: no ticket becomes visible after a later one has been granted.
2. Expiry is a write; renewing succeeds only while unexpired, by the store's clock, and never shortens. Only the first
   join and renew extend; a repeated join and a message do not.
3. Tickets rise strictly per name for the life of the store.
4. A late join makes no ghost: after `claim.by` it does nothing, and a leave that follows an unanswered join leaves a
   tombstone until then, also if it found the claim: a repeated join may have been answered while the first one is late.
5. Kind and capacity belong to the name while its line is not empty; anything else gets Mismatch and changes nothing.
6. A leave with another id changes nothing; after everybody left, nothing stays but the ticket counter.
7. An expired holder frees its successor without anyone's help: a waiter's renewal is its look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, Protocol

from dibs.core.cells import Cells
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo


class Place(Enum):
    """Where a claim that cannot hold at once is to stand."""

    LINE = auto()
    OUTSIDE = auto()
    NOWHERE = auto()


LINE, OUTSIDE, NOWHERE = Place


class Signal(Enum):
    """What a waiter is told: that it holds (only ever by its full id), or that it should look."""

    YOURS = b"y"
    LOOK = b"l"


YOURS, LOOK = Signal


def read_signal(message: bytes | None) -> Signal | None:
    """What a message says; anything that is not a grant is a hint to look."""
    return None if message is None else YOURS if message == YOURS.value else LOOK


class Replaced(StoreUnavailable):
    """The store is no longer the one that our claims stand in: every one of them is void."""


class Unsent(StoreUnavailable):
    """What was asked never left this process: it did not happen, and it will not."""


class Me:
    """A client as its store knows it: whom to wake, and how to hand over what concerns this process."""

    __slots__ = ("id", "inbox", "lease", "news")

    def __init__(self, id: bytes, inbox: Inbox, lease: float, news: Callable[[bytes], None]) -> None:
        self.id = id
        self.inbox = inbox
        self.lease = lease
        """The client's: where claims live by a session, what that is to last."""
        self.news = news
        """To be called with the id of a claim that this process holds once something happened to it (it was removed, it
        was asked to let go): the watchdog then looks at once. From any thread; never waits; strange ids do nothing."""


Taken = Standing | Awaitable[Standing | None] | None
Left = bool | Awaitable[bool | None] | None
Leave = tuple[Claim, bool]
"""A claim that is to leave, and whether every join of it was answered."""


class Line(Protocol):
    """One way to talk to a store."""

    async def connect(self, until: float) -> None:
        """Have a connection ready; nothing where there is none."""

    def round_trip(self) -> float:
        """Seconds that an answer may take now, by those that came: the smoothed round-trip time and four times its mean
        deviation. 0.0 where there is no network."""

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken:
        """`join` in one straight line, if that is possible here and now.

        A sync queue returns the answer; in asyncio the request is sent here, and the result may be an awaitable of the
        answer. None: nothing was sent, ask `join`. Raises StoreUnavailable: the outcome is unknown; ask `join` with
        the same claim, which then only reports. Other errors are those of `join`.
        """

    def leave_now(self, claim: Claim, until: float) -> Left:
        """`leave` in one straight line, of a claim whose joins were all answered.

        True: it stood and is gone. False: it did not stand any more. None: nothing was sent, ask `leave`. Raises
        StoreUnavailable: the outcome is unknown; ask `leave`, whose answer then does not say whether it stood.
        """

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        """Idempotent by `claim.id`: a repetition reports, and never moves or extends. None: void, too late."""

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Standing | StoreUnavailable | None]:
        """Extend each to at least its lease (its waiting lease while it waits); never revives. None: gone. Where a
        store is several servers, what became of a part of them says nothing about the others: those whose server did
        not answer have the error in their place, and one is raised only if none was answered."""

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        """Lower one's own weight; idempotent."""

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        """Idempotent; wakes exactly those it frees, or, if nobody in line is freed, the outsiders of the name. False:
        it did not stand any more when this was asked, so somebody took it away; True also where that is not known."""

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        """`leave` of some hundreds in one round trip, in any order. An error in the place of one: it was refused, or
        its outcome is unknown. Raises only if none was answered."""

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        """Wait for a signal. Spurious is fine, missing costs time; the inbox expects the claim before its join."""

    async def line(self, name: str, until: float) -> LockInfo:
        """The line as it stands."""

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        """A page of the lines whose names start with `prefix` and sort behind `after`, in that order; an empty page is
        the end. A line in which all is over may be among them, empty."""

    async def revoke(self, name: str, token: int, until: float) -> bool:
        """Ask the claim with that ticket to let go. False: it is not there."""

    async def evict(self, name: str, token: int, until: float) -> bool:
        """Remove the claim with that ticket. False: it is not there."""

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        """Wait until the first holder's ticket (0: nobody holds) is not `seen`. Returning without a change is fine.
        In a line of the kind ELECTION a change is told at once, to the inbox under `key`; elsewhere a look finds it."""

    async def identity(self, until: float) -> str:
        """An id kept in the store itself, equal for all who talk to it."""

    async def doctor(self, until: float) -> list[Finding]:
        """What the store promises as it stands here, and what endangers that, each tried or measured; every danger
        has a fix. What it is made of, with versions, is said at the level `about`. Claims are left alone."""

    def close(self) -> None:
        """Let go of what this line holds on the machine; claims are not its business."""


class Voter(Line, Protocol):
    """The line of a store that can be a member of a quorum: VOTES is among its capabilities."""

    async def stamp(self, claim: Claim, token: int, until: float) -> bool:
        """One atomic step: if the claim holds, is not expired, has no higher ticket and nobody stands behind it, then
        `token` takes the place of its ticket, and every ticket given on that name from now on is higher. Idempotent.
        False: one of that was not so, and nothing was changed."""

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        """For how many seconds, at least, the server that has this claim has had everything that it ever acknowledged:
        since its last start, if that may have cost it something; inf: it loses nothing. If it is `least` or more, how
        much more does not matter. Asked behind an answered join, and true of whoever answers now."""

    async def clock(self, until: float) -> float:
        """What its clock shows, in seconds since 1970."""


class Member(NamedTuple):
    """One of the independent stores of a quorum."""

    shown: str
    line: Voter


class Store(Protocol):
    """A connected backend, one per client."""

    shown: str
    """How the store is called in texts: no secret."""
    capabilities: ClassVar[frozenset[str]]
    """What it can do, of the words below."""

    def open(self, runtime: Runtime, me: Me) -> Line: ...

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        """Only where CELLS is among the capabilities."""

    def close(self) -> None: ...

    def before_fork(self) -> None: ...

    def after_fork(self, child: bool) -> None: ...


class InTables(Store, Protocol):
    """A store in tables of a database, which somebody else may have to make: DDL is among its capabilities."""

    def ddl(self) -> str:
        """The statements that make all it needs, for whoever may run them; no I/O."""


class Transaction(Protocol):
    """A connection of the caller's own, as the store that it is to sees it (`Own` of backends/sql/own.py)."""

    @property
    def server(self) -> str: ...

    async def require_transaction(self, why: str) -> None:
        """StoreError: each statement would be committed by itself."""


class Encloses(Protocol):
    """Locks that are held by a transaction of the caller's own, and end with it."""

    async def enclose(self, own: Any, name: str, about: str, wait: float | None, patience: float) -> int | None:
        """Take the exclusive lock of that name for the transaction `own` is in; its token, or None: it was not free.
        `wait`: so many seconds, 0: once, None: for ever. `patience`: how long a silent store is asked again, on
        connections of ours; errors of the caller's own surface as its driver raises them. Whatever else ends this
        leaves the transaction as it was, if it still can be used."""

    def close(self) -> None:
        """Let go of what this holds on the machine."""


class Enclosing(Store, Protocol):
    """A store that takes part in transactions of the caller's own: WITHIN is among its capabilities."""

    server: ClassVar[str]
    """Whose connections it takes: the word of `Transaction.server`."""

    def open_within(self, runtime: Runtime, me: Me) -> Encloses: ...


FAIR, RW, PERMITS, ATOMIC_TRY, CELLS = "fair", "rw", "permits", "atomic-try", "cells"
LEASES = "leases"
"""Each claim has a lease of its own, counted by the store; without it the claims of a client live as long as its
session, which then is what expires and is renewed."""
RECORDS = "records"
"""Each claim is a record of the store's: with a ticket from the start, with all it says of itself, in the line or
outside. Without it the line is a queue of the server's own: who waits there has no ticket before it holds, who comes
with `fair=False` stands in it like everybody else, and of `info` nothing is shown."""
VOTES = "votes"
"""It can be a member of a quorum: its lines are `Voter`s."""
QUORUM = "quorum"
"""It is a quorum of others: see core/quorum.py."""
DDL = "ddl"
"""It needs tables: see `InTables`."""
ELECTION = "election"
"""The kind of line whose holder others follow."""
WITHIN = "within"
"""It can lock inside a transaction of the caller's own: see `Enclosing`."""
