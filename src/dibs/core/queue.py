"""Interface Queue: the protocol that a store implements.

`connect()` makes a `Store`, which does no I/O until `open`. Each `Queue` is one way to talk to it: one for the API, and
blocking ones for the watchdog. Every verb is one round trip. It evicts the expired claims that it meets and signals
the new holders. After the instant `until` the caller no longer waits: the verb raises `StoreUnavailable`, and the
outcome is unknown. Invariants, each a test in dibs.testing.contract:

1. Ticket order is visibility order: no ticket becomes visible after a later one has been granted.
2. Expiry is a write. Renewal succeeds only before expiry by the store's clock, and never shortens a lease. Only the
   first join and a renewal extend; a repeated join and a message do not.
3. Tickets rise strictly per name for the life of the store.
4. A late join adds no claim: after `claim.by` it does nothing. A leave that follows an unanswered join leaves a
   tombstone until then, even if it found the claim: a repeated join may overtake the first one.
5. Kind and capacity belong to the name while its queue is not empty; other values get Mismatch and change nothing.
6. A leave with another id changes nothing. After the last leave only the ticket counter stays.
7. An expired holder frees its successor without help from anyone: a waiter's renewal also checks the queue.
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
    """Where a claim waits if it cannot hold at once: in the queue, outside it (an unfair waiter), or not at all."""

    QUEUE = auto()
    UNFAIR = auto()
    NOWHERE = auto()


QUEUE, UNFAIR, NOWHERE = Place


class Signal(Enum):
    """A message to a waiter: it holds (always addressed by its full id), or it should ask the store. `TRY`: at once,
    because of the unfair waiters of this client only this one was told."""

    YOURS = b"y"
    LOOK = b"l"
    TRY = b"t"


YOURS, LOOK, TRY = Signal


_SIGNALS = {signal.value: signal for signal in Signal}


def read_signal(message: bytes | None) -> Signal | None:
    """Parse a message; any message that is not a grant is a hint to ask the store."""
    return None if message is None else _SIGNALS.get(message, LOOK)


class Replaced(StoreUnavailable):
    """The store lost its data or was replaced: every claim of this client is void."""


class Unsent(StoreUnavailable):
    """The request never left this process: it had no effect and will have none."""


class ClientIdentity(NamedTuple):
    """A client as its store knows it: its id, and how to reach it."""

    id: bytes
    inbox: Inbox
    lease: float
    """The client's lease; where claims live by a session, the lifetime of that session."""
    news: Callable[[bytes], None]
    """Called with the id of a held claim that was removed or revoked: the watchdog then checks it at once. Safe from
    any thread; never waits; unknown ids do nothing."""


Taken = Standing | Awaitable[Standing | None] | None
Left = bool | Awaitable[bool | None] | None
Leave = tuple[Claim, bool]
"""A claim that leaves, and whether every join of it was answered."""


class Queue(Protocol):
    """One way to talk to the queues of a store."""

    async def connect(self, until: float) -> None:
        """Have a connection ready, where the store has connections."""

    def round_trip(self) -> float:
        """Seconds that a reply may take: the smoothed round-trip time plus four times its mean deviation. 0.0 where
        there is no network."""

    def take_now(self, claim: Claim, place: Place, until: float) -> Taken:
        """The free path of `join`, if that is possible at once.

        A sync queue returns the reply. In asyncio the request is sent here, and the result may be an awaitable of the
        reply. None: nothing was sent, call `join`. Raises StoreUnavailable: the outcome is unknown; call `join` with
        the same claim, which then only reports. Other errors are those of `join`.
        """

    def leave_now(self, claim: Claim, until: float) -> Left:
        """The free path of `leave`, for a claim whose joins were all answered.

        True: removed. False: the claim was gone already. None: nothing was sent, call `leave`. Raises
        StoreUnavailable: the outcome is unknown; call `leave`, whose reply then does not tell who removed the claim.
        """

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        """Idempotent by `claim.id`: a repetition reports, and never moves or extends. None: too late, no effect."""

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Standing | StoreUnavailable | None]:
        """Extend each claim to at least its lease, or its waiting lease while it waits. Never revives. None: gone.

        In a store of several servers, a claim gets the error of its own server. Raises only if no server answered.
        """

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        """Set the weight of this claim; idempotent. The weight only falls. In a FOREIGN store it is the sum of the
        weights of all holds, and rises with each re-entry."""

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        """Remove the claim; idempotent. Wakes exactly the new holders; if there are none, the unfair waiters of the
        name. False: the claim was gone before this call, so somebody removed it. True: removed, or not known."""

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        """`leave` for some hundreds of claims in one round trip, in any order. An error for a claim: it was refused,
        or its outcome is unknown. Raises only if no request was answered."""

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        """Wait for a signal. A spurious one is harmless, a missed one costs time. The inbox expects the claim before
        its join."""

    async def inspect(self, name: str, until: float) -> LockInfo:
        """The holders and waiters of a name."""

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        """A page of the queues whose names start with `prefix` and sort after `after`, in that order. An empty page is
        the end. A queue whose claims have all expired may be listed, empty."""

    async def revoke(self, name: str, token: int, until: float) -> bool:
        """Ask the holder with this ticket to release. False: there is none."""

    async def evict(self, name: str, token: int, until: float) -> bool:
        """Remove the holder with this ticket. False: there is none."""

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        """Wait until the first holder's ticket (0: no holder) is not `seen`. Returning without a change is fine.
        A queue of kind ELECTION reports a change at once, to the inbox under `key`; other kinds are polled."""

    async def identity(self, until: float) -> str:
        """An id kept in the store itself, equal for all its clients."""

    async def doctor(self, until: float) -> list[Finding]:
        """The guarantees of this store as it is set up, and their dangers, each tried or measured and with a fix.
        Components and versions have the level `about`. Leaves claims alone."""

    def close(self) -> None:
        """Free local resources. Claims stay as they are."""


class NamesHolders(Protocol):
    """The verb that only the queues of a FOREIGN store have."""

    async def evict_holder(self, name: str, holder: str, until: float) -> bool:
        """Remove the holder with this id. False: there is none."""


class Voter(Queue, Protocol):
    """The queues of a store that can be a member of a quorum: VOTES is among its capabilities."""

    async def stamp(self, claim: Claim, token: int, until: float) -> bool:
        """Replace the ticket of a claim by `token`, in one atomic step, and give only higher tickets on that name from
        then on. Idempotent. False: nothing changed, because the claim does not hold, has expired, has a higher ticket,
        or has another claim behind it."""

    async def settled(self, claim: Claim, least: float, until: float) -> float:
        """Seconds for which the server of this claim has surely kept everything that it acknowledged: since its last
        start, if that start may have lost data; inf if it loses nothing. Above `least` the value may be too low. Asked
        after an answered join, of the server that answers now."""

    async def clock(self, until: float) -> float:
        """The clock of the server, in seconds since 1970."""


class Member(NamedTuple):
    """One of the independent stores of a quorum."""

    shown: str
    queue: Voter


class Store(Protocol):
    """A connected backend, one per client."""

    shown: str
    """The name of the store in texts, without secrets."""
    backend: ClassVar[str]
    """The kind of store, in events and metrics: `redis`."""
    capabilities: ClassVar[frozenset[str]]
    """A subset of the words below."""

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue: ...

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        """Only where CELLS is among the capabilities."""

    def close(self) -> None: ...

    def before_fork(self) -> None: ...

    def after_fork(self, child: bool) -> None: ...


class InTables(Store, Protocol):
    """A store that needs tables, which an administrator may have to create: DDL is among its capabilities."""

    def ddl(self) -> str:
        """The statements that create all it needs; no I/O."""


class Transaction(Protocol):
    """A connection of the caller (`CallerConnection` of backends/sql/caller_connection.py)."""

    @property
    def server(self) -> str: ...

    async def require_transaction(self, why: str) -> None:
        """Raise StoreError in autocommit mode, where each statement commits by itself."""


class Encloses(Protocol):
    """Locks that a transaction of the caller holds until it ends."""

    async def enclose(
        self, caller: Any, name: str, description: str, wait: float | None, patience: float
    ) -> int | None:
        """Take the exclusive lock of a name for the transaction of `caller`. Returns its token, or None: it was busy.

        `wait` is in seconds; 0 tries once, None waits for ever. `patience`: how long to retry on our own connections.
        Errors of the caller's connection surface as its driver raises them. A failure leaves the transaction as it
        was, if it is still usable.
        """

    def close(self) -> None:
        """Free local resources."""


class Enclosing(Store, Protocol):
    """A store that takes part in transactions of the caller: WITHIN is among its capabilities."""

    server: ClassVar[str]
    """The `Transaction.server` that it accepts."""

    def open_within(self, runtime: Runtime, me: ClientIdentity) -> Encloses: ...


FAIR, RW, PERMITS, ATOMIC_TRY, CELLS = "fair", "rw", "permits", "atomic-try", "cells"
LEASES = "leases"
"""Each claim has a lease of its own, counted by the store. Without it all claims of a client live by its session: the
session expires and is renewed."""
RECORDS = "records"
"""Each claim is a record in the store, with a ticket and its `info`, in the queue or outside. Without it the server
queues the waiters itself: a waiter has no ticket before it holds, `fair=False` has no effect, and `info` is not
shown."""
VOTES = "votes"
"""It can be a member of a quorum: its queues are `Voter`s."""
QUORUM = "quorum"
"""It is a quorum of other stores: see core/quorum/grantor.py."""
DDL = "ddl"
"""It needs tables: see `InTables`."""
ELECTION = "election"
"""The kind of a queue whose holder is a leader that others follow."""
WITHIN = "within"
"""It can lock inside a transaction of the caller: see `Enclosing`."""
FOREIGN = "foreign"
"""It keeps locks in the format of another library, and shares them with its programs. Names have no namespace by
default. Only a mutex that asks for order (`fair=True`) or for a fencing token (`fenced=True`) has it. Waiters are not
recorded, unless the mutex is fair. Every hold of an `rlock` or `rwlock` counts in the store (see `Queue.amend`). A
holder is removed by the id that `inspect` shows as its owner."""
LATCHES = "latches"
"""It keeps latches itself: see core/latches.py. Without it they are kept in cells."""
FAIR_MUTEX, FENCED_MUTEX, EXPIRING_SEMAPHORE = "fair mutex", "fenced mutex", "expiring semaphore"
"""Values of `Claim.kind` in a FOREIGN store. Everywhere else the kind of such a lock is `mutex` or `semaphore`."""
