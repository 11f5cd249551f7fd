"""The worker: acquires random names again and again by the public API, and records what it saw.

One process with threads and tasks. Before and after each call it appends a line of JSON to a file, with one write, so
the record survives kill -9 (see history.py). Instants are CLOCK_BOOTTIME, read so that conclusions err on
the lock's side: a call is dated before it, a return after it, and `deadline` is a lower bound.

How it uses a hold is drawn by `chances` (one for each of BODIES, otherwise short), until SIGUSR1 says that all is
healed. SIGTERM ends it: it releases its holds and closes its clients.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import dibs
from lab.resource import Fenced, Naive
from lab.surface import Api, Held, Target, Tasks, Threads, Want, clock, step

BODIES = ("long", "past", "stall", "hog", "fork", "cancel-acquire", "cancel-release")
"""The alternatives to a short use: renewed for longer than a lease; not renewed and ending after the deadline; deaf
(for tasks: the loop is blocked); computing without a pause; forking; cancelled (tasks only)."""
SHORT = (0.0, 0.0, 0.0, 0.001, 0.003)
ORDERS = (signal.SIGUSR1, signal.SIGTERM)
"""Blocked in all threads by whoever starts it, and waited for by one: a handler would need the main thread to wake."""
_FORK_PATIENCE = 10
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Spec:
    proc: str
    url: str
    directory: str
    seed: str
    targets: list[Target]
    lease: float
    threads: int = 2
    tasks: int = 0
    chances: dict[str, float] = field(default_factory=dict)
    look: float = 0.05
    """How often it looks at a queue before it joins and once it holds: a claim that waits in both was overtaken."""
    uses: int = 0
    """How many each thread or task shall have; 0: until it is ended."""

    @property
    def actors(self) -> list[str]:
        return [*(f"t{i}" for i in range(self.threads)), *(f"a{i}" for i in range(self.tasks))]

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Spec:
        said = json.loads(text)
        return cls(**{**said, "targets": [Target(**target) for target in said["targets"]]})


def apis(spec: Spec) -> tuple[Api | None, Api | None]:
    """For threads and for tasks; a broken lock has only the first."""
    if spec.url.startswith("broken:"):
        from lab.broken import locks

        return locks.connect(spec.url, spec.lease, spec.seed), None
    blocking = Threads(spec.url, spec.lease) if spec.threads else None
    return blocking, Tasks(spec.url, spec.lease) if spec.tasks else None


class Pen:
    def __init__(self, spec: Spec) -> None:
        self._proc = spec.proc
        path = Path(spec.directory) / f"{spec.proc}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, thread: str, n: int, op: str, at: float, **facts: Any) -> None:
        line = {"proc": self._proc, "thread": thread, "n": n, "op": op, "at": at, **facts}
        os.write(self._file, (json.dumps(line) + "\n").encode())


def looked_at(hold: Held) -> dict[str, Any]:
    """Whether it is held and until when; a loss is dated after it was seen, so that it surely was then."""
    at = clock()
    try:
        hold.check()
        left = hold.remaining
    except dibs.LockLost:
        left = 0.0
    return {"at": at, "valid": True, "deadline": at + left} if left > 0 else {"at": clock(), "valid": False}


class Actor:
    def __init__(self, spec: Spec, thread: str, api: Api, pen: Pen, calm: threading.Event, over: threading.Event):
        self.spec, self.thread, self.api, self.pen = spec, thread, api, pen
        self.calm, self.over = calm, over
        self.dice = random.Random(f"{spec.seed}/{spec.proc}/{thread}")
        self.n = 0

    def note(self, op: str, at: float | None = None, **facts: Any) -> None:
        self.pen.note(self.thread, self.n, op, clock() if at is None else at, **facts)

    async def work(self) -> None:
        self.note("born")
        while not self.over.is_set() and (self.n < self.spec.uses or not self.spec.uses):
            self.n += 1
            try:
                await self._use(self._body())
            except Exception:
                self.note("crash", error=traceback.format_exc(limit=-6))
        self.note("gone")

    def _body(self) -> str:
        if self.calm.is_set():
            return "short"
        chance = self.dice.random()
        for body in BODIES:
            chance -= self.spec.chances.get(body, 0.0)
            if chance < 0:
                return body
        return "short"

    def _want(self, body: str) -> Want:
        target = self.dice.choice(self.spec.targets)
        most = {"mutex": 1, "semaphore": 2}.get(target.kind, target.capacity)
        weight = self.dice.choice((1, 1, most))
        lease = self.spec.lease
        return Want(
            use=f"{self.spec.proc}/{self.thread}/{self.n}",
            target=target,
            weight=weight,
            fair=self.dice.random() < 0.7,
            renew=body != "past",
            timeout=self.dice.choice((0, 0.05, 0.05, 2 * lease, 20)),
        )

    async def _use(self, body: str) -> None:
        want = self._want(body)
        looks = self.dice.random() < self.spec.look
        if looks:
            await self._look(want.target.name)
        hold = await self._acquire(want, body)
        if hold is not None:
            try:
                if looks:
                    await self._look(want.target.name)
                await self._inside(want, hold, body)
            finally:
                await self._release(hold, body)

    async def _look(self, name: str) -> None:
        called = clock()
        try:
            waiting = await self.api.queue(name)
        except dibs.StoreUnavailable:
            return
        self.note("queue", called, returned=clock(), name=name, waiting=waiting)

    async def _acquire(self, want: Want, body: str) -> Held | None:
        asked = {**asdict(want), **asdict(want.target), "body": body}
        del asked["target"], asked["use"]
        self.note("acquire", **asked)
        hold: Held | None
        try:
            if body == "cancel-acquire":
                hold = await self._cut_off(lambda: self.api.take(want), body)
            else:
                hold = await self.api.take(want)
        except (dibs.StoreUnavailable, asyncio.CancelledError) as error:
            self.note("acquired", outcome="unknown", error=type(error).__name__)
            return None
        if hold is None:
            self.note("acquired", outcome="busy")
            return None
        self.note("acquired", outcome="ok", token=hold.token, **looked_at(hold))
        return hold

    async def _inside(self, want: Want, hold: Held, body: str) -> None:
        if not want.exclusive or want.target.kind == "semaphore":
            await self._spend(hold, body)
            return
        directory, name = Path(self.spec.directory), want.target.name
        naive, fenced = Naive(directory / f"{name}.naive"), Fenced(directory / f"{name}.fenced")
        value, guarded = naive.begin(), fenced.begin(hold.token)
        await self._spend(hold, body)
        self.note("act")
        naive.write(value + 1, hold.token)
        if guarded is not None:
            fenced.write(hold.token, guarded + 1)

    async def _spend(self, hold: Held, body: str) -> None:
        """The time inside; a fault is noted once it happened."""
        lease, dice = self.spec.lease, self.dice
        match body:
            case "long":
                await self._sampled(hold, dice.uniform(1.2, 2.0) * lease)
            case "past":
                await self._sampled(hold, dice.uniform(1.1, 1.6) * lease)
                self.note("fault", kind="body past the lease")
            case "stall":
                time.sleep(dice.uniform(1.1, 1.6) * lease)
                self.note("fault", kind="loop blocked" if isinstance(self.api, Tasks) else "deaf for a lease")
                self.note("seen", **looked_at(hold))
            case "hog":
                end = clock() + dice.uniform(1.1, 1.6) * lease
                while clock() < end:
                    sum(range(1000))
                self.note("fault", kind="interpreter hogged")
                self.note("seen", **looked_at(hold))
            case "fork":
                self._fork(hold)
            case _:
                await self.api.nap(dice.choice(SHORT))

    async def _sampled(self, hold: Held, seconds: float) -> None:
        end = clock() + seconds
        while (left := end - clock()) > 0 and not self.over.is_set():
            await self.api.nap(min(left, self.spec.lease / 20))
            self.note("seen", **looked_at(hold))

    def _fork(self, hold: Held) -> None:
        """The child does what it may not: give the parent's hold back, close the parent's client."""
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            self._harm(hold, parent)
        status = os.waitpid(pid, 0)[1]
        if status:
            self.note("crash", error=f"a child forked while holding ended with {status}")
        self.note("fault", kind="fork while holding")
        self.note("seen", **looked_at(hold))

    def _harm(self, hold: Held, parent: int) -> NoReturn:
        status = 1
        try:
            die_with(parent)
            signal.alarm(_FORK_PATIENCE)
            if isinstance(self.api, Threads):
                for harm in (hold.release, self.api.client.close):  # type: ignore[attr-defined]
                    with suppress(dibs.DibsError):
                        harm()
            status = 0
        finally:
            os._exit(status)

    async def _release(self, hold: Held, body: str) -> None:
        self.note("release", **looked_at(hold))
        outcome = "ok"
        try:
            if body == "cancel-release":
                await self._cut_off(lambda: self.api.give(hold), body)
            else:
                await self.api.give(hold)
        except dibs.LockLost:
            outcome = "lost"
        except (dibs.StoreUnavailable, asyncio.CancelledError):
            outcome = "unknown"
        self.note("released", outcome=outcome)

    async def _cut_off(self, call: Callable[[], Awaitable[Any]], body: str) -> Any:
        """Cancelled at a random instant, unless it is over by then."""
        if not isinstance(self.api, Tasks):
            return await call()
        task = asyncio.ensure_future(call())
        await asyncio.wait([task], timeout=self.dice.choice((0, 0.0003, 0.002, 0.02)))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self.note("fault", kind=body.replace("-", " during "))
            raise


def run(spec: Spec) -> None:
    calm, over = threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(calm, over), daemon=True).start()
    logging.getLogger("dibs").setLevel(logging.ERROR)  # a renewal that failed is warned of; here that is no news
    pen = Pen(spec)
    blocking, looping = apis(spec)
    threads = []
    if blocking is not None:
        actors = [Actor(spec, f"t{i}", blocking, pen, calm, over) for i in range(spec.threads)]
        threads += [threading.Thread(target=lambda actor=actor: step(actor.work()), daemon=True) for actor in actors]
    if looping is not None:
        actors = [Actor(spec, f"a{i}", looping, pen, calm, over) for i in range(spec.tasks)]
        threads.append(threading.Thread(target=_loop, args=(looping, actors), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if blocking is not None:
        step(blocking.close())
    if spec.url.startswith("memory:"):
        _note_left(spec.url, pen)
    pen.note("", 0, "closed", clock())


def _listen(calm: threading.Event, over: threading.Event) -> None:
    while signal.sigwait(ORDERS) == signal.SIGUSR1:
        calm.set()
    over.set()


def _loop(api: Api, actors: list[Actor]) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(actor.work() for actor in actors))
        await api.close()

    asyncio.run(all_of_them())


def _note_left(url: str, pen: Pen) -> None:
    """Nobody else can look into the memory of this process."""
    with dibs.connect(url) as client:
        pen.note("", 0, "left", clock(), names=[info.name for info in client.locks()])


def die_with(parent: int) -> None:
    """The kernel kills this process with the thread that started it; one that is gone already cannot be waited for."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
