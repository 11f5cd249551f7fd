"""Shared parts of the fault tests of all stores: one async text for both APIs, and holds checked as in the lab.

both_apis = apis_of("redis", "redis://127.0.0.1:1")

@both_apis
async def test_it(world: World, server: Server, name: str) -> None:
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    await eventually(witness.watching(pending.done))
    witness.acquit()                                        # no overlap of valid holds, tokens rise, ...
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dibs.testing.contract.harness import APIS, Action, World
from dibs.testing.contract.stores import Subject
from lab.checkers import Verdict, judge
from lab.faults import Match
from lab.history import History, Use
from lab.surface import clock
from lab.worker import looked_at

LONGEST = 50.0
Test = Callable[..., Coroutine[Any, Any, None]]


def apis_of(store: str, nowhere: str) -> Callable[[Test], Callable[..., None]]:
    """A decorator: once for each API, in a loop of its own; the clients of its `world` are closed however it went.
    `nowhere`: any URL of that store, which nobody goes to."""
    subject = Subject(store, lambda _: nowhere)

    def both_apis(test: Test) -> Callable[..., None]:
        def run(api: str, tmp_path: Path, **given: Any) -> None:
            async def play() -> None:
                world = World(api, subject, tmp_path)
                try:
                    async with asyncio.timeout(LONGEST):
                        await test(world=world, **given)
                finally:
                    await world.end()

            asyncio.run(play())

        asked = [one for name, one in inspect.signature(test).parameters.items() if name != "world"]
        own = [one for name, one in inspect.signature(run).parameters.items() if name != "given"]
        run.__name__, run.__doc__ = test.__name__, test.__doc__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what pytest reads
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *asked)]
        )
        return pytest.mark.parametrize("api", APIS)(run)

    return both_apis


class Witness:
    """The holds of one name, as their holders saw them."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.uses: list[Use] = []
        self._open: dict[int, tuple[Any, Use]] = {}

    def take(self, lock: Any, **options: Any) -> Action:
        def call() -> Any:
            use = Use("", str(len(self.uses)), 0, self.name, "mutex", 1, 1, True, 0, "", called=clock())
            self.uses.append(use)

            def taken(hold: Any) -> Any:
                if hold is not None:
                    use.returned, use.outcome, use.token = clock(), "ok", hold.token
                    use.look(looked_at(hold))
                    use.acted = use.returned
                    self._open[id(hold)] = hold, use
                return hold

            return self._then(lock.acquire(**options), taken)

        return call

    def give(self, hold: Any) -> Action:
        def call() -> Any:
            _, use = self._open.pop(id(hold))
            use.look(looked_at(hold))
            use.release_called = clock()
            return hold.release()

        return call

    def look(self) -> None:
        for hold, use in list(self._open.values()):
            use.look(looked_at(hold))

    def watching(self, condition: Callable[[], Any]) -> Callable[[], Any]:
        """The condition, and at each time a look at every hold."""

        def look_and_ask() -> Any:
            self.look()
            return condition()

        return look_and_ask

    def granted(self, hold: Any) -> float:
        """The instant at which its holder knew it."""
        return self._open[id(hold)][1].known

    def verdict(self) -> Verdict:
        return judge(History(uses=self.uses), within=0)

    def acquit(self) -> None:
        verdict = self.verdict()
        assert not verdict.violations, verdict.text()

    def _then(self, result: Any, follow: Callable[[Any], Any]) -> Any:
        async def awaited(result: Awaitable[Any]) -> Any:
            return follow(await result)

        return follow(result) if self.world.api == "blocking" else awaited(result)


class First:
    """Fits the first message that `fits` does, and no other."""

    def __init__(self, fits: Match) -> None:
        self._fits = fits
        self.struck = False

    def __call__(self, message: bytes) -> bool:
        found = not self.struck and self._fits(message)
        self.struck = self.struck or found
        return found


def fresh_name() -> str:
    """One server serves many tests of many processes: each has a name of its own."""
    return f"name-{secrets.token_hex(6)}"
