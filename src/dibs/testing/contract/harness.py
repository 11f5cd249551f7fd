"""The harness that runs one async test through both APIs: a `World` has the clients and actors of a test.

An *actor* is a thread (sync API) or a task (async API) of the user. `await ana(lambda: lock.acquire())` runs the lambda
there, and in the async API awaits its result there. `ana.start(...)` starts it without waiting.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import dibs
import dibs.aio
from dibs.core.grants import ASKING, WAITS
from dibs.core.queue import FAIR_MUTEX, FOREIGN, LEASES, PERMITS, QUORUM, RW
from dibs.testing.contract import clocks
from dibs.testing.contract.clocks import PATIENCE, StoppedClock
from dibs.testing.contract.stores import WHOLE, Subject

Action = Callable[[], Any]
APIS: dict[str, ModuleType] = {"blocking": dibs, "aio": dibs.aio}

MUTEXES: dict[str, Callable[..., Any]] = {
    "lock": lambda client, name, **options: client.lock(name, **options),
    "rlock": lambda client, name, **options: client.rlock(name, **options),
    "write": lambda client, name, **options: client.rwlock(name, **options).write,
    "semaphore": lambda client, name, **options: client.semaphore(name, 1, **options),
    "plain": lambda client, name, **options: client.lock(name, fenced=False, **options),
    "fair": lambda client, name, **options: client.lock(name, fair=True, **options),
    "expiring": lambda client, name, **options: client.semaphore(name, 1, **{"renew": False, **options}),
}
"""Each kind that can be used as a mutex: `MUTEXES[kind](client, name, **options)`."""
ONE_KIND = "lock"
"""The only kind that is tested on a store whose `part` is not the whole suite."""
NEEDED = {
    "write": (RW,),
    "semaphore": (PERMITS,),
    "plain": (FOREIGN,),
    "fair": (FOREIGN,),
    "expiring": (FOREIGN, PERMITS),
}
UNRENEWED = ("semaphore", "expiring")
"""Kinds whose holders a FOREIGN store does not renew."""


@cache
def made_with(client: Any, option: str) -> type[Any]:
    """The class of a client whose locks have this option, unless they ask for another form."""

    def make(kind: str) -> Callable[..., Any]:
        def made(self: Any, name: str, **options: Any) -> Any:
            usual = {} if options.get("fair") or "fenced" in options else {option: True}
            return getattr(client, kind)(self, name, **{**usual, **options})

        return made

    return type(client.__name__, (client,), {"__slots__": (), "lock": make("lock"), "rlock": make("rlock")})


async def eventually(condition: Callable[[], Any], within: float = PATIENCE) -> Any:
    """Poll `condition` until its result, awaited if necessary, is true; return that result."""
    pace = clocks.current().pace(within)
    while True:
        seen = condition()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        if pace.is_over():
            raise AssertionError(f"it did not come true: {inspect.getsource(condition).strip()}")
        await pace.step()


async def passed(seconds: float) -> None:
    """Let that much time pass: for tests that nothing ends during it."""
    clock = clocks.current()
    pace, end = clock.pace(), clock.now() + seconds
    while (left := end - clock.now()) > 0:
        await pace.step(left)


async def lasted(work: Awaitable[Any]) -> tuple[Any, float]:
    """The result of `work` and the seconds that it took, without those in which the machine stalled."""
    clock = clocks.current()
    task, counted, before = asyncio.ensure_future(work), 0.0, clock.now()
    pace = clock.pace()
    while not task.done():
        await pace.step()
        counted += min((now := clock.now()) - before, clock.longest_step)
        before = now
    return task.result(), counted


class Pending:
    """The future result of an action that an actor has started."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may never be awaited

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        clock = clocks.current()
        pace = clock.pace()
        while not self._future.done():
            await asyncio.wait([self._future], timeout=clock.poll)
            if not self._future.done():
                assert not pace.is_over(), "an actor did not come to an end"
                await pace.step()
        return self._future.result()

    def done(self) -> bool:
        return self._future.done()


class Actor:
    """A thread or task of the user; it runs its actions one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.latest: Pending | None = None
        """Its last action."""
        self.caller: object = None
        """Its thread or task."""

    def is_busy(self) -> bool:
        return self.latest is not None and not self.latest.done()

    def start(self, action: Action) -> Pending:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def __call__(self, action: Action) -> Any:
        return await self.start(action)

    async def enter(self, manager: Any) -> Any:
        """Enter a `with` on this actor."""
        return await self(getattr(manager, "__aenter__", None) or manager.__enter__)

    async def leave(self, manager: Any, raised: BaseException | None = None) -> None:
        """Leave a `with` on this actor; another actor may have entered it."""
        end = getattr(manager, "__aexit__", None) or manager.__exit__
        await self(lambda: end(type(raised) if raised else None, raised, raised.__traceback__ if raised else None))

    def entering(self, manager: Any) -> Entering:
        return Entering(self, manager)


class Entering:
    """`async with ana.entering(lock) as hold`: both ends of the `with` happen on that actor."""

    def __init__(self, actor: Actor, manager: Any) -> None:
        self._actor, self._manager = actor, manager

    async def __aenter__(self) -> Any:
        return await self._actor.enter(self._manager)

    async def __aexit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        await self._actor.leave(self._manager, raised)


class ThreadActor(Actor):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._jobs: SimpleQueue[tuple[Action, Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        self.caller = self._thread

    def start(self, action: Action) -> Pending:
        future: Future[Any] = Future()
        self._jobs.put((action, future))
        self.latest = Pending(asyncio.wrap_future(future))
        return self.latest

    async def stop(self) -> None:
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, PATIENCE)
        assert not self._thread.is_alive(), f"the thread {self.name} hangs"

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            action, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)


class TaskActor(Actor):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._jobs: asyncio.Queue[tuple[Action, asyncio.Future[Any]] | None] = asyncio.Queue()
        self.caller = self._task = asyncio.get_running_loop().create_task(self._work(), name=name)

    def start(self, action: Action) -> Pending:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((action, future))
        self.latest = Pending(future)
        return self.latest

    async def stop(self) -> None:
        self._jobs.put_nowait(None)
        _, hanging = await asyncio.wait([self._task], timeout=PATIENCE)
        assert not hanging, f"the task {self.name} hangs"

    async def _work(self) -> None:
        while (job := await self._jobs.get()) is not None:
            action, future = job
            try:
                result = action()
                if inspect.isawaitable(result):
                    result = await result
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
                if isinstance(error, asyncio.CancelledError):
                    raise
            else:
                if not future.done():
                    future.set_result(result)


class World:
    """One store, used through one API."""

    def __init__(self, api: str, subject: Subject, tmp_path: Path, *, fair: bool = False) -> None:
        """`fair`: the test needs order among waiters."""
        self.api = api
        self.module = APIS[api]
        self.subject = subject
        self.short = 5.0 if {LEASES, QUORUM} & subject.capabilities != {LEASES} else 4.5
        """A short lease, in seconds, that survives if the machine stalls for two seconds. It is longer for sessions, of
        whose time less than a quarter may be certain, and for a quorum, where a renewal is several requests. Without a
        server a test that depends on it runs alone, and need not wait for so long."""
        if not subject.has_server:
            self.short = 1.2
        self.lasting = 1.3 * self.short
        """A short lease, in seconds, for tests that renew it many times."""
        self.is_foreign = FOREIGN in subject.capabilities
        self.shown_permits = {"renew": False} if self.is_foreign else {}
        """The options of a semaphore whose holders `inspect` shows."""
        self._usual = "fair" if fair else "fenced"
        self._fresh_url = subject.fresh
        self._path = tmp_path
        self._stores = 0
        self._clients: list[Any] = []
        """To be closed at the end."""
        self._connected: list[Any] = []
        self._actors: dict[str, Actor] = {}
        self.url = self.another_url()
        clock = clocks.current()
        self.now = clock.now
        """Reads the clock that the store uses."""
        self.stand_still = clock.advance
        """Lets that much time pass, blocking the event loop."""
        if isinstance(clock, StoppedClock):
            clock.is_anybody_at_work = lambda: any(
                actor.is_busy() and not clock.waits(actor.caller) for actor in self._actors.values()
            )

    def another_url(self) -> str:
        """The URL of another, empty store of the same kind."""
        self._stores += 1
        path = self._path / str(self._stores)
        path.mkdir()
        return self._fresh_url(path)

    def connect(self, url: str | None = None, **options: Any) -> Any:
        """A client that the test closes itself. In a FOREIGN store its locks have fencing tokens, or an order if the
        test needs that."""
        client: Any = self.module.connect(url or self.url, **options)
        if self.is_foreign:
            client.__class__ = made_with(client.__class__, self._usual)
            self._connected.append(client)
        return client

    def client(self, url: str | None = None, **options: Any) -> Any:
        """A client that is closed at the end of the test."""
        client = self.connect(url, **options)
        self._clients.append(client)
        return client

    def actor(self, name: str) -> Actor:
        if name not in self._actors:
            self._actors[name] = ThreadActor(name) if self.api == "blocking" else TaskActor(name)
        return self._actors[name]

    def actors(self, *names: str) -> tuple[Actor, ...]:
        return tuple(self.actor(name) for name in names)

    def mutexes(self) -> dict[str, Callable[..., Any]]:
        """Those of `MUTEXES` that are tested on this store, and renewed."""
        if self.subject.part != WHOLE:
            return {ONE_KIND: MUTEXES[ONE_KIND]}
        has = self.subject.capabilities
        kinds = [kind for kind in MUTEXES if has.issuperset(NEEDED.get(kind, ()))]
        return {kind: MUTEXES[kind] for kind in kinds if not (self.is_foreign and kind in UNRENEWED)}

    def multi(self, *locks: Any, **options: Any) -> Any:
        return self.module.multi(*locks, **options)

    async def __call__(self, action: Action) -> Any:
        """Run the action on an actor that takes no lock."""
        return await self.actor("onlooker")(action)

    async def inspect(self, client: Any, name: str) -> dibs.LockInfo:
        info: dibs.LockInfo = await self(lambda: client.inspect(name))
        return info

    def token(self, hold: Any) -> int | None:
        """Its token. None: a FOREIGN store has none for this form of a lock."""
        try:
            token: int = hold.token
        except dibs.Unsupported:
            assert self.is_foreign
            return None
        return token

    def named(self, participant: dibs.Participant) -> dict[str, Any]:
        """The argument of `break_` that names it."""
        return {"holder": participant.owner} if self.is_foreign else {"token": participant.token}

    async def break_(self, client: Any, hold: Any) -> None:
        """Break a hold. In a FOREIGN store it has a token, or is the only one of its name."""
        named = {} if self.is_foreign else {"token": hold.token}
        if self.is_foreign:
            token, holders = self.token(hold), (await self.inspect(client, hold.name)).holders
            (holder,) = [one for one in holders if token is None or one.token == token]
            named = self.named(holder)
        await self(lambda: client.break_(hold.name, **named))

    async def locks(self, client: Any, prefix: str = "") -> list[dibs.LockInfo]:
        if self.api == "blocking":
            return list(await self(lambda: list(client.locks(prefix))))
        return [info async for info in client.locks(prefix)]

    async def in_queue(self, client: Any, name: str, count: int) -> None:
        """Wait until the queue has `count` waiters."""

        async def waiting() -> bool:
            return len((await self.inspect(client, name)).waiters) + self._hidden(name) == count

        try:
            await eventually(waiting)
        except AssertionError as error:
            error.add_note(f"the queue: {await self.inspect(client, name)}")
            for actor in self._actors.values():
                error.add_note(f"{actor.name}: {actor.latest and actor.latest._future}")
            raise

    def _hidden(self, name: str) -> int:
        """The waiters of our clients that a FOREIGN store does not show."""
        return sum(
            grant.request.name == client._core.prefix + name
            and grant.request.form != FAIR_MUTEX
            and grant.state in (ASKING, WAITS)
            and grant.answered  # it was told to wait
            for client in self._connected
            for grant in list(client._core.watchdog.renewing.values())
        )

    async def free(self, client: Any, name: str) -> None:
        """Wait until the lock has no holders and no waiters."""

        async def empty() -> bool:
            info = await self.inspect(client, name)
            return not info.holders and not info.waiters

        await eventually(empty)

    async def never_two_inside(self, *locks: Any) -> None:
        """Let one actor per lock enter it five times, all at once; these must be locks of one name."""
        inside: list[Actor] = []

        async def work(actor: Actor, lock: Any) -> None:
            for _ in range(5):
                async with actor.entering(lock):
                    inside.append(actor)
                    await asyncio.sleep(0)
                    assert inside == [actor]
                    inside.remove(actor)

        await asyncio.gather(*(work(self.actor(f"worker {n}"), lock) for n, lock in enumerate(locks)))

    async def end(self) -> None:
        """Close the clients, then stop the actors: closing wakes actors that still wait."""
        if isinstance(clock := clocks.current(), StoppedClock):
            clock.go_on()
        for client in self._clients:
            closing: Awaitable[None] = client.close() if self.api == "aio" else asyncio.to_thread(client.close)
            await closing
        for actor in self._actors.values():
            await actor.stop()
