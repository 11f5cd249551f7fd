"""Each kind of lock in Redis: its scripts, their keys and arguments, and the channel of its waiters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dibs.backends.redis.redisson import scripts
from dibs.backends.redis.redisson.names import Names
from dibs.backends.redis.scripts import Argument, Script
from dibs.core.queue import EXPIRING_SEMAPHORE, FAIR_MUTEX, FENCED_MUTEX
from dibs.core.rule import RW_CAPACITY, Claim

LATCH_MS = 20_000
"""How long an unlock latch stays if nobody deletes it, in milliseconds: Redisson's longest time. A join is void long
before that."""
MARK_MS = 86_400_000
"""The same for the mark of a semaphore, which alone tells whether a claim has its permits."""


class Terms(NamedTuple):
    """The settings of a client that scripts need."""

    publish: bytes
    """The command: PUBLISH or SPUBLISH."""
    fair_wait: int
    """After how long others may take a waiter of a fair lock for dead, if it waits without limit; in milliseconds."""


Words = tuple[Argument, ...]


class Ask(NamedTuple):
    """The values from which the words of a request are made."""

    names: Names
    claim: Claim
    terms: Terms
    word: str
    """In a join, the place: "l" waits in the queue, "n" does not wait, "r" only reports. In a leave: "a", or "u" if a
    join was not answered."""

    @property
    def lease(self) -> int:
        return milliseconds(self.claim.lease)

    @property
    def publishing(self) -> tuple[bytes, bytes]:
        """Channel and command, for the messages of a semaphore."""
        return self.names.permits_channel, self.terms.publish


class Form(NamedTuple):
    """Keys are without the latch, which comes last. Words are without the id, and without `by` of a join."""

    join: Script
    join_keys: Callable[[Names], tuple[bytes, ...]]
    join_words: Callable[[Ask], Words]
    leave: Script
    leave_keys: Callable[[Names], tuple[bytes, ...]]
    leave_words: Callable[[Ask], Words]
    channel: Callable[[Names], bytes]
    is_by_holder: bool = True
    """The id is a holder id; else it is the id of the claim."""
    is_shared: bool = False
    """Several may hold at once: a waiter that was woken wakes the next one."""
    has_own_channels: bool = False
    """The channel of a waiter ends with its holder id."""


def milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _key(names: Names) -> tuple[bytes, ...]:
    return (names.key,)


def _fair_keys(names: Names) -> tuple[bytes, ...]:
    return names.key, names.queue, names.deadlines


def _permit_keys(names: Names) -> tuple[bytes, ...]:
    return names.key, names.permits


def _leave_mutex(ask: Ask) -> Words:
    return ask.names.lock_channel, ask.terms.publish, LATCH_MS, ask.word


def _fair_wait(ask: Ask) -> int:
    limit = ask.claim.limit
    return ask.terms.fair_wait if limit is None else max(milliseconds(limit), 1)


def _join_fair(ask: Ask) -> Words:
    return ask.lease, _fair_wait(ask), ask.word


def _leave_fair(ask: Ask) -> Words:
    return ask.names.lock_channel + b":", ask.terms.publish, LATCH_MS, ask.word, _fair_wait(ask)


def _join_rw(ask: Ask) -> Words:
    return ask.lease, "write" if ask.claim.weight >= RW_CAPACITY else "read", ask.names.readers


def _leave_rw(ask: Ask) -> Words:
    return ask.names.rw_channel, ask.terms.publish, LATCH_MS, ask.word, ask.names.readers


def _join_semaphore(ask: Ask) -> Words:
    return *ask.publishing, MARK_MS, ask.claim.capacity, ask.claim.weight, ask.word


def _leave_semaphore(ask: Ask) -> Words:
    has_permits = ask.claim.ticket is not None
    return *ask.publishing, MARK_MS if has_permits else LATCH_MS, "h" if has_permits else "u", ask.claim.weight


def _join_permits(ask: Ask) -> Words:
    return *ask.publishing, ask.lease, ask.claim.capacity, ask.claim.weight, ask.word


def _leave_permits(ask: Ask) -> Words:
    return *ask.publishing, LATCH_MS, ask.word, ask.claim.weight


def _mutex(join_keys: Callable[[Names], tuple[bytes, ...]]) -> Form:
    return Form(
        scripts.MUTEX_JOIN, join_keys, lambda ask: (ask.lease,),
        scripts.MUTEX_LEAVE, _key, _leave_mutex, lambda names: names.lock_channel,
    )  # fmt: skip


FORMS = {
    "mutex": _mutex(_fair_keys),
    FENCED_MUTEX: _mutex(lambda names: (*_fair_keys(names), names.token)),
    FAIR_MUTEX: Form(
        scripts.FAIR_JOIN, _fair_keys, _join_fair, scripts.FAIR_LEAVE, _fair_keys, _leave_fair,
        lambda names: names.lock_channel, has_own_channels=True,
    ),
    "rw": Form(
        scripts.RW_JOIN, _key, _join_rw, scripts.RW_LEAVE, _key, _leave_rw,
        lambda names: names.rw_channel, is_shared=True,
    ),
    "semaphore": Form(
        scripts.SEMAPHORE_JOIN, _permit_keys, _join_semaphore, scripts.SEMAPHORE_LEAVE, _key, _leave_semaphore,
        lambda names: names.permits_channel, is_by_holder=False, is_shared=True,
    ),
    EXPIRING_SEMAPHORE: Form(
        scripts.PERMITS_JOIN, _permit_keys, _join_permits, scripts.PERMITS_LEAVE, _permit_keys, _leave_permits,
        lambda names: names.permits_channel, is_by_holder=False, is_shared=True,
    ),
}  # fmt: skip
"""By `Claim.kind`."""
