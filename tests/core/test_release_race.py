"""A release beside a turn of the watchdog, and one that is interrupted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.core.acquire import QueueGrantor
from dibs.core.grants import Grant
from dibs.core.kinds.hold_stack import HoldStack
from dibs.core.rule import Claim
from dibs.runtime.threads import step
from process.children import until
from testing.aside import hold_of

PATIENCE = 60.0
LONG = 600.0
"""A lease that no test waits for."""


def test_a_renewal_that_is_due_during_a_release_makes_it_no_loss(client: dibs.Client, hold: dibs.Hold) -> None:
    """The hold is over already and its grant not yet taken out of renewal: the watchdog finds nobody who wants it."""
    watchdog, take = client._core.watchdog, client._core.watchdog.take

    def due_just_then(grant: Grant) -> bool:
        watchdog.take = take  # type: ignore[method-assign]
        grant.renew_at = 0.0
        watchdog.schedule(grant)
        step(watchdog.watch())
        assert grant.dropped
        return take(grant)

    watchdog.take = due_just_then  # type: ignore[method-assign]
    step(client._core.registry.release(hold._core))
    assert not client.lock("job").locked()


@pytest.fixture
def client() -> Iterator[dibs.Client]:
    with dibs.connect("memory://release-race", lease=LONG) as made:
        yield made


@pytest.fixture
def hold(client: dibs.Client) -> dibs.Hold:
    return hold_of(client.lock("job"))


class JustBefore(dict[bytes, Grant]):
    """A table of grants that calls a function before the next grant is taken out of it."""

    def __init__(self, grants: dict[bytes, Grant], tell: Callable[[Grant], None]) -> None:
        super().__init__(grants)
        self._tell: list[Callable[[Grant], None]] = [tell]

    def pop(self, claim_id: bytes, default: Any = None) -> Any:
        if self._tell and claim_id in self:
            self._tell.pop()(self[claim_id])
        return super().pop(claim_id, default)


@pytest.mark.parametrize("way", ["release", "with", "asyncio"])
def test_nor_does_one_during_the_free_path_of_a_release(client: dibs.Client, way: str) -> None:
    dropped = list[bool]()

    def drop_it_just_before(core: Any) -> None:
        watchdog = core.watchdog

        def turn(grant: Grant) -> None:
            grant.renew_at = 0.0
            watchdog.schedule(grant)
            step(watchdog.watch())
            dropped.append(grant.dropped)

        watchdog.renewing = JustBefore(watchdog.renewing, turn)

    async def in_a_loop() -> None:
        async with dibs.aio.connect("memory://release-race") as other, other.lock("job"):
            drop_it_just_before(other._core)

    if way == "asyncio":
        asyncio.run(in_a_loop())
    elif way == "with":
        with client.lock("job"):
            drop_it_just_before(client._core)
    else:
        hold = hold_of(client.lock("job"))
        drop_it_just_before(client._core)
        hold.release()
        assert hold.lost_reason is None
    assert dropped == [True]
    assert not client.lock("job").locked(), "the release waits until it is given back"


def test_two_threads_release_one_hold(client: dibs.Client, hold: dibs.Hold) -> None:
    """The second one comes while the first waits for the store: the hold is over, and nothing was lost."""
    queue: Any = client._core.opened._queue
    usual, other = queue.leave_now, list[threading.Thread]()

    def meanwhile(claim: Claim, end: float) -> Any:
        other.append(threading.Thread(target=hold.release))
        other[0].start()
        other[0].join(PATIENCE)
        assert not other[0].is_alive(), "it waits for the first"
        return usual(claim, end)

    queue.leave_now = meanwhile
    hold.release()
    assert other
    assert hold.lost_reason is None
    assert not client.lock("job").locked()


def test_two_threads_end_one_grant_at_the_same_moment(client: dibs.Client, hold: dibs.Hold) -> None:
    """Both have seen that the hold is not over yet: the one that takes the grant out of the table ends it."""
    registry = client._core.registry
    grantor, core = registry.grantor, hold._core
    assert grantor is not None
    assert core.grant is not None
    assert core.grant.claim is not None
    grant = client._core.watchdog.renewing.pop(core.grant.claim.id)  # as the other thread has just done
    assert grantor.give(core) is None
    assert core.over, "the general path finds nothing to do"
    client._core.watchdog.renewing[core.grant.claim.id] = grant
    core.over = False
    assert grantor.give(core) is True


@pytest.mark.parametrize("done", [True, False])
def test_a_leave_without_an_answer_is_repeated_and_is_no_loss(client: dibs.Client, hold: dibs.Hold, done: bool) -> None:
    queue: Any = client._core.opened._queue
    usual = queue.leave_now

    def unanswered(claim: Claim, end: float) -> Any:
        if done:
            assert usual(claim, end)
        raise dibs.StoreUnavailable("no answer")

    queue.leave_now = unanswered
    hold.release()
    assert hold.lost_reason is None
    assert not client.lock("job").locked()


def test_a_release_that_is_interrupted_before_it_waits_for_the_answer_is_given_back(
    client: dibs.Client, hold: dibs.Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the free path, over a store that answers later."""
    queue: Any = client._core.opened._queue

    def interrupted(_: Any, __: Any, answer: Coroutine[Any, Any, bool]) -> Any:
        answer.close()
        raise KeyboardInterrupt

    queue.leave_now = lambda *_: object()  # nobody gets to await it
    monkeypatch.setattr(QueueGrantor, "given", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    until(lambda: not client.lock("job").locked())


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_a_release_without_an_answer_is_given_back_once(client: dibs.Client, kind: str) -> None:
    """On the free path and on the general one: twice would fill the bounded backlog twice as fast."""
    hold = getattr(client, kind)("job").acquire()
    queue: Any = client._core.opened._queue
    watchdog, usual, posted = client._core.watchdog, client._core.watchdog.give_back, list[Claim]()

    def give_back(claim: Claim, answered: bool) -> None:
        posted.append(claim)
        usual(claim, answered)

    def silent(*_: Any) -> Any:
        raise dibs.StoreUnavailable("no answer")

    async def silent_too(*_: Any) -> Any:
        silent()

    watchdog.give_back = give_back  # type: ignore[method-assign]
    queue.leave_now, queue.leave = silent, silent_too
    with pytest.raises(dibs.StoreUnavailable):
        hold.release()
    assert len(posted) == 1
    until(lambda: not client.lock("job").locked())


def test_a_release_finds_that_the_lock_was_broken() -> None:
    with dibs.connect("memory://release-race") as client, dibs.connect("memory://release-race") as other:
        client._core.watchdog.look_at = lambda _: None  # type: ignore[method-assign]  # it hears nothing
        hold = hold_of(client.lock("job"))
        other.break_("job", token=hold.token)
        with other.lock("job"), pytest.raises(dibs.LockLost, match="no longer has it"):
            hold.release()


class Still:
    """A thread of the watchdog that does not get its turn."""

    def ring(self) -> None: ...


def test_who_releases_what_is_past_its_max_hold_before_the_watchdog_has_noticed_is_told_all_the_same() -> None:
    lost: list[Any] = []
    with dibs.connect("memory://release-race") as client:
        watchdog = client._core.watchdog
        watcher, watchdog._watcher = watchdog._watcher, Still()  # type: ignore[assignment]
        hold = hold_of(client.lock("job", max_hold=0.05, on_lost=lost.append))
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
    usual, interrupts = HoldStack.latest, [KeyboardInterrupt]

    def latest(self: HoldStack[Any]) -> Any:
        if interrupts:
            raise interrupts.pop()
        return usual(self)

    monkeypatch.setattr(HoldStack, "latest", latest)
    with dibs.connect("memory://interrupted-release") as client, dibs.connect("memory://interrupted-release") as other:
        lock = client.lock("a")
        lock.acquire()
        with pytest.raises(KeyboardInterrupt):
            lock.release()
        with other.lock("a", timeout=60):
            assert not lock.owned()


def test_a_hold_past_its_max_hold_that_the_watchdog_has_not_ended_yet_is_not_entered_again(client: dibs.Client) -> None:
    """Its owner asks anew, behind its own old claim."""
    lock = client.rlock("job", max_hold=0.05)
    watchdog = client._core.watchdog
    watcher, watchdog._watcher = watchdog._watcher, Still()  # type: ignore[assignment]
    hold = hold_of(lock)
    until(hold.lost.is_set)
    assert lock.acquire(timeout=0) is None
    watchdog._watcher = watcher
    watcher.ring()
