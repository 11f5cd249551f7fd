"""Each safeguard of the core, and its broken twin: the code of somebody who had not thought of it.

A safeguard is a named function; `BROKEN[name]` replaces it (or the two that make it up) for the length of a `with`. The
simulator must find every one of them; `tests/sim/test_broken.py` says within how many schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from inspect import getsource
from textwrap import dedent
from typing import Any
from unittest.mock import patch

from dibs.backends.common import atomic_queue
from dibs.backends.memory import World
from dibs.core import acquire, grants, watchdog
from dibs.core.acquire import QueueGrantor
from dibs.core.deadline import margin
from dibs.core.grants import Grant
from dibs.core.kinds import multi
from dibs.core.registry import HoldRegistry
from dibs.core.rule import Claim, Entry, Standing
from sim.broken_cells import CELLS_BROKEN
from sim.quorum import QUORUM_BROKEN

WAITING = 1.0
"""The lease of a waiter's renewal in the twin that lets it shorten."""

_expired, _passed_over = atomic_queue.expired, set[bytes]()
_answer, _granted, _report, _sweep_head = Grant.answer, Grant.granted, atomic_queue._report, atomic_queue._sweep_head


def _with_left(standing: Standing, left: float) -> Standing:
    said = copy(standing)
    said.left = left
    return said


def _from_the_reply(self: Grant, standing: Standing, sent_at: float) -> None:
    """Counted from when the answer arrived."""
    _answer(self, standing, self.holds[0].context.now() if self.holds else sent_at)


def _own_lease(self: Grant, standing: Standing, sent_at: float) -> None:
    """Count the requested lease, not what the store says is left."""
    _answer(self, _with_left(standing, self.request.lease), sent_at)


def _as_new(table: Any, claim: Claim, entry: Entry, now: float) -> Any:
    """A repeated join is answered as if it had extended."""
    standing, wakes = _report(table, claim, entry, now)
    return (standing and _with_left(standing, claim.lease)), wakes


def _by_message(self: Grant, now: float) -> None:
    """That it was granted is taken for a renewal."""
    self.until = max(self.until, now + self.request.lease - margin(self.request.lease))
    _granted(self, now)


def _pass_over(entry: Entry, now: float) -> bool:
    if _expired(entry, now):
        _passed_over.add(entry.id)
    return _expired(entry, now)


def _filter_only(table: Any, name: str, gone: Sequence[Entry]) -> None:
    """Delete claims that left; only skip those that expired."""
    for entry in gone:
        if entry.id not in _passed_over:
            table.remove(name, entry)


def _evict_in_silence(table: Any, name: str, now: float, leaves: Any = None, changed: Any = None) -> Any:
    seen, wakes = _sweep_head(table, name, now, leaves, changed)
    return seen, wakes if leaves is not None or changed is not None else []


async def _join_again(self: HoldRegistry, hold: Any, request: Any, description: str) -> bool:
    """Re-entry is a matter for the store."""
    fresh = Grant(request)
    self._add(fresh, hold)
    return await self._opened().acquire(fresh, hold.weight, description, hold.deadline)


def _yes(*_: Any) -> bool:
    return True


def _no(*_: Any) -> bool:
    return False


BROKEN: dict[str, list[tuple[object, str, Callable[..., Any]]]] = {
    "owner check on leave": [(atomic_queue, "is_own", _yes)],
    "deadline from before the send": [(Grant, "answer", _from_the_reply)],
    "margin": [(module, "valid_until", lambda sent_at, left: sent_at + left) for module in (grants, acquire)],
    "left taken from the store": [(Grant, "answer", _own_lease)],
    "no extension by a repeated join": [(atomic_queue, "_report", _as_new)],
    "no extension by a message": [(Grant, "granted", _by_message)],
    "renewing never shortens": [(atomic_queue, "extended", lambda entry, length, now: now + min(length, WAITING))],
    "no renewal past the deadline": [(watchdog, "may_renew", _yes)],
    "idempotent join": [(atomic_queue, "known", lambda table, claim: None)],
    "by": [(atomic_queue, "too_late", _no)],
    "tombstone": [(World, "buried", _no)],
    "own claim re-checked": [(QueueGrantor, "_may_count_on", _yes)],
    "expiry as a write": [
        (atomic_queue, "expired", _pass_over),
        (atomic_queue, "sweep", _filter_only),
        (atomic_queue, "renewable", _yes),
    ],
    "eviction signals": [(atomic_queue, "_sweep_head", _evict_in_silence)],
    "re-entry settled locally": [(HoldRegistry, "_acquire_shared", _join_again)],
    "global order of multi": [(multi, "in_order", list)],
    "doubt about an unanswered join": [(Grant, "doubt", lambda self: None)],
    "a confirmation that is not over": [(QueueGrantor, "_confirm", QueueGrantor._look)],
    "all of multi given back": [(multi.MultiHold, "abandon", lambda self: None)],
}


FREE_PATH: dict[str, list[tuple[str, str, str]]] = {
    "free path: adopt before the send": [
        ("take", "watchdog.unsorted[id] = watchdog.renewing[id] = grant", "pass"),
        ("_is_counted", "grant.answered = True", "grant.answered = True; watchdog.adopt(grant)"),
    ],
    "free path: a late answer is confirmed": [("_is_counted", " or until - now < request.waiting / 2", "")],
    "free path: counted from before the send": [("_is_counted", "valid_until(sent_at,", "valid_until(now,")],
    "free path: doubt about an unanswered join": [("_answered", "grant.first = error", "grant.answered = True")],
    "free path: whoever pops a grant ends it": [
        ("give", "self._watchdog.renewing.pop(claim.id, None) is None", "False")
    ],
}
"""Methods of the free path, and what changes in their text: it has no named parts, as each call costs time."""

BROKEN |= {name: [] for name in FREE_PATH}


def _free_path(name: str, old: str, new: str) -> tuple[object, str, Callable[..., Any]]:
    text = dedent(getsource(getattr(QueueGrantor, name)))
    assert text.count(old) == 1, f"{name}: {text.count(old)} times {old!r}"
    made: dict[str, Any] = {}
    exec(text.replace(old, new), {**vars(acquire)}, made)
    return QueueGrantor, name, made[name]


@contextmanager
def broken(safeguard: str) -> Iterator[None]:
    """Without that safeguard."""
    with ExitStack() as stack:
        twins = {**BROKEN, **CELLS_BROKEN, **QUORUM_BROKEN}[safeguard]
        for owner, name, twin in (*twins, *(_free_path(*change) for change in FREE_PATH.get(safeguard, ()))):
            stack.enter_context(patch.object(owner, name, twin))
        yield
    _passed_over.clear()
