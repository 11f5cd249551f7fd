"""Requests that are asked until they are answered: the error of the last attempt hides nothing that matters."""

from __future__ import annotations

import pytest

from dibs.backends.common.executor import Executor
from dibs.core.line import Unsent
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import ThreadRuntime, step


class Failing(Executor[str, str]):
    """Fails once in its own way, and then has no connection."""

    def __init__(self, first: StoreUnavailable) -> None:
        super().__init__(ThreadRuntime())
        self.errors = [first]

    async def ask_once(self, request: str, until: float) -> str:
        raise self.errors.pop() if self.errors else Unsent("no connection")


def test_a_request_of_which_an_earlier_copy_may_have_been_done_is_not_called_unsent() -> None:
    """A quorum gives back no vote that was never sent."""
    executor = Failing(StoreUnavailable("the server did not answer in time"))
    with pytest.raises(StoreUnavailable, match="did not answer") as caught:
        step(executor.ask_often("join", ThreadRuntime().now() + 0.1))
    assert not isinstance(caught.value, Unsent)


def test_the_last_word_counts_where_nothing_was_sent() -> None:
    with pytest.raises(Unsent, match="no connection"):
        step(Failing(Unsent("refused")).ask_often("join", ThreadRuntime().now() + 0.1))
