"""A worker where no thread may begin any more: at interpreter exit, as Python 3.12 has it."""

from __future__ import annotations

import threading

import pytest

from dibs.runtime import threads
from dibs.runtime.threads import ThreadRuntime, ThreadWorker


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threads, "start_thread", refused)


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


def test_a_client_that_is_closed_waits_for_its_threads_but_not_for_itself() -> None:
    runtime, ended = ThreadRuntime(), []
    with_its_end = threading.Event()

    async def turn() -> None:
        with_its_end.wait(60)
        if not ended:
            ended.append(True)
            runtime.close()  # by one of its own threads

    runtime.worker(turn).ring()
    with_its_end.set()
    runtime.close(60)
    assert ended == [True]


def test_a_client_that_is_closed_does_not_wait_for_a_thread_that_hangs() -> None:
    runtime, go_on = ThreadRuntime(), threading.Event()

    async def turn() -> None:
        go_on.wait(60)

    runtime.worker(turn).ring()
    runtime.close(0.01)
    go_on.set()
    runtime.close(60)


def test_a_machine_without_a_thread_to_spare_is_an_error(no_threads: None) -> None:
    async def turn() -> None:
        """Never."""

    with pytest.raises(RuntimeError):
        ThreadWorker(turn).ring()
