"""lock, rlock, both sides of rwlock, semaphore and stripe: one class with different data.

| kind       | capacity | weight       | holds of one owner share a grant |
|------------|----------|--------------|----------------------------------|
| lock       | 1        | 1            | no                               |
| rlock      | 1        | 1            | yes                              |
| rw, read   | many     | 1            | yes                              |
| rw, write  | many     | the capacity | yes                              |
| semaphore  | permits  | n            | no                               |
| stripes    | stripes  | 0            | yes, all holds of the client     |

A `Lock` is a name and options. It remembers the holds taken through it, so that `release()` and the end of a `with`
block find the right one.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple
from weakref import ref

from dibs.core import names
from dibs.core.cells import CELL
from dibs.core.client import Client
from dibs.core.deadline import FOREVER, LEAST_PATIENCE, LEAVE_PATIENCE
from dibs.core.grantor import Given
from dibs.core.grants import Hold, Request
from dibs.core.kinds.hold_stack import HoldStack, Takes
from dibs.core.kinds.options import UNSET, Options, count_of, form_of, limit_of, terms_of
from dibs.core.loss import INSTANT, Loss
from dibs.core.queue import CELLS, ELECTION, FAIR, PERMITS, RECORDS, RW
from dibs.core.rule import RW_CAPACITY, Prepared
from dibs.errors import AcquireTimeout, DibsError, LockLost
from dibs.info import LockInfo, break_cell, busy_text, duration, read_break


def free_permits(info: LockInfo, size: int) -> int:
    """The free permits of a semaphore. A FOREIGN store does not know who has them, and shows the others as capacity."""
    there = info.capacity if info.kind == "semaphore" else size
    return there - sum(holder.weight for holder in info.holders)


async def not_free(
    client: Client, name: str, limit: float | None, own_token: int | None, *, by_itself: bool = False,
    permits: tuple[int, int] | None = None,
) -> AcquireTimeout:  # fmt: skip
    """The timeout error, with the holders and waiters ahead. `by_itself`: the holder is this owner, who needs an rlock.
    `permits`: the number wanted, and the size of the semaphore."""
    info = await client.shared_snapshot(name, client.prefix + name, LEAST_PATIENCE)
    what = f"not free after {duration(limit)}" if limit else "not free"
    if info is not None and permits is not None:
        wanted, size = permits
        free = free_permits(info, size)
        what += f": {wanted} permit{'s' if wanted > 1 else ''} wanted, {free} of {size} free"
    if info is not None:
        what += f": {busy_text(info, own_token, datetime.now(UTC), client.is_me)}"
    if by_itself:
        what += "; this thread, task or owner holds it already"
        step: str | None = "use client.rlock(name), which its owner may take again"
    else:
        step = client.show_step(name)
    return client.error(AcquireTimeout, name, what, info=info, step=step)


class _Described(NamedTuple):
    """The description of claims that others see, for one thread or task of one client."""

    caller: object
    me: object
    text: str
    prepared: Prepared


def warn_of_unreleased(hold_stack: HoldStack[Hold], client: Client, _: object) -> None:
    """Warn that a lock object was freed before its holds were released. The garbage collector may call this anywhere,
    so it takes no mutex and ends no hold. Holds that end by themselves, such as the permits of a rate limit, are often
    not released on purpose."""
    unreleased = list(hold_stack.holds)
    hold_stack.holds.clear()  # each of them has a weak reference that calls this
    for hold in unreleased:
        grant = hold.grant
        if grant is None or not grant.valid(client.now()) or not hold.wanted():
            continue
        if grant.request.renew and hold.ends_at == FOREVER:
            from warnings import warn  # noqa: PLC0415  (rarely needed)

            text = f"{client.place(hold.name)}: not released{hold.token_note}, and no object is left to release"
            end = "it with: it stays held until its client is closed or this process ends"
            warn(f"{text} {end}", ResourceWarning, stacklevel=2, source=grant.claim)


class Lock(Takes[Hold]):
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
        form = form_of(client, name, kind, options)
        terms = terms_of(client, name, options, form)
        if options.fair and form is None:
            client.require(FAIR, "order among waiters (fair=True)")
        has = client.store.capabilities
        fair = (
            FAIR in has and (options.fair is not False or RECORDS not in has) if form is None else options.fair is True
        )
        self.request = Request(
            client.prefix + name, kind, capacity, terms.lease, terms.renew, fair, terms.ends_after, form
        )
        self.own_owner = options.owner if options.owner is not None else client.owner
        self.label = client.label(options.owner)
        self._described = _Described(None, None, "", Prepared())
        self.on_lost = options.on_lost
        self._is_plain = (
            not share and guard is None and options.max_hold is None and terms.ends_after == FOREVER
            and kind != ELECTION  # its log tells who leads
        )  # fmt: skip
        """The free path may be tried."""
        self.hold_stack: HoldStack[Hold] = HoldStack(name, client)
        self._warn_of_unreleased = partial(warn_of_unreleased, self.hold_stack, client)

    def begin(self, timeout: object = UNSET, blocking: object = True, n: object = UNSET) -> Hold:
        """A new hold, before any I/O. The calling thread or task takes it."""
        limit, weight, client = self.options.timeout, self.weight, self.client
        if timeout is not UNSET or blocking is not True or n is not UNSET:
            limit = limit_of(limit, timeout, blocking)
            weight = weight if n is UNSET else self._checked_permits(n)
        caller = client.runtime.caller()
        owner = caller if self.own_owner is None else client if self.own_owner == "client" else self.own_owner
        return Hold(client.registry, self.name, weight, caller, owner, self.label, limit)

    def take(self, hold: Hold, *, entered: bool = False) -> bool | Awaitable[bool]:
        """The free path. True: held, and remembered. False: `acquire` goes on."""
        client, grantor = self.client, self.client.registry.grantor
        if grantor is None or not self._is_plain:
            return False
        described = self._described
        if described.caller is not hold.caller or described.me is not client.me:
            described = self._describe(hold.caller)
        if client.bind is not None:
            client.bind()
        try:
            prepared = described.prepared if hold.weight == self.weight else None
            taken = grantor.take(hold, self.request, described.text, prepared)
        except DibsError as error:
            raise client.completed(error, self.name) from error.__cause__
        if taken is True:
            self.hold_stack.remember(hold, entered, ref(self, self._warn_of_unreleased))
            if client.reporter.observers or client.reporter.silent:
                client.reporter.acquired(hold, self.request)
            return True
        return taken if taken is False else self._taken(hold, taken, entered)

    async def _taken(self, hold: Hold, taken: Awaitable[bool], entered: bool) -> bool:
        try:
            held = await taken
        except DibsError as error:
            raise self.client.completed(error, self.name) from error.__cause__
        if held:
            self.hold_stack.remember(hold, entered, ref(self, self._warn_of_unreleased))
            if self.client.reporter.observers or self.client.reporter.silent:
                self.client.reporter.acquired(hold, self.request)
        return held

    async def acquire(self, hold: Hold, *, entered: bool = False) -> bool:
        """The general path. True: held, and remembered. False: busy until the deadline."""
        client, described = self.client, self._describe(hold.caller)
        hold.asked_at = client.now() if hold.grant is None else hold.grant.sent_at
        await client.ready()
        try:
            if self.guard is None:
                held = await client.registry.acquire(hold, self.request, self.share, described.text)
            else:
                held = await self._acquire_guarded(hold, self.guard, described.text)
        except DibsError as error:
            raise client.completed(error, self.name) from error.__cause__
        if held:
            self.hold_stack.remember(hold, entered, ref(self, self._warn_of_unreleased))
            hold.began = client.now()
            max_hold = self.options.max_hold
            if max_hold is not None or (hold.grant is not None and hold.grant.lasts_until != FOREVER):
                self._limit(hold, max_hold)
            client.reporter.acquired(hold, self.request)
        else:
            client.reporter.refused(hold, self.request)
        return held

    async def enter(self, hold: Hold) -> None:
        """`acquire` for a `with`: busy is an error."""
        if not await self.acquire(hold, entered=True):
            raise await self.busy(hold)

    def set_callbacks(self, hold: Hold, shown: object, cancels: Callable[[], object] | None = None) -> None:
        """Set the callbacks for a loss. `shown` is the hold as the API shows it."""
        callbacks = [] if cancels is None else [cancels]
        callbacks += [] if self.on_lost is None else [partial(self.on_lost, shown)]
        hold.notify = callbacks

    async def _acquire_guarded(self, hold: Hold, guard_lock: Lock, description: str) -> bool:
        """Acquire a stripe: first the guard on the name itself, which this hold then depends on."""
        registry = self.client.registry
        guard = guard_lock.begin(hold.limit)
        guard.lifeline = hold.lifeline
        guard.is_guard = True
        hold.also = guard
        # The guard has weight 0 and never waits in the queue, but another thread of this client may be acquiring it.
        guard.deadline = max(hold.deadline, self.client.now() + LEAST_PATIENCE)
        if not await registry.acquire(guard, guard_lock.request, True, description):
            return False
        guard.lifeline = hold.still
        guard.notify = [hold.tell_lost, hold.report_loss]
        if await registry.acquire(hold, self.request, self.share, description):
            return True
        await registry.release(guard)
        return False

    def _limit(self, hold: Hold, max_hold: float | None) -> None:
        grant = hold.grant
        assert grant is not None
        hold.ends_at = min(grant.lasts_until, FOREVER if max_hold is None else hold.began + max_hold)
        grant.ends_at = min(grant.ends_at, hold.ends_at)
        self.client.watchdog.schedule(grant)

    def permits(self, n: object) -> Lock:
        """A lock that takes n permits of this semaphore."""
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

    def _describe(self, caller: object) -> _Described:
        """Cache the latest description: usually one thread or task uses a lock object."""
        described, client = self._described, self.client
        if described.caller is not caller or described.me is not client.me:
            text = client.description(self.label, self.options.info)
            described = self._described = _Described(caller, client.me, text, Prepared())
        return described

    def abandon(self, hold: Hold) -> None:
        self.client.registry.abandon(hold)
        if self.client.reporter.observers:
            self.client.reporter.abandoned(hold, self.request, sys.exception())

    def give(self, hold: Hold) -> Given:
        """The free path of a release. True: done. Otherwise pass the result to `release`."""
        client = self.client
        grantor = client.registry.grantor
        if grantor is None or hold.context is not client.registry:
            return None
        if client.bind is not None:
            client.bind()
        self.hold_stack.holds.pop(hold, None)
        given = grantor.give(hold)
        if given is True and client.reporter.observers:
            client.reporter.ended(hold, self.request, "released")
        return given

    async def release(self, hold: Hold, given: Given = None) -> None:
        """`given`: how far `give` came."""
        client = self.client
        # After close() every hold is lost: its release must raise LockLost, not Closed.
        if given is None and not client.closed:
            await client.ready()
        self.hold_stack.released(hold)
        try:
            ended = await self._finish(hold, given)
        except LockLost as error:
            try:
                if error.reason == "broken":
                    await self._add_breaker(hold, error)
            finally:
                if hold.loss is not None:
                    client.reporter.lost(hold, self.request, hold.loss)
            raise self.client.completed(error, self.name) from None
        except BaseException as error:
            if hold.over:  # the watchdog goes on with it
                client.reporter.ended(hold, self.request, "given_back")
            if not isinstance(error, DibsError):
                raise
            raise self.client.completed(error, self.name) from error.__cause__
        if ended:
            client.reporter.ended(hold, self.request, "released")

    async def _finish(self, hold: Hold, given: Given) -> bool:
        """False: it was over already."""
        registry = self.client.registry
        if given is None:
            return await registry.release(hold)
        if registry.grantor is not None:
            await registry.grantor.given(hold, given)
        return True

    async def _add_breaker(self, hold: Hold, error: LockLost) -> None:
        """Add the record of `dibs break` to the error, if there is one. Best effort: the lock is lost anyway."""
        if CELLS not in self.client.store.capabilities:
            return
        from dibs.core.kinds.primitives import VersionedSlot  # noqa: PLC0415  (rarely needed)

        try:
            slot = VersionedSlot(self.client, CELL, break_cell(self.name), "a record of breaks")
            record = read_break((await slot.get(self.client.now() + LEAVE_PATIENCE)).value)
        except DibsError:
            return
        except BaseException as ended:  # cancelled meanwhile: still report the loss
            ended.add_note(f"and leaving the lock failed: {error}")
            raise
        if record is not None and hold.token and record.token == hold.token:
            text = f"broken by {record.breaker} at {record.at:{INSTANT}} ({record.why})"
            hold.loss = Loss("broken", text)
            error.what = hold.lost_error().what

    async def downgrade(self, hold: Hold) -> None:
        await self.client.ready()
        try:
            await self.client.registry.downgrade(hold)
        except DibsError as error:
            raise self.client.completed(error, self.name) from None

    def owned(self) -> bool:
        return self.client.registry.held_by(self.request.name, self.begin().owner)

    async def look(self, patience: float | None = None) -> LockInfo:
        return await self.client.look(self.name, self.request.name, patience)

    async def locked(self) -> bool:
        info, size = await self.look(), self.request.capacity
        return free_permits(info, size) < size if self.request.kind == "semaphore" else bool(info.holders)

    async def revoke(self) -> None:
        """Ask every present holder to release, by its token."""
        for holder in (await self.look()).holders:
            await self._revoke(holder.token)

    async def _revoke(self, token: int) -> None:
        name = self.request.name
        await self.client.ask(self.name, lambda grantor, until: grantor.revoke(name, token, until))

    async def busy(self, hold: Hold) -> AcquireTimeout:
        """The timeout error for this hold."""
        kind, size = self.request.kind, self.request.capacity
        by_itself = kind == "mutex" and not self.share and self.client.registry.held_by(self.request.name, hold.owner)
        permits = (hold.weight, size) if kind == "semaphore" else None
        token = hold.token or None
        return await not_free(self.client, self.name, hold.limit, token, by_itself=by_itself, permits=permits)

    def describe(self) -> str:
        return self.client.place(self.name)


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
