"""The verbs of core/queue.py in Redisson's layout.

Only the waiters of a fair lock are in a queue. All others are unfair waiters: they listen to a channel of the name, and
try again when a message comes, or when the holder's lease could have run out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from dibs.backends.redis.address import Address
from dibs.backends.redis.context import SPIN, Context
from dibs.backends.redis.errors import LATER, Refusal, final, strange
from dibs.backends.redis.free_path import Layout
from dibs.backends.redis.queue import AnyFreePath, RedisQueue, raise_if_all_failed, read_bool, read_leaves
from dibs.backends.redis.redisson import inspect, scripts
from dibs.backends.redis.redisson.forms import FORMS, Terms, milliseconds
from dibs.backends.redis.redisson.names import Names, RedissonKeys
from dibs.backends.redis.redisson.requests import Calls, PackedRequests, deletion, shortening
from dibs.backends.redis.redisson.wakeups import Wakeups, after
from dibs.backends.redis.scripts import DIGITS, MICROSECONDS, Argument, Command, ScriptCall
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.core.deadline import FOREVER, LONGEST_LEASE
from dibs.core.queue import FAIR_MUTEX, FENCED_MUTEX, NOWHERE, QUEUE, TRY, Leave, Place, Signal, Unsent, read_signal
from dibs.core.rule import RW_CAPACITY, Claim, Prepared, Standing
from dibs.errors import Mismatch, StoreError, StoreUnavailable, Unsupported
from dibs.info import Finding, LockInfo

_SHARDED = Command("PUBSUB", "SHARDNUMSUB")
BATCH = 100
"""Locks in one script that renews: as many as Redisson's watchdog renews at once."""


class Publishing:
    """The command with which Java publishes: PUBLISH, or in a cluster perhaps SPUBLISH. Shared by all of a client."""

    def __init__(self, address: Address) -> None:
        is_open = address.topology == "cluster" and address.sharded != "off"
        self.command: bytes | None = None if is_open else b"PUBLISH"
        """None: not known yet."""
        self._is_forced = address.sharded == "on"

    def decide(self, *, is_sharded: bool, subscriber: RedisSubscriber | None) -> None:
        """`is_sharded`: the server can do it, from Redis 7 on. Java then does it, too."""
        is_sharded = is_sharded or self._is_forced
        if subscriber is not None and self.command is None:
            subscriber.is_sharded = is_sharded
        self.command = b"SPUBLISH" if is_sharded else b"PUBLISH"


class Redisson:
    """The parts of a client in this layout."""

    def __init__(
        self, context: Context, keys: RedissonKeys, client: bytes, wakeups: Wakeups, publishing: Publishing
    ) -> None:
        self.context = context
        self.keys = keys
        self.client = client
        self.subscriber = context.subscriber
        self.wakeups = wakeups
        self.calls = Calls(client)
        self._publishing = publishing
        self._fair_wait = milliseconds(context.address.fair_wait)

    @property
    def terms(self) -> Terms:
        return Terms(self._publishing.command or b"PUBLISH", self._fair_wait)

    async def ready(self, until: float) -> None:
        """Find out once how Java publishes in this cluster."""
        publishing, executor = self._publishing, self.context.executor
        if publishing.command is None:
            (endpoint, *_) = await executor.primaries(until)
            reply = await executor.command_at(endpoint, _SHARDED, until)
            if isinstance(reply, Refusal) and reply.code in LATER:
                raise final(reply, b"")
            publishing.decide(is_sharded=not isinstance(reply, Refusal), subscriber=self.subscriber)

    def layout(self) -> Layout:
        return Layout(self.keys.queue, self._prepare, self._read_now, needs_messages=False)

    def _prepare(self, prepared: Prepared, claim: Claim) -> PackedRequests | None:
        # The mark of a semaphore must be deleted after a join, too.
        if claim.kind == "semaphore" or self._publishing.command is None:
            return None
        prepared.request = made = PackedRequests(claim, self.keys.of(claim.name), self.terms, self.client)
        return made

    def _read_now(self, claim: Claim, reply: Any, place: Place) -> Standing | None:
        """The free path never waits in a queue: if a fair lock is busy, the general path joins."""
        standing = self.read(claim, reply)
        return None if place is QUEUE and standing is not None and not standing.holds else standing

    def read(self, claim: Claim, reply: Any) -> Standing | None:
        """Parse the reply of a join. A key that does not end has the whole lease left."""
        whole = LONGEST_LEASE if claim.kind == "semaphore" else claim.lease
        if type(reply) is bytes and len(reply) == DIGITS and reply.isdigit():
            claim.ticket = int(reply)
            return Standing(claim.ticket, True, whole, FOREVER, False)
        match reply:
            case [_]:
                return None
            case [_, int(holds), int(left), int(next), int(token)]:
                if holds:
                    claim.ticket = token or claim.ticket or int(reply[0])
                return Standing(
                    claim.ticket or 0, holds == 1, whole if left < 0 else left / MICROSECONDS, self._until(next), False
                )
            case [_, bytes(kind), *size]:
                raise mismatch(kind.decode(errors="replace"), size[0] if size else None, claim)
        raise strange()

    def _until(self, next: int) -> float:
        return min(FOREVER if next < 0 else next / MICROSECONDS, self.context.poll_interval)


def mismatch(kind: str, size: object, claim: Claim) -> Mismatch:
    if kind == "semaphore" and size is not None and claim.kind != "mutex":
        return Mismatch(f"the semaphore has {size} permits, not {claim.capacity}", step="use one size for one name")
    return not_redissons(kind)


def not_redissons(kind: str) -> Mismatch:
    """The error for a name that is in use as something else."""
    there = _THERE.get(kind, f"a key of type {kind} that is none of Redisson's")
    return Mismatch(f"the name is in use as {there}", step="use one kind of lock for one name, in Java and Python")


_THERE = {
    "dibs": "a key of dibs' own layout",
    "hash": "a lock or a read-write lock, or as a key of dibs' own layout",
    "mutex": "a lock (RLock)",
    "rw": "a read-write lock (RReadWriteLock)",
    "string": "a semaphore or a latch (RSemaphore, RCountDownLatch)",
    "fair mutex": "a fair lock (RFairLock), for which others wait: ask for fair=True",
    "expiring semaphore": "a semaphore whose permits have a lease (RPermitExpirableSemaphore): ask for renew=False",
}


class RedissonQueue:
    """See core/queue.py."""

    def __init__(self, redisson: Redisson, free_path: AnyFreePath, own: RedisQueue) -> None:
        """`own`: the queue of the other layout, for what does not depend on the layout."""
        context = redisson.context
        self._redisson = redisson
        self._executor = executor = context.executor
        self._keys, self._calls = redisson.keys, redisson.calls
        self._subscriber, self._wakeups = redisson.subscriber, redisson.wakeups
        self._inbox = context.identity.inbox
        self._now = context.runtime.now
        self._names: dict[str, Names] = {}
        self.take_now, self.leave_now = free_path.take_now, free_path.leave_now
        self.connect, self.close, self.round_trip = executor.connect, executor.close, executor.round_trip
        self.identity = own.identity
        self._listing = inspect.Listing(executor, redisson.keys)

    @property
    def _terms(self) -> Terms:
        return self._redisson.terms

    def _names_of(self, name: str) -> Names:
        found = self._names.get(name)
        if found is None:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            found = self._names[name] = self._keys.of(name)
        return found

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        subscriber = self._subscriber
        await self._redisson.ready(until)
        if place is NOWHERE or subscriber is None:
            return await self._join(claim, "l" if place is QUEUE else "n", until)
        channel = self._calls.channel(claim, self._names_of(claim.name))
        if not claim.asked:  # a free lock needs no subscription
            standing = await self._join(claim, "n", until)
            if standing is None or standing.holds:
                return standing
        was_waiting = subscriber.hears(channel, claim.id)
        if not was_waiting:
            with suppress(StoreUnavailable):  # without messages the waiter is only slower
                await subscriber.listen(channel, claim.id, min(until, self._now() + claim.waiting / 3))
        was_told = self._wakeups.begins(claim.id)
        try:
            standing = await self._join(claim, "l" if place is QUEUE else "n", until)
        except BaseException:
            if was_told:  # the lock may be free, and nobody else was told
                self._wakeups.wake_one([key for key in subscriber.listeners(channel) if key != claim.id])
            raise
        behind = after(subscriber.listeners(channel), claim.id) if FORMS[claim.kind].is_shared and was_waiting else []
        if standing is not None and standing.holds:
            self._end_wait(claim, channel)
            behind = behind if claim.weight < claim.capacity else []
        self._wakeups.wake_one(behind)
        return standing

    async def _join(self, claim: Claim, place: str, until: float) -> Standing | None:
        names = self._names_of(claim.name)
        call = self._calls.join(claim, names, self._terms, place, claim.by)
        before, claim.asked = claim.asked, True
        try:
            reply, is_replicated = await self._executor.ask_replicated(call, until)
        except Unsent:
            claim.asked = before
            raise
        try:
            standing = self._redisson.read(claim, reply)
        except Mismatch:
            claim.asked = before  # nothing was written
            raise
        if standing is not None and standing.holds and not is_replicated:
            # Leave, so that others need not wait. The caller must retry with another id: a late copy of this leave
            # would remove a claim with the same id.
            claim.by = self._now()
            await self.leave(claim, answered=False, until=until)
            raise self._executor.not_replicated()
        if claim.kind == "semaphore" and standing is not None and standing.holds and not before:
            self._executor.tell(names.key, deletion(names, claim.id.hex().encode()))  # its only join was answered
        return standing

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | StoreUnavailable | None]:
        """Claims that hold are renewed in batches. A waiter asks by another join, which reports if it holds."""
        calls: list[ScriptCall] = []
        parts: list[tuple[str, list[Claim]]] = []
        batches: dict[tuple[str, object], list[Claim]] = {}
        for claim in claims:
            kind = _renewed_as(claim)
            if kind:
                batches.setdefault((kind, self._executor.group(self._keys.queue(claim.name))), []).append(claim)
            else:
                by = self._now() + claim.waiting
                calls.append(self._calls.join(claim, self._names_of(claim.name), self._terms, "r", by))
                parts.append(("", [claim]))
        for (kind, _), batch in batches.items():
            for start in range(0, len(batch), BATCH):
                part = batch[start : start + BATCH]
                parts.append((kind, part))
                calls.append(self._renewal(kind, part))
        found: dict[bytes, Standing | StoreUnavailable | None] = {}
        for (kind, part), reply in zip(parts, await self._executor.ask_all_replicated(calls, until), strict=True):
            if isinstance(reply, StoreUnavailable):
                found.update((claim.id, reply) for claim in part)
            elif kind:
                found.update(_read_renewal(part, reply))
            else:
                found[part[0].id] = self._read_waiter(part[0], reply)
        standings = [found[claim.id] for claim in claims]
        raise_if_all_failed(standings)
        return standings

    def _read_waiter(self, claim: Claim, reply: Any) -> Standing | None:
        standing = self._redisson.read(claim, reply)
        if standing is not None and standing.holds:
            self._end_wait(claim, self._calls.channel(claim, self._names_of(claim.name)))
        return standing

    def _renewal(self, kind: str, batch: Sequence[Claim]) -> ScriptCall:
        names = [self._names_of(claim.name) for claim in batch]
        args: list[Argument] = []
        for claim, own in zip(batch, names, strict=True):
            args += [milliseconds(claim.lease), *([own.readers] if kind == "rw" else [])]
            args.append(self._calls.who(FORMS[claim.kind], claim))
        script = scripts.RW_RENEW if kind == "rw" else scripts.MUTEX_RENEW
        return ScriptCall(script, names[0].key, tuple(args), more=tuple(own.key for own in names[1:]))

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        names, lease, terms = self._names_of(claim.name), milliseconds(claim.lease), self._terms
        holder = self._calls.who(FORMS[claim.kind], claim)
        if claim.kind == "rw":
            writes, reads = divmod(weight, RW_CAPACITY)
            words = (lease, names.readers, holder, reads, writes, names.rw_channel, terms.publish)
            call = ScriptCall(scripts.RW_AMEND, names.key, words)
        else:
            more = (names.token,) if claim.kind == FENCED_MUTEX else ()
            call = ScriptCall(scripts.MUTEX_AMEND, names.key, (lease, holder, weight), more=more)
        reply = await self._executor.ask(call, until)
        if len(reply) != 2 or not isinstance(reply[1], int):
            raise strange()
        if reply[1] > 0:
            claim.ticket = reply[1]

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        names = self._names_of(claim.name)
        self._end_wait(claim, self._calls.channel(claim, names))
        call = self._calls.leave(claim, names, self._terms, answered)
        reply, is_repeated = await self._executor.ask_often(call, until)
        self._forget_latch(claim, names, answered and not is_repeated)
        return read_bool(reply)

    def _forget_latch(self, claim: Claim, names: Names, is_settled: bool) -> None:
        """Delete the latch, as Redisson does, once no copy of a request can arrive any more."""
        if is_settled:
            request = shortening if claim.kind == "semaphore" else deletion
            self._executor.tell(names.key, request(names, claim.id.hex().encode()))

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        calls = []
        for claim, answered in leaving:
            names = self._names_of(claim.name)
            self._end_wait(claim, self._calls.channel(claim, names))
            calls.append(self._calls.leave(claim, names, self._terms, answered))
        return read_leaves(await self._executor.ask_all(calls, until))

    def _end_wait(self, claim: Claim, channel: bytes) -> None:
        subscriber = self._subscriber
        if subscriber is not None and subscriber.hears(channel, claim.id):
            subscriber.ignore(channel, claim.id)
            self._wakeups.ends(claim.id, subscriber.listeners(channel))

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        if self._subscriber is not None:
            signal = read_signal(await self._subscriber.hear(claim.id, until))
        else:
            signal = read_signal(await self._inbox.wait(claim.id, min(until, self._now() + SPIN))) or TRY
        if claim.kind == FAIR_MUTEX:
            self._wakeups.begins(claim.id)  # it asks by a renewal
        else:
            claim.by = self._now() + claim.waiting  # the last try was answered: the next one has its own time
        return signal

    async def inspect(self, name: str, until: float) -> LockInfo:
        names = self._names_of(name)
        return inspect.read(name, await self._executor.ask(inspect.look(names), until))

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        return await self._listing.page(prefix, after, until)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        raise Unsupported(
            "Redisson's locks cannot ask their holder to release", step="end its process, or break the lock"
        )

    async def evict(self, name: str, token: int, until: float) -> bool:
        return False  # holders have ids in place of tokens

    async def evict_holder(self, name: str, holder: str, until: float) -> bool:
        names = self._names_of(name)
        await self._redisson.ready(until)
        words = (
            holder, names.readers, self._terms.publish, names.lock_channel, names.rw_channel, names.permits_channel
        )  # fmt: skip
        keys = (names.queue, names.deadlines, names.permits)
        reply, is_repeated = await self._executor.ask_often(
            ScriptCall(scripts.EVICT, names.key, words, more=keys), until
        )
        return read_bool(reply) or is_repeated

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._inbox.wait(key, until)  # only elections are followed, and this layout has none

    async def doctor(self, until: float) -> list[Finding]:
        from dibs.backends.redis.doctor import examine  # noqa: PLC0415  (few programs ask)

        return await examine(self._redisson.context, until)


_MOST_NAMES = 1000


def _renewed_as(claim: Claim) -> str:
    """The script that renews it: "mutex" or "rw". Empty: it has none, or it waits in the queue of a fair lock."""
    if not FORMS[claim.kind].is_by_holder or (claim.kind == FAIR_MUTEX and claim.ticket is None):
        return ""
    return "rw" if claim.kind == "rw" else "mutex"


def _read_renewal(batch: Sequence[Claim], reply: Sequence[Any]) -> Iterator[tuple[bytes, Standing | None]]:
    if len(reply) != 1 + len(batch):
        raise strange()
    for claim, left in zip(batch, reply[1:], strict=True):
        if not isinstance(left, int):
            raise strange()
        standing = Standing(claim.ticket or 0, True, left / MICROSECONDS, FOREVER, False)
        yield claim.id, None if left < 0 else standing
