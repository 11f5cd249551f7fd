"""A store that answers with an error is asked again, and the last answer still comes before the deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dibs
from dibs.backends.memory import MemoryQueue
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import ThreadRuntime, step


class Clock:
    """Time passes only by resting, and each rest is the longest that it may be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        made = ThreadRuntime.__init__

        def make(runtime: ThreadRuntime) -> None:
            made(runtime, lambda: self.now)

        monkeypatch.setattr(ThreadRuntime, "__init__", make)
        monkeypatch.setattr(ThreadRuntime, "sleep", self._sleep)
        monkeypatch.setattr(ThreadRuntime, "jitter", lambda _, most: most)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds


ASKED: dict[str, tuple[str, Callable[[dibs.Client], Any]]] = {
    "acquire": ("join", lambda client: client.lock("a").acquire(timeout=1)),
    "acquire, for ever": ("join", lambda client: client.lock("a").acquire()),
    "inspect": ("inspect", lambda client: client.inspect("a")),
}


@pytest.mark.parametrize("asked", ASKED)
def test_the_last_answer_is_not_too_late(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    verb, ask = ASKED[asked]
    clock = Clock(monkeypatch)
    left: list[float] = []

    async def fail(*given: Any) -> None:
        left.append(given[-1] - clock.now)
        raise StoreUnavailable("it is read-only")

    monkeypatch.setattr(MemoryQueue, verb, fail)
    client = dibs.connect(f"memory://patience-{asked[:7]}", retry=1)
    with pytest.raises(StoreUnavailable, match=r"it is read-only\. Next: check that the store runs"):
        ask(client)
    assert len(left) > 5
    assert min(left) > 0.1


def test_a_timeout_that_ends_during_the_first_request_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a server: the free path joins, the answer says that somebody holds it, and no time is left to wait."""
    clock = Clock(monkeypatch)
    url = "memory://slow-answer"
    with dibs.connect(url, lease=600) as holder, dibs.connect(url, lease=600) as client:
        hold = holder.lock("a").acquire()
        client.inspect("a")
        queue: Any = client._core.opened._queue

        def slow(*asked: Any) -> Any:
            standing = step(queue.join(*asked))
            clock.now += 31
            return standing

        queue.take_now = slow
        assert client.lock("a").acquire(timeout=30) is None
        assert hold is not None
        assert not holder.inspect("a").waiters
