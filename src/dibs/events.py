"""The events that a client reports to its observers: see `dibs.observe`.

An event is one flat object. `what` names it; fields that an event does not have keep their defaults.

Each `acquired` is followed by exactly one of `released`, `given_back` and `lost`. There are two exceptions: dibs does
not see the end of a lock inside a transaction of the caller (`mode="transaction"`), and a child process that fork()
made reports nothing about the holds of its parent.
"""

from __future__ import annotations

from typing import Literal, Protocol

from dibs.info import Seen

What = Literal[
    "acquired", "waiting", "busy", "timed_out", "cancelled", "failed", "released", "given_back", "lost", "renewed",
    "renewal_late", "revoked", "broken", "leader_changed", "store_unreachable", "store_back",
]  # fmt: skip
"""
| what                | reported when                                                   | with                         |
|---------------------|-----------------------------------------------------------------|------------------------------|
| `acquired`          | a lock is held                                                  | token, waited, contended     |
| `waiting`           | an acquire found the lock busy and waits                        | waited                       |
| `busy`              | a try (`timeout=0`) found the lock busy                         | waited                       |
| `timed_out`         | an acquire ended at its timeout                                 | waited, contended            |
| `cancelled`         | an acquire was cancelled or interrupted                         | waited, contended            |
| `failed`            | an acquire raised another error                                 | waited, contended, error     |
| `released`          | a hold was released                                             | token, held                  |
| `given_back`        | the watchdog released a hold that its caller could not          | token, held                  |
| `lost`              | a hold was lost                                                 | token, held, reason, text    |
| `renewed`           | the store renewed a hold                                        | token, latency, left         |
| `renewal_late`      | a renewal failed, or came a sixth of the lease too late         | token, latency, left, error  |
| `revoked`           | another client asked this holder to release                     | token                        |
| `broken`            | this client removed a holder with `break_`                      | token                        |
| `leader_changed`    | a follower of an election saw another leader                    | token, leader                |
| `store_unreachable` | the store no longer answers                                     | error                        |
| `store_back`        | the store answers again                                         | waited: how long it did not  |
"""


class Event(Seen):
    """One event of a lock, or of the store.

    Attributes:
        what: Which event: docs/production/events.md lists them.
        name: The name of the lock, without the client's namespace. Empty for an event of the store.
        kind: `"mutex"`, `"rw"`, `"semaphore"`, `"election"` or `"striped"`.
        mode: `"exclusive"`, `"shared"`, or `"transaction"` for a lock inside a transaction of the caller.
        owner: The owner as others see it.
        store: The store, as in messages; without a password.
        backend: `"memory"`, `"sqlite"`, `"redis"`, `"postgresql"`, `"mysql"`, `"zookeeper"` or `"quorum"`.
        token: The fencing token of the hold; 0 if there is none.
        hold: Tells apart holds with one token, as those of an `rlock`; it is not unique for ever.
        weight: How many permits of a semaphore; otherwise 1, or the capacity for a write lock.
        capacity: How many permits the semaphore has; 1 for a mutex.
        lease: Seconds that the lock survives without renewal.
        waited: Seconds since the acquire began.
        contended: Whether the acquire had to wait: it reported `waiting` before.
        held: Seconds from the grant to the end of the hold.
        latency: Seconds from the request to its reply.
        left: Seconds of the lease that were left when the reply to the renewal came.
        reason: Why the hold was lost, as `hold.lost_reason`.
        text: Why the hold was lost, as a sentence.
        leader: The new leader; empty if there is none.
        error: The exception behind the event.

    Example:
        >>> Event(what="acquired", name="invoice:42", waited=0.25).contended
        False
    """

    what: What
    name: str = ""
    kind: str = ""
    mode: str = ""
    owner: str = ""
    store: str = ""
    backend: str = ""
    token: int = 0
    hold: int = 0
    weight: int = 1
    capacity: int = 1
    lease: float = 0.0
    waited: float = 0.0
    contended: bool = False
    held: float = 0.0
    latency: float = 0.0
    left: float = 0.0
    reason: str = ""
    text: str = ""
    leader: str = ""
    error: BaseException | None = None


def ended_as_planned(event: Event) -> bool:
    """Whether a loss is none: a permit with `renew=False` was kept until its lease ran out, as for a rate limit."""
    return event.kind == "semaphore" and event.reason == "expired"


class Observer(Protocol):
    """A function, or an object that can be called, which receives every event.

    It is called in the thread that acquires or releases, in the event loop, and in the watchdog's threads: it must be
    thread-safe, return at once, do no I/O and use no lock of dibs. An exception is logged and changes nothing.
    """

    def __call__(self, event: Event, /) -> object: ...
