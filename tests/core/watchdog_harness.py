"""A harness that runs a watchdog turn by turn, in virtual time, with replies that a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from dibs.core.deadline import FOREVER
from dibs.core.grants import Grant, Request
from dibs.core.loss import Loss, too_old
from dibs.core.queue import Leave
from dibs.core.reporter import Reporter
from dibs.core.rule import Claim, Standing
from dibs.core.watchdog import Watchdog
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import step

LEASE = 30.0


class Hold:
    """The part of a hold that the watchdog uses."""

    def __init__(self, ends_at: float = FOREVER, weight: int = 1) -> None:
        self.ends_at, self.weight = ends_at, weight
        self.is_wanted, self.over, self.told = True, False, 0

    def wanted(self) -> bool:
        return self.is_wanted

    def tell_lost(self) -> None:
        self.told += 1

    def report_loss(self) -> None: ...

    def ended_by_itself(self) -> Loss:
        return too_old(1.0)


class Harness:
    """The clock, the workers and the store of a watchdog: replies are set in advance, requests are recorded."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.rings: list[str] = []
        self.delivered: list[tuple[Any, ...]] = []
        self.asked: list[tuple[str, Any, float]] = []
        self.closed = 0
        self.trip = 0.0
        self.left: Callable[[Claim], StoreError | None] = lambda claim: None
        self.standing: Callable[[Grant], Standing | StoreUnavailable | None] = lambda grant: held()
        self.error: StoreError | None = None
        inbox = SimpleNamespace(forget=lambda _: None, deliver=lambda *what: self.delivered.append(what))
        runtime: Any = SimpleNamespace(now=lambda: self.time, worker=self._worker, event=threading.Event)
        me: Any = SimpleNamespace(inbox=inbox)
        reporter = Reporter("desk", "memory", runtime.now, None)
        self.watchdog = Watchdog(runtime, me, lambda: self, reporter, threading.Lock())
        self.runtime = runtime

    def _worker(self, work: Callable[..., Any]) -> Any:
        name = work.__name__
        return SimpleNamespace(ring=lambda: self.rings.append(name), stop=lambda: self.rings.append(f"stop {name}"))

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Any]:
        grants = [self.watchdog.renewing[claim.id] for claim in claims]
        self._ask("renew", list(claims), until)
        return [self.standing(grant) for grant in grants]

    async def give_back(self, leaving: Sequence[Leave], until: float) -> list[StoreError | None]:
        self._ask("give back", [claim.id for claim, _ in leaving], until)
        return [self.left(claim) for claim, _ in leaving]

    async def lighten(self, grant: Grant, weight: int, until: float) -> None:
        self._ask("lighten", weight, until)

    async def connect(self, until: float) -> None:
        """It is connected."""

    def round_trip(self) -> float:
        return self.trip

    def close(self) -> None:
        self.closed += 1

    def _ask(self, verb: str, what: Any, until: float) -> None:
        self.asked.append((verb, what, until - self.time))
        if self.error is not None:
            raise self.error

    def grant(self, id: bytes = b"a", *holds: Hold, lasts: float = LEASE, renew: bool = True) -> Grant:
        """A grant that these holds share, held from now on."""
        grant = Grant(Request("x", "mutex", 1, lasts, renew, True))
        grant.ask_as(Claim(id, "x", "mutex", 1, 1, lasts, min(lasts, 10.0), self.time + 5.0, b"me", "{}"))
        grant.holds = list(holds or (Hold(),))  # type: ignore[arg-type]
        grant.ends_at = min(hold.ends_at for hold in grant.holds)
        self.watchdog.adopt(grant)
        grant.answer(Standing(7, True, lasts, FOREVER, False), self.time)
        grant.granted(self.time)
        self.watchdog.schedule(grant)
        return grant

    def change(self, grant: Grant, **fields: Any) -> None:
        """As another thread does."""
        for name, value in fields.items():
            setattr(grant, name, value)
        self.watchdog.schedule(grant)

    def turn(self, at: float | None = None) -> float | None:
        """One turn of each lane; gives how long the first of them sleeps."""
        self.time = self.time if at is None else at
        self.asked.clear()
        step(self.watchdog.watch())
        step(self.watchdog.renew())
        self.leave_pause = step(self.watchdog.give_backs.turn())
        return step(self.watchdog.watch())

    def look(self) -> None:
        """A turn of the first lane alone: what it hands on to be renewed stays unanswered."""
        step(self.watchdog.watch())

    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.asked]


def held(left: float = LEASE) -> Standing:
    return Standing(7, True, left, FOREVER, False)
