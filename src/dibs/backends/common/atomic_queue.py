"""The verbs of `Queue` for stores whose queues this process can read and write in one atomic step (memory, sqlite).

A `QueueTable` keeps the entries. The store calls each verb inside its own atomic step. A verb returns its reply and the
`Wake`s to send once that step is committed. `now` is the clock of the store. A verb removes the expired entries that
it meets, and those of dead clients; the new holders are woken, as by a leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from dibs.core.cells import CellKey
from dibs.core.deadline import FOREVER
from dibs.core.queue import ELECTION, LOOK, QUEUE, UNFAIR, YOURS, Leave, Place, Signal
from dibs.core.rule import Claim, Entry, Head, Standing, fits, head
from dibs.errors import Mismatch
from dibs.info import LockInfo, Participant, bounded, printable, read_description


class Wake(NamedTuple):
    client: bytes
    id: bytes
    signal: Signal


class Tombs(dict[bytes, float]):
    """The ids of claims that left while their join may still be in flight, each with the instant when it expires."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[tuple[float, bytes]] = []

    def bury(self, id: bytes, until: float, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            self.pop(heappop(self._ends)[1], None)
        heappush(self._ends, (until, id))
        self[id] = until


class Watched(Protocol):
    """The watchers of a store."""

    def dismiss(self, cell_key: CellKey) -> list[tuple[bytes, bytes]]:
        """Remove the watchers of a key; return the client and message key of each."""


class QueueTable(Watched, Protocol):
    """The entries of a store; every method runs inside the caller's atomic step."""

    poll_interval: float
    """Seconds after which a waiter must check the queue, because a client ahead may die without notice."""

    def queue(self, name: str) -> Iterable[Entry]:
        """The entries in ticket order, read lazily."""

    def find(self, name: str, claims: Sequence[Claim]) -> dict[bytes, Entry]: ...

    def add(self, name: str, entry: Entry) -> None: ...

    def write(self, name: str, entries: Sequence[Entry]) -> None: ...

    def remove(self, name: str, entry: Entry) -> None: ...

    def ticket(self, now: float) -> int: ...

    def dead(self, client: bytes) -> bool: ...

    def bury(self, id: bytes, until: float, now: float) -> None: ...

    def buried(self, id: bytes) -> bool: ...

    def unfair_waiters(self, name: str) -> list[tuple[bytes, bytes]]:
        """The client and id of each unfair waiter."""

    def wait_unfair(self, name: str, claim: Claim, until: float) -> None: ...

    def come_in(self, name: str, id: bytes) -> None: ...


class Stamped(QueueTable, Protocol):
    """The table of a store that can be a member of a quorum: its tickets can be raised."""

    def restamp(self, name: str, entry: Entry, token: int) -> None:
        """Replace the ticket of an entry by `token`; all later tickets are higher."""


QUEUES = "line"
"""The space of the queues, for watchers."""
PAGE = 1000
"""A page ends after the queue that reaches this many claims."""
NOBODY: tuple[Entry, ...] = ()
"""The result of `QueueTable.queue` for a queue that is surely empty."""
_LONG = 1e9
"""Seconds, about 30 years: a longer wait is damaged data."""
EMPTY = Head([], [], [], None, 0, FOREVER)


def expired(entry: Entry, now: float) -> bool:
    return entry.until <= now


def renewable(entry: Entry, now: float) -> bool:
    """Whether a claim may be renewed: renewal never revives an expired one."""
    return not expired(entry, now)


def extended(entry: Entry, length: float, now: float) -> float:
    """The new expiry of a claim: renewal never shortens it."""
    return max(entry.until, now + length)


def join(table: QueueTable, claim: Claim, place: Place, now: float) -> tuple[Standing | None, list[Wake]]:
    if too_late(claim, now) or table.buried(claim.id):
        return None, []
    again, claim.asked = claim.asked, True
    if again and (entry := known(table, claim)) is not None:
        return _report(table, claim, entry, now)
    seen, wakes = _sweep_head(table, claim.name, now)
    if seen is not EMPTY:
        _match(claim, seen)
    holds = seen.blocked is None and fits(seen.used, claim.weight, claim.capacity)
    upcoming = FOREVER if holds else min(seen.next - now, table.poll_interval)
    if not holds and place is not QUEUE:
        if place is UNFAIR:
            table.wait_unfair(claim.name, claim, now + claim.waiting)
        return Standing(0, False, 0.0, upcoming, False), wakes
    if again:  # an earlier join may have made it an unfair waiter
        table.come_in(claim.name, claim.id)
    left = claim.lease if holds else claim.waiting
    entry = Entry(
        table.ticket(now), claim.id, claim.client, claim.kind, claim.capacity, claim.weight,
        now + left, now, now if holds else None, False, claim.description,
    )  # fmt: skip
    table.add(claim.name, entry)
    claim.ticket = entry.ticket
    if holds and claim.kind == ELECTION:
        wakes += tell(table, CellKey(QUEUES, claim.name))
    return Standing(entry.ticket, holds, left, upcoming, False), wakes


def look(table: QueueTable, claims: Sequence[Claim], now: float) -> list[Standing] | None:
    """The reply of `renew` where nothing needs to be written: all claims wait, at least two thirds of their waiting
    lease is left, and no entry ahead has ended. None: call `renew`."""
    found: dict[bytes, Standing] = {}
    for name, mine in _by_name(claims).items():
        seen = head(table.queue(name), lambda entry: expired(entry, now) or table.dead(entry.client))
        ids = {claim.id for claim in mine}
        entries = table.find(name, mine)
        if seen.gone or len(entries) < len(ids) or any(entry.id in ids for entry in seen.holding):
            return None
        first = min(entry.ticket for entry in entries.values())
        for claim in mine:
            entry = entries[claim.id]
            left = entry.until - now
            if left < claim.waiting * 2 / 3:
                return None
            upcoming = min(seen.next - now, table.poll_interval if entry.ticket == first else FOREVER)
            found[claim.id] = Standing(entry.ticket, False, left, upcoming, entry.revoked)
    return [found[claim.id] for claim in claims]


def renew(table: QueueTable, claims: Sequence[Claim], now: float) -> tuple[list[Standing | None], list[Wake]]:
    answers: dict[bytes, Standing] = {}
    wakes: list[Wake] = []
    for name, mine in _by_name(claims).items():
        seen, woken = _sweep_head(table, name, now)
        wakes += woken
        held = {entry.id: entry for entry in seen.holding}
        waiting = [claim for claim in mine if claim.id not in held]
        entries = {**held, **table.find(name, waiting)} if waiting else held
        upcoming = seen.next - now
        # Only the first waiter checks the queue every `poll_interval` seconds: an eviction signals the new holders.
        looks = min((entries[claim.id].ticket for claim in waiting if claim.id in entries), default=None)
        kept = []
        for claim in mine:
            entry = entries.get(claim.id)
            if entry is None:
                continue
            if not renewable(entry, now):
                table.remove(name, entry)
                continue
            holds = entry.id in held
            entry.until = extended(entry, claim.lease if holds else claim.waiting, now)
            if holds and entry.held is None:
                entry.held = now
            kept.append(entry)
            claim.ticket = entry.ticket
            poll_interval = table.poll_interval if entry.ticket == looks else FOREVER
            answers[claim.id] = Standing(
                entry.ticket, holds, entry.until - now, min(upcoming, poll_interval), entry.revoked
            )
        table.write(name, kept)
    return [answers.get(claim.id) for claim in claims], wakes


def _by_name(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    queues: dict[str, list[Claim]] = {}
    for claim in claims:
        queues.setdefault(claim.name, []).append(claim)
    return queues


def amend(table: QueueTable, claim: Claim, weight: int, now: float) -> tuple[None, list[Wake]]:
    entry = known(table, claim)
    if entry is None or entry.weight <= weight:
        return None, []
    entry.was, entry.weight = entry.weight, weight
    table.write(claim.name, [entry])
    wakes = _sweep_head(table, claim.name, now, changed=entry)[1]
    entry.was = None
    return None, wakes


def leave(table: QueueTable, claim: Claim, answered: bool, now: float) -> tuple[bool, list[Wake]]:
    seen, wakes = _sweep_head(table, claim.name, now, lambda entry: is_own(entry, claim))
    if not answered and not too_late(claim, now):
        table.bury(claim.id, claim.by, now)
    for entry in seen.gone:
        if is_own(entry, claim):
            return True, wakes
    if claim.asked:
        behind = known(table, claim)
        if behind is not None:
            table.remove(claim.name, behind)
            return True, wakes
        table.come_in(claim.name, claim.id)
    return False, wakes


def leave_all(table: QueueTable, leaving: Sequence[Leave], now: float) -> tuple[list[None], list[Wake]]:
    """Remove the latest tickets first, so that none of these claims is woken because another one left."""
    wakes: list[Wake] = []
    for claim, answered in sorted(leaving, key=lambda item: -(item[0].ticket or 0)):
        wakes += leave(table, claim, answered, now)[1]
    return [None] * len(leaving), wakes


def stamp(table: Stamped, claim: Claim, token: int, now: float) -> tuple[bool, list[Wake]]:
    """Raise the ticket of a claim that still holds. A claim that stalled and lost its place changes nothing."""
    seen, wakes = _sweep_head(table, claim.name, now)
    own = [entry for entry in seen.holding if is_own(entry, claim)]
    if not own or own[0] is not seen.holding[-1] or seen.blocked is not None or own[0].ticket > token:
        return False, wakes
    table.restamp(claim.name, own[0], token)
    claim.ticket = token
    return True, wakes


def known(table: QueueTable, claim: Claim) -> Entry | None:
    """The entry of a claim: a repeated join finds the entry of the first one."""
    return table.find(claim.name, [claim]).get(claim.id)


def is_own(entry: Entry, claim: Claim) -> bool:
    """Compare the secret ids, not the tickets: only its own client may end a claim."""
    return entry.id == claim.id


def evict(table: QueueTable, name: str, token: int, now: float) -> tuple[bool, list[Wake]]:
    """Remove a holder; never a waiter."""
    seen, wakes = _sweep_head(table, name, now)
    if all(entry.ticket != token for entry in seen.holding):
        return False, wakes
    _, more = _sweep_head(table, name, now, lambda entry: entry.ticket == token)
    return True, wakes + more


def revoke(table: QueueTable, name: str, token: int, now: float) -> tuple[bool, list[Wake]]:
    seen, wakes = _sweep_head(table, name, now)
    for entry in seen.holding:
        if entry.ticket == token:
            entry.revoked = True
            table.write(name, [entry])
            return True, wakes
    return False, wakes


def view(table: QueueTable, name: str, now: float, wall: datetime) -> LockInfo:
    """The holders and waiters of a name. Changes nothing; expired entries are left out."""
    return shown(name, list(_alive(table, table.queue(name), now)), now, wall)


def page(
    table: QueueTable, queues: Iterable[tuple[str, Sequence[Entry]]], now: float, wall: datetime
) -> list[LockInfo]:
    """A page of queues, which are read lazily, up to the end of the page."""
    found, claims = [], 0
    for name, queue in queues:
        found.append(shown(name, list(_alive(table, queue, now)), now, wall))
        claims += len(queue)
        if claims >= PAGE:
            break
    return found


def _alive(table: QueueTable, queue: Iterable[Entry], now: float) -> Iterator[Entry]:
    return (entry for entry in queue if not (expired(entry, now) or table.dead(entry.client)))


def shown(name: str, alive: Sequence[Entry], now: float, wall: datetime) -> LockInfo:
    """Describe the entries of a queue, without the expired ones."""
    if not alive:
        return LockInfo(name=name)
    seen = head(alive, lambda _: False)
    participants = tuple(_participant(entry, now, wall) for entry in alive)
    count = len(seen.holding)
    return LockInfo(
        name=name, kind=alive[0].kind, capacity=alive[0].capacity, holders=participants[:count],
        waiters=participants[count:],
    )  # fmt: skip


def foremost(table: QueueTable, name: str, now: float) -> tuple[int, float]:
    """The ticket of the first holder (0: none), and the instant at which it can expire."""
    first = next(_alive(table, table.queue(name), now), None)
    return (0, FOREVER) if first is None else (first.ticket, first.until)


def tell(table: Watched, cell_key: CellKey) -> list[Wake]:
    """The wakes for the watchers of a cell or queue that changed."""
    return [Wake(client, key, LOOK) for client, key in table.dismiss(cell_key)]


def too_late(claim: Claim, now: float) -> bool:
    return now > claim.by


def _sweep_head(
    table: QueueTable,
    name: str,
    now: float,
    leaves: Callable[[Entry], bool] | None = None,
    changed: Entry | None = None,
) -> tuple[Head, list[Wake]]:
    """Walk the queue, remove ended entries, and return the wakes for new holders, watchers and unfair waiters."""
    queue = table.queue(name)
    if queue is NOBODY:
        return EMPTY, []
    if changed is not None:
        queue = (changed if entry.ticket == changed.ticket else entry for entry in queue)

    def gone(entry: Entry) -> bool:
        return (leaves is not None and leaves(entry)) or expired(entry, now) or table.dead(entry.client)

    seen = head(queue, gone)
    told: list[Wake] = []
    if seen.gone:
        sweep(table, name, seen.gone)
        if seen.gone[0].kind == ELECTION:
            told = tell(table, CellKey(QUEUES, name))
    if seen.freed:
        return seen, told + [Wake(entry.client, entry.id, YOURS) for entry in seen.freed]
    if (seen.gone or changed) and seen.blocked is None:
        return seen, told + [Wake(client, id, LOOK) for client, id in table.unfair_waiters(name)]
    return seen, told


def sweep(table: QueueTable, name: str, gone: Sequence[Entry]) -> None:
    """Expiry is a write: an entry that readers merely skip could be renewed later, beside its successor."""
    for entry in gone:
        table.remove(name, entry)


def _match(claim: Claim, seen: Head) -> None:
    there = seen.holding[0] if seen.holding else seen.blocked
    if there is not None and (there.kind, there.capacity) != (claim.kind, claim.capacity):
        raise mismatch(there.kind, there.capacity, claim)


def mismatch(kind: str, capacity: int, claim: Claim) -> Mismatch:
    return Mismatch(
        f"busy as {_sized(kind, capacity)}, not as {_sized(claim.kind, claim.capacity)}",
        step="use one kind and size for one name, or wait until its queue is empty",
    )


def _sized(kind: str, capacity: int) -> str:
    """The kind, with its size if the user chose it."""
    return f"{printable(kind[:40])} of {capacity}" if kind in ("semaphore", "striped") else printable(kind[:40])


def _report(table: QueueTable, claim: Claim, entry: Entry, now: float) -> tuple[Standing | None, list[Wake]]:
    """Answer a repeated join: report the entry, extend nothing."""
    seen, wakes = _sweep_head(table, claim.name, now)
    if any(gone.id == claim.id for gone in seen.gone):
        return None, wakes
    if expired(entry, now):
        table.remove(claim.name, entry)
        return None, wakes
    claim.ticket = entry.ticket
    holds = any(held.ticket == entry.ticket for held in seen.holding)
    upcoming = min(seen.next - now, table.poll_interval)
    return Standing(entry.ticket, holds, entry.until - now, upcoming, entry.revoked), wakes


def _participant(entry: Entry, now: float, wall: datetime) -> Participant:
    since = wall - timedelta(seconds=min(max(now - (entry.asked if entry.held is None else entry.held), 0.0), _LONG))
    return Participant(
        since=since.astimezone(UTC),
        remaining=bounded(entry.until - now),
        token=entry.ticket,
        weight=entry.weight,
        **read_description(entry.description),
    )
