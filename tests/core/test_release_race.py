"""A release beside a turn of the watchdog, and one that is interrupted."""

from __future__ import annotations

from typing import Any

import pytest

import dibs
from dibs.core.grants import Grant
from dibs.core.kinds.taken import Taken
from dibs.runtime.threads import step
from process.children import until


def test_a_renewal_that_is_due_in_the_middle_of_a_release_does_not_make_it_a_loss() -> None:
    """The hold is over already and its grant not yet taken out of renewal: the watchdog finds nobody who wants it."""
    with dibs.connect("memory://release-race") as client:
        hold = client.lock("job").acquire()
        assert hold is not None
        watchdog, take = client._core.watchdog, client._core.watchdog.take

        def due_just_then(grant: Grant) -> bool:
            grant.renew_at = 0.0
            watchdog.schedule(grant)
            step(watchdog.watch())
            assert grant.dropped
            return take(grant)

        watchdog.take = due_just_then  # type: ignore[method-assign]
        step(client._core.registry.release(hold._core))
        assert not client.lock("job").locked()


class Still:
    """A thread of the watchdog that does not get its turn."""

    def ring(self) -> None: ...


def test_who_releases_what_is_past_its_max_hold_before_the_watchdog_has_noticed_is_told_all_the_same() -> None:
    lost: list[Any] = []
    with dibs.connect("memory://release-race") as client:
        watchdog = client._core.watchdog
        watcher, watchdog._watcher = watchdog._watcher, Still()  # type: ignore[assignment]
        hold = client.lock("job", max_hold=0.05, on_lost=lost.append).acquire()
        assert hold is not None
        until(hold.lost.is_set)
        assert not lost
        with pytest.raises(dibs.LockLost):
            hold.release()
        watchdog._watcher = watcher
        until(lambda: lost)
        until(lambda: not client.lock("job").locked())
    assert [(one.name, one.token) for one in lost] == [("job", hold.token)]


def test_a_release_that_is_interrupted_at_its_start_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was to be released: the watchdog does it, as nobody will release it again."""
    usual, interrupts = Taken.latest, [KeyboardInterrupt]

    def latest(self: Taken[Any]) -> Any:
        if interrupts:
            raise interrupts.pop()
        return usual(self)

    monkeypatch.setattr(Taken, "latest", latest)
    with dibs.connect("memory://interrupted-release") as client, dibs.connect("memory://interrupted-release") as other:
        lock = client.lock("a")
        lock.acquire()
        with pytest.raises(KeyboardInterrupt):
            lock.release()
        with other.lock("a", timeout=60):
            assert not lock.owned()
