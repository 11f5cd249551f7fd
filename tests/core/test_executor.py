"""Requests that are repeated until a reply comes: which error is raised at the deadline. In virtual time."""

from __future__ import annotations

import pytest

from dibs.backends.common.executor import Executor
from dibs.core.queue import Unsent
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import ThreadRuntime, step

SILENT, FULL = "the server did not answer in time", "no room on the disk"


class VirtualRuntime(ThreadRuntime):
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.time = 1000.0
        super().__init__(lambda: self.time)

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class Failing(Executor[str, str]):
    """Fails once with `first`. After that it has no connection, or gets no reply until the deadline."""

    def __init__(self, first: StoreUnavailable, is_silent: bool) -> None:
        super().__init__(VirtualRuntime())
        self.errors = [first]
        self.is_silent = is_silent

    async def ask_once(self, request: str, until: float) -> str:
        if self.errors:
            raise self.errors.pop()
        if not self.is_silent:
            raise Unsent("no connection")
        await self._runtime.sleep(max(until - self._runtime.now(), 0.0))
        raise StoreUnavailable(SILENT)


@pytest.mark.parametrize(
    ("first", "is_silent", "raised"),
    [
        # A quorum gives back no vote that was never sent: `Unsent` only if no copy can have been carried out.
        (StoreUnavailable(SILENT), False, StoreUnavailable(SILENT)),
        (Unsent("refused"), False, Unsent("no connection")),
        (Unsent("refused"), True, StoreUnavailable(SILENT)),
        (StoreUnavailable(FULL), True, StoreUnavailable(FULL)),
    ],
)
def test_the_error_at_the_deadline(first: StoreUnavailable, is_silent: bool, raised: StoreUnavailable) -> None:
    executor = Failing(first, is_silent)
    with pytest.raises(StoreUnavailable) as caught:
        step(executor.ask_often("join", executor._runtime.now() + 0.1))
    assert (type(caught.value), caught.value.what) == (type(raised), raised.what)
