"""Requests that are asked until they are answered: the error of the last attempt hides nothing that matters."""

from __future__ import annotations

import pytest

from dibs.backends.common.executor import Executor
from dibs.core.queue import Unsent
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import ThreadRuntime, step


class Failing(Executor[str, str]):
    """Fails once in its own way, and then has no connection, or is silent until the deadline."""

    def __init__(self, first: StoreUnavailable, *, is_silent: bool = False) -> None:
        super().__init__(ThreadRuntime())
        self.errors = [first]
        self.is_silent = is_silent

    async def ask_once(self, request: str, until: float) -> str:
        if self.errors:
            raise self.errors.pop()
        if not self.is_silent:
            raise Unsent("no connection")
        await self._runtime.sleep(max(until - self._runtime.now(), 0.0))
        raise StoreUnavailable("the server did not answer in time")

    def told(self) -> StoreUnavailable:
        with pytest.raises(StoreUnavailable) as caught:
            step(self.ask_often("join", self._runtime.now() + 0.1))
        return caught.value


def test_a_request_of_which_an_earlier_copy_may_have_been_done_is_not_called_unsent() -> None:
    """A quorum gives back no vote that was never sent."""
    told = Failing(StoreUnavailable("the server did not answer in time")).told()
    assert (type(told), told.what) == (StoreUnavailable, "the server did not answer in time")


def test_the_last_word_counts_where_nothing_was_sent() -> None:
    told = Failing(Unsent("refused")).told()
    assert (type(told), told.what) == (Unsent, "no connection")


def test_a_request_whose_last_copy_may_have_been_done_is_not_called_unsent() -> None:
    told = Failing(Unsent("refused"), is_silent=True).told()
    assert (type(told), told.what) == (StoreUnavailable, "the server did not answer in time")


def test_what_was_said_before_counts_where_the_deadline_cut_the_last_copy_short() -> None:
    told = Failing(StoreUnavailable("no room on the disk"), is_silent=True).told()
    assert (type(told), told.what) == (StoreUnavailable, "no room on the disk")
