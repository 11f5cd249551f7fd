"""lock, rlock, both sides of rwlock, semaphore and stripe: one class, told apart by data.

| kind       | capacity | weight        | holds of one owner share |
|------------|----------|---------------|--------------------------|
| lock       | 1        | 1             | no                       |
| rlock      | 1        | 1             | yes                      |
| rw, read   | many     | 1             | yes                      |
| rw, write  | many     | all of them   | yes                      |
| semaphore  | permits  | what is asked | no                       |
| stripes    | stripes  | 0             | yes, the whole client's  |

A `Lock` is a name and options. It remembers which holds were taken through it, only so that `release()` and the end of
a `with` find the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import ref

from dibs.core import names
from dibs.core.cells import CELL
from dibs.core.client import Client
from dibs.core.deadline import FOREVER, LEAST_PATIENCE, LEAVE_PATIENCE, lease_of, margin, patience, seconds
from dibs.core.grant import Request
from dibs.core.holds import Hold
from dibs.core.kinds.taken import Taken, Takes
from dibs.core.line import CELLS, FAIR, LEASES, PERMITS, RECORDS, RW
from dibs.core.loss import INSTANT, Loss
from dibs.core.rule import RW_CAPACITY
from dibs.errors import AcquireTimeout, DibsError, LockLost, Unsupported
from dibs.info import LockInfo, break_cell, duration, in_the_way, read_break


class Unset:
    """A time-out that was not given: the lock's own counts."""

    def __repr__(self) -> str:
        return "<the lock's>"


UNSET = Unset()
MOST = 1_000_000
_CO_COROUTINE = 0x80
"""The flag that marks the code of an `async def`: `inspect.CO_COROUTINE`."""


class Options(NamedTuple):
    """What every lock takes, checked."""

    timeout: float | None = None
    lease: float | None = None
    renew: bool = True
    max_hold: float | None = None
    fair: bool | None = None
    owner: str | None = None
    info: Mapping[str, Any] = MappingProxyType({})
    on_lost: Callable[[Any], object] | None = None
    cancel_on_lost: bool = False

    @classmethod
    def checked(
        cls,
        timeout: object = None,
        lease: object = None,
        renew: object = True,
        max_hold: object = None,
        fair: object = None,
        owner: object = None,
        info: object = None,
        on_lost: object = None,
        cancel_on_lost: object = False,
    ) -> Options:
        for what, flag in (("renew", renew), ("cancel_on_lost", cancel_on_lost)):
            if not isinstance(flag, bool):
                raise TypeError(f"{what} must be True or False, not {flag!r}")
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost must be a function that takes the hold, not {on_lost!r}")
        if on_lost is not None and _is_async(on_lost):
            raise TypeError(f"on_lost must be a plain function: nothing would await the coroutine of {on_lost!r}")
        if fair is not None and not isinstance(fair, bool):
            raise TypeError(f"fair must be True, False or None, not {fair!r}")
        return cls(
            patience(timeout),
            None if lease is None else lease_of(lease),
            renew is True,
            None if max_hold is None else seconds(max_hold, "max_hold", least=0.001),
            fair,
            checked_owner(owner),
            checked_info(info),
            on_lost,
            cancel_on_lost is True,
        )


def _is_async(function: Any) -> bool:
    """Whether a call returns a coroutine. `inspect` knows more, but is slow to import."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is not None and bool(code.co_flags & _CO_COROUTINE)


def limit_of(own: float | None, timeout: object, blocking: object) -> float | None:
    """How long an acquire may take: what was given to it, else what was given to the lock."""
    if not isinstance(blocking, bool):
        raise TypeError(f"blocking must be True or False, not {blocking!r}")
    limit = own if isinstance(timeout, Unset) else patience(timeout)
    if blocking:
        return limit
    if not isinstance(timeout, Unset) and limit != 0:
        raise ValueError("blocking=False means timeout=0: give only one of them")
    return 0.0


def checked_owner(owner: object) -> str | None:
    if owner is not None and not isinstance(owner, str):
        raise TypeError(f'owner must be a str, "client" or None, not {owner!r}')
    if owner is not None and not owner.strip():
        raise ValueError("owner must not be blank")
    return owner


def checked_info(info: object) -> Mapping[str, Any]:
    if info is None:
        return {}
    if not isinstance(info, Mapping) or not all(isinstance(key, str) for key in info):
        raise TypeError(f"info must be a small dict with str keys, not {info!r}")
    return dict(info)


class Terms(NamedTuple):
    """What a lock's `lease` and `renew` come to in its store."""

    lease: float
    renew: bool
    ends_after: float = FOREVER


def terms_of(client: Client, name: str, options: Options) -> Terms:
    """Where claims live by the session, none can end sooner in the store: `renew=False` is then kept by ending the
    hold here, and a shorter lease that is to be renewed cannot be kept at all."""
    lease = client.lease if options.lease is None else options.lease
    if LEASES in client.store.capabilities:
        return Terms(lease, options.renew)
    if not options.renew:
        return Terms(client.lease, True, lease - margin(lease))
    if lease < client.lease:
        raise client.error(
            Unsupported, name, f"a lease of {lease:g} s is not possible where locks live by the client's session, "
            f"which lasts {client.lease:g} s",
            step=f"connect with lease={lease:g}, or limit the hold: renew=False, or max_hold={lease:g}",
        )  # fmt: skip
    return Terms(lease, True)


async def not_free(
    client: Client, name: str, limit: float | None, own_token: int | None, *, by_itself: bool = False,
    permits: tuple[int, int] | None = None,
) -> AcquireTimeout:  # fmt: skip
    """The error that says who was in the way. `by_itself`: this owner, who could use an rlock. `permits`: how many of
    how many a semaphore was asked for."""
    info = await client.look_together(name, client.prefix + name, LEAST_PATIENCE)
    what = f"not free after {duration(limit)}" if limit else "not free"
    if info is not None and permits is not None:
        wanted, size = permits
        free = size - sum(holder.weight for holder in info.holders)
        what += f": {wanted} permit{'s' if wanted > 1 else ''} wanted, {free} of {size} free"
    if info is not None:
        what += f": {in_the_way(info, own_token, datetime.now(UTC), client.is_me)}"
    if by_itself:
        what += "; this thread, task or owner holds it already"
        step: str | None = "use client.rlock(name), which its owner may take again"
    else:
        step = client.show_step(name)
    return client.error(AcquireTimeout, name, what, info=info, step=step)


class _Taken(Taken[Hold]):
    __slots__ = ()

    def warn_of_unreleased(self, _: object) -> None:
        """The lock is gone, and every object that a user can release a hold with refers to it. The garbage collector
        may call this anywhere: it takes no lock and ends no hold. A hold that ends by itself is often left alone on
        purpose, as the permits of a rate limit are."""
        client, unreleased = self._client, list(self.holds)
        self.holds.clear()  # each of them has a reference that calls this
        for hold in unreleased:
            grant = hold.grant
            if grant is None or not grant.valid(client.now()) or not hold.wanted():
                continue
            if grant.request.renew and hold.ends_at == FOREVER:
                from warnings import warn  # noqa: PLC0415  (of use only where something went wrong)

                text = f"{client.place(hold.name)}: not released (token {hold.token}), and no object is left to release"
                end = "it with: it stays held until its client is closed or this process ends"
                warn(f"{text} {end}", ResourceWarning, stacklevel=2, source=hold)


class Lock(Takes[Hold]):
    """See the table above; `dibs.Lock` and its kin are faces of this."""

    def __init__(
        self,
        client: Client,
        name: str,
        options: Options,
        *,
        kind: str = "mutex",
        capacity: int = 1,
        weight: int = 1,
        share: bool = False,
        guard: Lock | None = None,
    ) -> None:
        self.client = client
        self.name = name
        self.options = options
        self.weight = weight
        self.share = share
        self.guard = guard
        terms = terms_of(client, name, options)
        if options.fair:
            client.require(FAIR, "order among waiters (fair=True)")
        has = client.store.capabilities
        fair = FAIR in has and (options.fair is not False or RECORDS not in has)
        self.request = Request(client.prefix + name, kind, capacity, terms.lease, terms.renew, fair, terms.ends_after)
        self.own_owner = options.owner if options.owner is not None else client.owner
        self.label = client.login if self.own_owner is None or self.own_owner == "client" else self.own_owner
        self._about: tuple[object, object, str] = (None, None, "")
        self.taken = _Taken(name, client)

    def attempt(self, timeout: object = UNSET, blocking: object = True, n: object = UNSET) -> Attempt:
        """Checks the arguments; asks nothing yet. The calling thread or task is the one that takes."""
        if timeout is UNSET and blocking is True and n is UNSET:
            return Attempt(self, self.weight, self.options.timeout)
        limit = limit_of(self.options.timeout, timeout, blocking)
        return Attempt(self, self.weight if n is UNSET else self._checked_permits(n), limit)

    def permits(self, n: object) -> Lock:
        """The lock of weight n on this semaphore."""
        weight, request = self._checked_permits(n), self.request
        return Lock(self.client, self.name, self.options, kind=request.kind, capacity=request.capacity, weight=weight)

    def _checked_permits(self, n: object) -> int:
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(f"n must be an int, not {n!r}")
        if not 1 <= n <= self.request.capacity:
            raise ValueError(
                f'"{self.name}" on {self.client.shown}: {n} of {self.request.capacity} permits: that can never '
                f"be granted"
            )
        return n

    def owner(self, taker: object) -> object:
        """Whom a hold of that thread or task belongs to, for re-entry."""
        if self.own_owner is None:
            return taker
        return self.client if self.own_owner == "client" else self.own_owner

    def about(self, taker: object) -> str:
        """What others are shown; the last one is kept, as mostly one thread or task uses a lock object."""
        client = self.client
        if self._about[0] is not taker or self._about[1] is not client.me:
            self._about = (taker, client.me, client.about(self.label, self.options.info))
        return self._about[2]

    def abandon(self, hold: Hold) -> None:
        self.client.book.abandon(hold)

    async def release(self, hold: Hold) -> None:
        # After close() every hold is lost already: that is what its release says, not that the client is closed.
        if not self.client.closed and not self.client.is_ready():
            await self.client.open()
        self.taken.released(hold)
        try:
            await self.client.book.release(hold)
        except LockLost as error:
            if error.reason == "broken":
                await self._say_by_whom(hold, error)
            raise self.client.seen(error, self.name) from None
        except DibsError as error:
            raise self.client.seen(error, self.name) from error.__cause__

    async def _say_by_whom(self, hold: Hold, error: LockLost) -> None:
        """If `dibs break` left a record of it. Best effort: the lock is lost whatever the store answers."""
        if CELLS not in self.client.store.capabilities:
            return
        from dibs.core.kinds.slot import Slot  # noqa: PLC0415  (seldom needed)

        try:
            slot = Slot(self.client, CELL, break_cell(self.name), "a record of breaks")
            record = read_break((await slot.get(self.client.now() + LEAVE_PATIENCE)).value)
        except DibsError:
            return
        except BaseException as ended:  # cancelled meanwhile: the loss is not forgotten
            ended.add_note(f"and leaving the lock failed: {error}")
            raise
        if record is not None and record.token == hold.token:
            text = f"broken by {record.breaker} at {record.at:{INSTANT}} ({record.why})"
            hold.loss = Loss("broken", text)
            error.what = hold.lost_error().what

    async def downgrade(self, hold: Hold) -> None:
        await self.client.ready()
        try:
            await self.client.book.downgrade(hold)
        except DibsError as error:
            raise self.client.seen(error, self.name) from None

    def owned(self) -> bool:
        return self.client.book.held_by(self.request.name, self.owner(self.client.runtime.taker()))

    async def look(self, patience: float | None = None) -> LockInfo:
        return await self.client.look(self.name, self.request.name, patience)

    async def locked(self) -> bool:
        return bool((await self.look()).holders)

    async def revoke(self) -> None:
        """Ask every holder seen now, by its token."""
        client = self.client
        for token in [holder.token for holder in (await self.look()).holders]:
            until = client.now() + client.retry
            await client.patiently(self.name, partial(client.opened.revoke, self.request.name, token, until), until)

    async def busy(self, attempt: Attempt) -> AcquireTimeout:
        """The error that says who was in the way."""
        hold, kind, size = attempt.hold, self.request.kind, self.request.capacity
        by_itself = kind == "mutex" and not self.share and self.client.book.held_by(self.request.name, hold.owner)
        permits = (hold.weight, size) if kind == "semaphore" else None
        token = hold.token or None
        return await not_free(self.client, self.name, attempt.limit, token, by_itself=by_itself, permits=permits)

    def describe(self) -> str:
        return self.client.place(self.name)


class Attempt:
    """One acquire under way. It lives in the caller's frame and nowhere else: see core/holds.py."""

    __slots__ = ("__weakref__", "cancels", "deadline", "hold", "limit", "lock")

    def __init__(self, lock: Lock, weight: int, limit: float | None) -> None:
        self.lock = lock
        self.limit = limit
        self.cancels: Callable[[], object] | None = None
        self.deadline = FOREVER if limit is None else lock.client.now() + limit
        taker = lock.client.runtime.taker()
        owner = taker if lock.own_owner is None else lock.owner(taker)
        self.hold = Hold(lock.client, lock.name, weight, taker, owner, lock.label)
        self.hold.asker = ref(self)

    async def run(self, *, entered: bool = False) -> bool:
        """True: held, and remembered by the lock. False: busy until the deadline."""
        lock, client, hold = self.lock, self.lock.client, self.hold
        about = lock.about(hold.taker)
        if not client.is_ready():
            await client.open()
        try:
            if lock.guard is None:
                held = await client.book.acquire(hold, lock.request, lock.share, about, self.deadline)
            else:
                held = await self._guarded(lock.guard, about)
        except DibsError as error:
            raise client.seen(error, lock.name) from error.__cause__
        if held:
            hold.began = client.now()
            if lock.options.max_hold is not None or (hold.grant is not None and hold.grant.lasts_until != FOREVER):
                self._limit(lock.options.max_hold)
            lock.taken.remember(hold, entered=entered, through=ref(lock, lock.taken.warn_of_unreleased))
            hold.when_lost = lock.taken.one_lost
        return held

    async def enter(self) -> None:
        """As `run`, for a `with`: busy is an error."""
        if not await self.run(entered=True):
            raise await self.lock.busy(self)

    def told(self, hold: object) -> None:
        """Who is called when the hold is lost, and with the hold as its face shows it."""
        on_lost, cancels = self.lock.options.on_lost, self.cancels
        if on_lost is not None or cancels is not None:
            callbacks = [] if cancels is None else [cancels]
            callbacks += [] if on_lost is None else [partial(on_lost, hold)]
            self.hold.notify = callbacks

    def hand_over(self, block: Callable[[], object | None] | None = None) -> None:
        """From here on the user has it, or the `with` block that it hangs by; nothing interrupts until the return."""
        self.hold.asker = block

    def abandon(self) -> None:
        self.lock.drop(self.hold)

    async def _guarded(self, guard_lock: Lock, about: str) -> bool:
        """A stripe: first the claim on the name itself, which this hold then cannot be without."""
        lock, book = self.lock, self.lock.client.book
        guard = Attempt(guard_lock, guard_lock.weight, self.limit)
        self.hold.also = guard.hold
        # It weighs nothing and never waits in line; what a try may wait for is another thread's asking for it.
        patience = max(self.deadline, lock.client.now() + LEAST_PATIENCE)
        if not await book.acquire(guard.hold, guard_lock.request, True, about, patience):
            return False
        guard.hold.asker = self.hold.still
        if self.hold.notify and guard.hold.grant is not None:
            guard.hold.notify = [self.hold.tell_lost]
        if await book.acquire(self.hold, lock.request, lock.share, about, self.deadline):
            return True
        await book.release(guard.hold)
        return False

    def _limit(self, max_hold: float | None) -> None:
        hold, grant = self.hold, self.hold.grant
        assert grant is not None
        hold.ends_at = min(grant.lasts_until, FOREVER if max_hold is None else hold.began + max_hold)
        grant.ends_at = min(grant.ends_at, hold.ends_at)
        hold.client.watchdog.schedule(grant)


def mutex(client: Client, name: str, options: Options, *, share: bool) -> Lock:
    return Lock(client, names.check(name), options, share=share)


def read_write(client: Client, name: str, options: Options) -> tuple[Lock, Lock]:
    """The two sides of a read-write lock."""
    names.check(name)
    client.require(RW, "read-write locks")

    def side(weight: int) -> Lock:
        return Lock(client, name, options, kind="rw", capacity=RW_CAPACITY, weight=weight, share=True)

    return side(1), side(RW_CAPACITY)


def semaphore(client: Client, name: str, permits: object, options: Options) -> Lock:
    client.require(PERMITS, "semaphores")
    return Lock(client, names.check(name), options, kind="semaphore", capacity=count_of(permits, "permits"))


def count_of(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if not 1 <= value <= MOST:
        raise ValueError(f"{what} must be from 1 to {MOST}, not {value}")
    return value
