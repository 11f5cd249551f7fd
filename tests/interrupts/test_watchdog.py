"""What the watchdog survives, and what two threads may do at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread, current_thread
from typing import Any

import pytest

import dibs
from interrupts.stores import SERVERS, STORES

LEASE = 4.5
SHORT = 0.6
ROUNDS = 10
TRIALS = 8
PATIENCE = 40.0


@pytest.fixture(params=[pytest.param(one, marks=[pytest.mark.soak] if one in SERVERS else []) for one in STORES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](tmp_path)


def until(answer: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """A bounded poll."""
    end = time.monotonic() + patience
    while not answer():
        if time.monotonic() >= end:
            return False
        time.sleep(0.002)
    return True


class Failing:
    """A port of the watchdog whose named verb raises something unheard of, the first times."""

    def __init__(self, grantor: Any, verb: str, times: int) -> None:
        self._grantor = grantor
        self._verb = verb
        self.left = times

    def __getattr__(self, name: str) -> Any:
        if name == self._verb and self.left:
            self.left -= 1
            raise RuntimeError("a turn that fails")
        return getattr(self._grantor, name)


def fail(client: dibs.Client, verb: str, times: int = 1) -> Failing:
    watchdog = client._core.watchdog
    failing = Failing(watchdog._open_for_renewals(), verb, times)
    watchdog.grantor = failing  # type: ignore[assignment]
    return failing


def test_a_renewal_that_raises_is_survived(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A failed turn is followed by a pause of a second: there is time for more than one."""
    with dibs.connect(url, lease=LEASE) as client, client.lock("kept") as hold:
        failing = fail(client, "renew")
        with caplog.at_level(logging.ERROR, "dibs"):
            assert until(lambda: failing.left == 0)
        before = hold.remaining
        assert until(lambda: hold.remaining > before), "it was never renewed again"
        hold.check()
        assert "a background task failed" in caplog.text


def test_a_short_lease_survives_a_renewal_that_raises(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next turn must come before a short lease is over. A machine that stands still for longer than that loses it
    as well, but not time after time."""
    with caplog.at_level(logging.CRITICAL, "dibs"):
        assert any(_survives(url) for _ in range(TRIALS))


def _survives(url: str) -> bool:
    with dibs.connect(url, lease=SHORT) as client:
        hold = client.lock("kept").acquire()
        assert hold is not None
        failing = fail(client, "renew")
        assert until(lambda: failing.left == 0 or hold.lost.is_set())
        return not hold.lost.wait(2 * SHORT)


def test_a_give_back_that_raises_holds_up_nobody_elses(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """One claim that cannot be given back must not stand before all others, whose lease is long."""
    with dibs.connect(url, lease=10 * PATIENCE) as client, dibs.connect(url) as other:
        caplog.set_level(logging.CRITICAL, "dibs")
        for name in ("a", "b"):
            assert client.lock(name).acquire() is not None
        watchdog = client._core.watchdog
        first, second = list(watchdog.renewing.values())
        assert first.claim is not None
        grantor = watchdog.give_backs._open()
        bad = first.claim.id

        class Refusing:
            def __getattr__(self, name: str) -> Any:
                return getattr(grantor, name)

            async def give_back(self, leaving: Any, until: float) -> Any:
                if any(claim.id == bad for claim, _ in leaving):
                    raise RuntimeError("never")
                return await grantor.give_back(leaving, until)

        watchdog.give_backs._grantor = Refusing()  # type: ignore[assignment]
        watchdog.abandon(first)
        watchdog.abandon(second)
        assert until(lambda: not other.inspect("b").holders), "it waits behind one that cannot be given back"
        watchdog.give_backs._grantor = grantor


def test_first_use_by_two_threads_opens_the_store_once(url: str) -> None:
    for n in range(ROUNDS):
        with dibs.connect(url, lease=LEASE) as client:
            opened_by, tokens = _first_use_by_two(client, f"first-{n}")
            assert len(set(tokens)) == 2
            assert len(opened_by) == 1, "once, whoever comes first; the watchdog's own ways are not counted"


def _first_use_by_two(client: dibs.Client, name: str) -> tuple[list[Thread], list[int]]:
    """Which of two threads that come at the same time opened the store, and the tokens they got."""
    store, opened_by, tokens, barrier = client._core.store, list[Thread](), list[int](), Barrier(2)
    plain = store.open

    def counting(*args: Any) -> Any:
        opened_by.append(current_thread())
        return plain(*args)

    def use() -> None:
        barrier.wait()
        with client.lock(name) as hold:
            tokens.append(hold.token)

    store.open = counting  # type: ignore[method-assign]
    threads = [Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [thread for thread in opened_by if thread in threads], tokens
