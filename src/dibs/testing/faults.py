"""Faults that a test injects into its store: lost replies, expired leases, replaced holders.

The store and every queue and cell interface that it opens are wrapped generically, by `__getattr__`. Operations that
are added later are therefore covered without a change here.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

from dibs import LockInfo, NotHeld, Participant, StoreUnavailable
from dibs.backends import memory
from dibs.backends.common import atomic_queue
from dibs.backends.memory import MemoryQueue, World
from dibs.core import names
from dibs.core.cells import CellKey
from dibs.core.client import Client
from dibs.core.grants import HELD, Grant
from dibs.core.loss import Loss
from dibs.core.queue import LOOK, ClientIdentity, Place, Queue
from dibs.core.rule import Claim, Entry, Standing, head
from dibs.core.runtime import Runtime
from dibs.runtime.threads import step
from dibs.testing.stage import Stage, StagedRuntime

T = TypeVar("T")
_EXPIRED = Loss("expired", "its lease ran out: the test called expire()")
_WAITING = frozenset({"watch", "await_change"})
"""Operations that wait for a signal until the deadline in their last argument. They have no reply to lose."""


class LostReply:
    """The result of `KitClient.lose_reply`.

    Attributes:
        wanted: The request whose reply should be lost; None: any request.
        verb: The request whose reply was lost; None: no reply was lost yet.
    """

    def __init__(self, wanted: str | None) -> None:
        self.wanted = wanted
        self.verb: str | None = None

    def __repr__(self) -> str:
        return f"<LostReply of {self.wanted or 'any request'}: {self.verb or 'not yet'}>"


class Faults:
    """The faults that a test asked for on its stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._to_lose: list[LostReply] = []

    def lose_reply(self, verb: str | None) -> LostReply:
        if verb is not None and verb not in (known := verbs()):
            raise ValueError(
                f"no request to a store is called {verb!r}; an acquire sends join, a release sends leave, a watchdog "
                f"renew; known are {', '.join(sorted(known))}"
            )
        lost = LostReply(verb)
        self._to_lose.append(lost)
        return lost

    def wrap(self, client: Client) -> None:
        """Wrap the store of a client; call it before the client is used."""
        client.store = _Wrapped(client.store, self)  # type: ignore[assignment]  # it passes every attribute on

    async def ask(self, verb: str, by_watchdog: bool, request: Awaitable[T]) -> T:
        """Carry the request out, then raise StoreUnavailable if its reply should be lost."""
        reply = await request
        for lost in self._to_lose:
            if lost.wanted == verb or (lost.wanted is None and not by_watchdog):
                self._to_lose.remove(lost)
                lost.verb = verb
                raise StoreUnavailable(f"the reply to a {verb} was lost, as a test wanted it", step="see lose_reply")
        return reply

    async def wait(self, caller: object, until: float, signal: Awaitable[T]) -> T:
        with self._stage.parked(caller, until):
            return await signal


def verbs() -> set[str]:
    """The names of all requests to a memory store."""
    return {
        name
        for kind in vars(memory).values()
        if inspect.isclass(kind) and kind.__module__ == memory.__name__
        for name, verb in vars(kind).items()
        if inspect.iscoroutinefunction(verb) and name not in _WAITING
    }


class _Wrapped:
    """A store that wraps whatever its `open...` methods return in a `_FaultyExecutor`."""

    def __init__(self, store: Any, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._opening(found) if name.startswith("open") else found

    def _opening(self, open: Callable[[Runtime, ClientIdentity], Any]) -> Callable[[Runtime, ClientIdentity], Any]:
        return lambda runtime, me: _FaultyExecutor(open(runtime, me), runtime, self._faults)


class _FaultyExecutor:
    """An opened queue or cell interface whose replies may be lost."""

    def __init__(self, executor: Any, runtime: Runtime, faults: Faults) -> None:
        self._executor = executor
        self._runtime = runtime
        self._faults = faults
        self._by_watchdog = not isinstance(runtime, StagedRuntime)  # a watchdog uses the inner, blocking runtime

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._executor, verb)
        if not inspect.iscoroutinefunction(found):
            return found
        if verb in _WAITING:
            return lambda *args: self._faults.wait(self._runtime.caller(), args[-1], found(*args))
        return lambda *args: self._faults.ask(verb, self._by_watchdog, found(*args))


def holders(client: Client, name: str, token: int | None) -> tuple[LockInfo, list[Participant]]:
    """The lock and its holders, or only the holder with that token. NotHeld: there is none."""
    info = step(queue_of(client).inspect(client.prefix + names.check(name), 0.0))
    found = [holder for holder in info.holders if token is None or holder.token == token]
    if not found:
        who = "nobody holds it" if token is None else f"nobody holds it with token {token}"
        raise client.error(NotHeld, name, who, info=info, step="let the code under test acquire it first")
    return info, found


def expire(stage: Stage, client: Client, name: str, token: int | None) -> None:
    """Expire holds in the order of a real expiry: first the holders notice, by their own clocks, then the store."""
    with stage.still():
        for holder in holders(client, name, token)[1]:
            encoded = client.prefix + name
            for owner, grant in grants(stage, world_of(client), encoded):
                if grant.token == holder.token:
                    _lose(owner, grant)
            step(queue_of(client).evict(encoded, holder.token, 0.0))


def _lose(owner: Client, grant: Grant) -> None:
    if grant.state is HELD:
        owner.watchdog.lose(grant, _EXPIRED, gone=True)
    else:  # just granted, and its caller does not know yet: let it look
        owner.me.inbox.deliver(grant.claim.id, LOOK.value)


def grants(stage: Stage, world: World, encoded: str) -> list[tuple[Client, Grant]]:
    """The grants of one queue, with their clients, among the clients on a stage."""
    return [
        (client, grant)
        for client in stage.clients
        if world_of(client) is world
        for grant in list(client.watchdog.renewing.values())
        if grant.request.name == encoded
    ]


def world_of(client: Client) -> World:
    world: World = client.store._world  # type: ignore[attr-defined]  # every client on a stage has a memory store
    return world


def queue_of(client: Client) -> MemoryQueue:
    """A queue interface to the same store, without faults and without an event loop."""
    return MemoryQueue(world_of(client), client.runtime.blocking(), client.me)


class Usurping:
    """A store whose `join` replaces holders, ahead of all waiters."""

    def __init__(self, store: Any, stage: Stage) -> None:
        self.victims: Collection[int] = ()
        self._store = store
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        return _UsurpingQueue(self, self._store.open(runtime, me), runtime)

    def take_place(self, claim: Claim, now: float) -> Standing:
        """Replace the victims by the claim, in one atomic step. The waiters keep their order."""
        world: World = self._store._world
        with world.mutex:
            queue = list(world.queue(claim.name))
            held = head(queue, lambda entry: entry.until <= now).holding
            waiting = [entry for entry in queue if entry not in held and entry.until > now]
            for entry in queue:
                if entry not in held or entry.ticket in self.victims:
                    world.remove(claim.name, entry)
            claim.asked, claim.ticket = True, world.ticket(now)
            world.add(claim.name, Entry(
                claim.ticket, claim.id, claim.client, claim.kind, claim.capacity, claim.weight,
                now + claim.lease, now, now, False, claim.description,
            ))  # fmt: skip
            self._rejoin(world, claim.name, waiting, now)
            wakes = atomic_queue.tell(world, CellKey(atomic_queue.QUEUES, claim.name))
        world.wake(wakes)
        return Standing(claim.ticket, True, claim.lease, float("inf"), False)

    def _rejoin(self, world: World, name: str, waiting: Sequence[Entry], now: float) -> None:
        """Add the waiters again with new tickets: tickets rise along a queue. No waiter holds by its old ticket yet."""
        known = {grant.claim.id: grant.claim for _, grant in grants(self._stage, world, name)}
        for entry in waiting:
            entry.ticket = world.ticket(now)
            world.add(name, entry)
            if entry.id in known:
                known[entry.id].ticket = entry.ticket


class _UsurpingQueue:
    def __init__(self, store: Usurping, queue: Queue, runtime: Runtime) -> None:
        self._store = store
        self._queue = queue
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        return self._store.take_place(claim, self._runtime.now())
