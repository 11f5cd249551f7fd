"""Holds and locks of the blocking face: one line over the core for each method, stepped once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Self, overload

from dibs import faces
from dibs.core.holds import Hold as CoreHold
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.election import Election as CoreElection
from dibs.core.kinds.lock import UNSET
from dibs.core.kinds.multi import Multi as CoreMulti
from dibs.core.kinds.multi import MultiHold as CoreMultiHold
from dibs.core.kinds.striped import Striped as CoreStriped
from dibs.core.kinds.taken import Takes
from dibs.errors import LossReason, NotHeld
from dibs.faces import H, Kind, Raised, Seconds, Taking, Timeout, Trace, Unpicklable, instant
from dibs.info import Participant
from dibs.runtime.threads import step


def multi(*locks: Lock | RLock | Semaphore | Multi, timeout: Seconds | None = None) -> Multi:
    """Several locks as one: all or none, in one global order.

    >>> import dibs
    >>> with dibs.connect("memory://example") as client, dibs.multi(client.lock("a"), client.lock("b")) as hold:
    ...     [part.name for part in hold.holds]
    ['a', 'b']
    """
    return Multi(CoreMulti(faces.members(locks, Lock, Multi), timeout, Hold))


@overload
def _take(attempt: Taking, hold: H, ask: Callable[[], Coroutine[Any, Any, bool]]) -> H | None: ...


@overload
def _take(attempt: Taking, hold: H, ask: Callable[[], Coroutine[Any, Any, None]], block: faces.Block) -> H: ...


def _take(attempt: Taking, hold: H, ask: Callable[[], Coroutine[Any, Any, Any]], block: faces.Block = None) -> H | None:
    """What `ask` brings. Whatever ends it early abandons the attempt; once handed over, nothing can come between."""
    try:
        attempt.told(hold)
        if step(ask()) is False:
            return None
        attempt.hand_over(block)
        return hold
    except BaseException:
        attempt.abandon()
        raise


class HoldEvent:
    """Something that happens to a hold; it looks at the clock itself.

    >>> import dibs
    >>> with dibs.connect("memory://example") as client, client.lock("invoice:42") as hold:
    ...     hold.lost.is_set(), hold.lost.wait(0.01)
    (False, False)
    """

    __slots__ = ("_is_set", "_now", "_wait")

    def __init__(self, is_set: Callable[[], bool], wait: Callable[[float], Any], now: Callable[[], float]) -> None:
        self._is_set = is_set
        self._wait = wait
        self._now = now

    def is_set(self) -> bool:
        return self._is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        return bool(step(self._wait(instant(timeout, self._now))))


class _AnyHold(Unpicklable):
    """What gives back one hold or several. Each method has its own `try`: an interrupt finds no way past it."""

    __slots__ = ("_core", "_lock")

    def __init__(self, core: Any, lock: Takes[Any]) -> None:
        self._core = core
        self._lock = lock

    def release(self) -> None:
        try:
            step(self._lock.give_back(self._core))
        except BaseException:
            self._lock.abandon(self._core)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        try:
            step(self._lock.end(self._core, raised))
        except BaseException:
            self._lock.abandon(self._core)
            raise


class _AnyLock(Unpicklable):
    """What gives back the hold that was taken through it: see `_AnyHold`."""

    __slots__ = ("_core",)
    _core: Takes[Any]

    def release(self) -> None:
        hold = None
        try:
            hold = self._core.latest()
            step(self._core.give_back(hold))
        except BaseException:
            with suppress(NotHeld):  # an interrupt may come before the hold is found
                self._core.abandon(hold or self._core.latest())
            raise

    @faces.Exit
    def __exit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        hold = None
        try:
            hold = self._core.taken.opened_here()
            step(self._core.exit(hold, raised))
        except BaseException:
            with suppress(RuntimeError):  # as above; NotHeld is one
                self._core.drop(hold or self._core.taken.opened_here())
            raise


class Hold(_AnyHold):
    """One acquire: what you hold until you release it, or lose it.

    >>> import dibs
    >>> client = dibs.connect("memory://example")
    >>> hold = client.lock("invoice:42").acquire()
    >>> hold.mode, hold.remaining > 20, hold.lost.is_set()
    ('exclusive', True, False)
    >>> hold.release()
    """

    __slots__ = ()
    _core: CoreHold
    _lock: kinds.Lock

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def token(self) -> int:
        return self._core.token

    @property
    def mode(self) -> str:
        return self._core.mode

    @property
    def owner(self) -> str:
        return self._core.label

    @property
    def acquired_at(self) -> datetime:
        return self._lock.client.acquired_at(self._core)

    @property
    def remaining(self) -> float:
        return self._core.remaining()

    @property
    def lost(self) -> HoldEvent:
        return HoldEvent(self._core.is_lost, self._core.wait_lost, self._core.client.now)

    @property
    def lost_reason(self) -> LossReason | None:
        """Why it was lost; None while it is not."""
        return self._core.lost_reason()

    @property
    def revoke_requested(self) -> HoldEvent:
        return HoldEvent(self._core.revoke_requested, self._core.wait_revoked, self._core.client.now)

    def check(self) -> None:
        self._core.check()

    def downgrade(self) -> None:
        step(self._lock.downgrade(self._core))

    def __repr__(self) -> str:
        return f"<dibs.Hold {self._core.describe()}>"


class Lock(_AnyLock):
    """An exclusive lock, not re-entrant; also one side of a read-write lock, and a stripe.

    >>> import dibs
    >>> lock = dibs.connect("memory://example").lock("invoice:42")
    >>> hold = lock.acquire(timeout=0)
    >>> lock.locked(), lock.owned()
    (True, True)
    >>> lock.release()
    """

    __slots__ = ("__weakref__",)
    _core: kinds.Lock

    def __init__(self, core: kinds.Lock) -> None:
        if core.options.cancel_on_lost:
            raise TypeError("cancel_on_lost is for asyncio: use on_lost, or hold.check() in the loop that works")
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> Hold | None:
        attempt = self._core.attempt(timeout, blocking)
        return _take(attempt, Hold(attempt.hold, self._core), attempt.run)

    def locked(self) -> bool:
        return step(self._core.locked())

    def owned(self) -> bool:
        return self._core.owned()

    def revoke(self) -> None:
        step(self._core.revoke())

    def __enter__(self) -> Hold:
        attempt = self._core.attempt()
        return _take(attempt, Hold(attempt.hold, self._core), attempt.enter, faces.entering(self))

    def __repr__(self) -> str:
        return f"<dibs.{type(self).__name__} {self._core.describe()}>"


class RLock(Lock):
    """As `Lock`, and its owner may take it again.

    >>> import dibs
    >>> lock = dibs.connect("memory://example").rlock("invoice:42")
    >>> with lock, lock:
    ...     lock.owned()
    True
    """

    __slots__ = ()


class Semaphore(Lock):
    """n permits; several may be taken at once.

    >>> import dibs
    >>> pool = dibs.connect("memory://example").semaphore("api", 5)
    >>> with pool.acquire(2) as hold:
    ...     hold.mode
    'shared'
    """

    __slots__ = ()

    def acquire(self, n: int = 1, *, timeout: Timeout = UNSET, blocking: bool = True) -> Hold | None:
        attempt = self._core.attempt(timeout, blocking, n)
        return _take(attempt, Hold(attempt.hold, self._core), attempt.run)


class RWLock(Unpicklable):
    """Readers share, a writer excludes; `.read` and `.write` are locks, re-entrant.

    >>> import dibs
    >>> rw = dibs.connect("memory://example").rwlock("stock")
    >>> with rw.write as hold:
    ...     hold.downgrade()
    ...     hold.mode
    'shared'
    """

    __slots__ = ("_read", "_write")

    def __init__(self, read: kinds.Lock, write: kinds.Lock) -> None:
        self._read = Lock(read)
        self._write = Lock(write)

    @property
    def name(self) -> str:
        return self._read.name

    @property
    def read(self) -> Lock:
        return self._read

    @property
    def write(self) -> Lock:
        return self._write


class Striped(Unpicklable):
    """A fixed number of locks for any number of keys.

    >>> import dibs
    >>> stock = dibs.connect("memory://example").striped("stock", 100)
    >>> stock.at("user-7") is stock.at("user-7")
    True
    """

    __slots__ = ("_core", "_made")

    def __init__(self, core: CoreStriped) -> None:
        self._core = core
        self._made: dict[int, Lock] = {}

    @property
    def name(self) -> str:
        return self._core.name

    def at(self, key: str | bytes | int) -> Lock:
        return self._stripe(self._core.index(key))

    def all(self) -> Multi:
        return multi(*(self._stripe(index) for index in range(self._core.stripes)), timeout=self._core.timeout)

    def _stripe(self, index: int) -> Lock:
        lock = self._made.get(index)
        return lock if lock is not None else self._made.setdefault(index, Lock(self._core.stripe(index)))


class MultiHold(_AnyHold):
    """Several holds as one: lost when any is; it has no token.

    >>> import dibs
    >>> client = dibs.connect("memory://example")
    >>> with dibs.multi(client.lock("a"), client.lock("b")).acquire() as hold:
    ...     hold.check()
    """

    __slots__ = ()
    _core: CoreMultiHold

    @property
    def holds(self) -> tuple[Hold, ...]:
        return self._core.as_given()

    @property
    def token(self) -> None:
        return None

    @property
    def remaining(self) -> float:
        return self._core.remaining()

    @property
    def lost(self) -> HoldEvent:
        return HoldEvent(self._core.is_lost, self._core.wait_lost, self._core.parts[0].client.now)

    @property
    def lost_reason(self) -> LossReason | None:
        """Why it was lost; None while it is not."""
        return self._core.lost_reason()

    def check(self) -> None:
        self._core.check()


class Multi(_AnyLock):
    """Several locks as one; see `multi`.

    >>> import dibs
    >>> client = dibs.connect("memory://example")
    >>> dibs.multi(client.lock("a"), client.lock("b")).name
    'a, b'
    """

    __slots__ = ()
    _core: CoreMulti

    def __init__(self, core: CoreMulti) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> MultiHold | None:
        attempt = self._core.attempt(timeout, blocking)
        return _take(attempt, MultiHold(attempt.hold, self._core), attempt.run)

    def locked(self) -> bool:
        return step(self._core.locked())

    def owned(self) -> bool:
        return self._core.owned()

    def __enter__(self) -> MultiHold:
        attempt = self._core.attempt()
        return _take(attempt, MultiHold(attempt.hold, self._core), attempt.enter, faces.entering(self))


class Election(Unpicklable):
    """Who holds it leads; anybody can see who that is, and follow.

    >>> import dibs
    >>> election = dibs.connect("memory://example", owner="ana").election("scheduler")
    >>> with election.lead() as hold:
    ...     election.leader().owner
    'ana'
    >>> next(election.watch()) is None
    True
    """

    __slots__ = ("_core",)

    def __init__(self, core: CoreElection) -> None:
        self._core = core
        self.lead()

    @property
    def name(self) -> str:
        return self._core.name

    def lead(self) -> Lock:
        return Lock(self._core.lead())

    def leader(self) -> Participant | None:
        return step(self._core.leader())

    def watch(self) -> Iterator[Participant | None]:
        """Who leads now, then each change, or the newest where several came at once; it goes on for ever."""
        leader, seen = step(self._core.change(None))
        while True:
            yield leader
            leader, seen = step(self._core.change(seen))

    def __repr__(self) -> str:
        return f"<dibs.Election {self._core.describe()}>"
