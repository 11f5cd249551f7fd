"""The watchdog survives renewals and give-backs that raise; two threads may use a client for the first time at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread, current_thread
from typing import Any

import pytest

import dibs
from interrupts.stores import STORES

LEASE = 1.5
"""So short that a pause of a second between two turns of the watchdog would lose it."""
PATIENCE = 40.0


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.gate)])
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


@pytest.mark.alone
def test_a_renewal_that_raises_is_survived(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next turn comes before a short lease is over."""
    raised: list[Exception] = []
    with dibs.connect(url, lease=LEASE) as client, client.lock("kept") as hold:
        grantor: Any = client._core.watchdog._open_for_renewals()
        renew = grantor.renew

        async def fail(*args: Any) -> Any:
            grantor.renew = renew
            raised.append(RuntimeError("a turn that fails"))
            raise raised[0]

        grantor.renew = fail
        with caplog.at_level(logging.ERROR, "dibs"):
            assert until(lambda: bool(raised))
            before = hold.remaining
            assert until(lambda: hold.remaining > before), "it was never renewed again"
        hold.check()
        assert "a background task failed" in caplog.text


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
    """Either thread may open it; opens by the watchdog's own thread are not counted."""
    opened_by, tokens, barrier = list[Thread](), list[int](), Barrier(2)
    with dibs.connect(url, lease=60) as client:
        store = client._core.store
        plain = store.open

        def counting(*args: Any) -> Any:
            opened_by.append(current_thread())
            return plain(*args)

        def use() -> None:
            barrier.wait()
            with client.lock("first") as hold:
                tokens.append(hold.token)

        store.open = counting  # type: ignore[method-assign]
        threads = [Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(tokens)) == 2
    assert len([thread for thread in opened_by if thread in threads]) == 1
