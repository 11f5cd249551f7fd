"""A worker where no thread may begin any more: at interpreter exit, as Python 3.12 has it."""

from __future__ import annotations

import threading

import pytest

from dibs.runtime import threads
from dibs.runtime.threads import ThreadWorker


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threads._thread, "start_new_thread", refused)


def test_what_is_rung_for_is_done_by_the_thread_that_ends(no_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    async def turn() -> None:
        done.append(len(done))
        if len(done) == 1:
            worker.ring()  # a turn that finds more to do: done in its turn, not within it

    worker = ThreadWorker(turn)
    monkeypatch.setattr(threading, "main_thread", threading.Thread)  # one that does not run
    worker.ring()
    assert done == [0, 1]


def test_a_machine_without_a_thread_to_spare_is_an_error(no_threads: None) -> None:
    async def turn() -> None:
        """Never."""

    with pytest.raises(RuntimeError):
        ThreadWorker(turn).ring()
