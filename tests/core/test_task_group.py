"""Several jobs at once, in threads and in tasks: who is waited for, and for how long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dibs.core.runtime import Job, Runtime, TaskGroup
from dibs.runtime.aio import AioRuntime
from dibs.runtime.threads import ThreadRuntime, boottime, step
from process.children import until

LONG = 60.0
Gather = Callable[[Sequence[Job | None], float, Callable[[], bool]], None]


class Work:
    """Jobs for either API, and what they did."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.begun = 0
        self.done: list[int] = []

    def quick(self, number: int) -> Job:
        return self.slow(number, 0.0)

    def slow(self, number: int, seconds: float) -> Job:
        async def work() -> None:
            if seconds:
                await self._runtime.sleep(seconds)
            self.done.append(number)

        return work

    def failing(self, error: BaseException) -> Job:
        async def fail() -> None:
            raise error

        return fail

    def together(self, number: int, count: int) -> Job:
        """One that ends once so many have begun."""

        async def work() -> None:
            self.begun += 1
            while self.begun < count:
                await self._runtime.sleep(0.001)
            self.done.append(number)

        return work


@pytest.fixture(params=["threads", "tasks"])
def api(request: pytest.FixtureRequest) -> Iterator[tuple[Runtime, TaskGroup, Gather]]:
    runtime: Runtime = ThreadRuntime() if request.param == "threads" else AioRuntime()
    task_group = runtime.task_group(3)

    def gather(jobs: Sequence[Job | None], until: float, enough: Callable[[], bool]) -> None:
        asked: Coroutine[Any, Any, None] = task_group.gather(jobs, until, enough)
        return step(asked) if request.param == "threads" else asyncio.run(asked)

    yield runtime, task_group, gather
    task_group.close()


def never() -> bool:
    return False


def test_all_are_done_side_by_side(api: tuple[Runtime, TaskGroup, Gather]) -> None:
    runtime, _, gather = api
    work = Work(runtime)
    gather([work.together(n, 3) for n in range(3)], boottime() + LONG, never)
    assert sorted(work.done) == [0, 1, 2]


def test_who_has_nothing_to_do_is_not_waited_for(api: tuple[Runtime, TaskGroup, Gather]) -> None:
    runtime, _, gather = api
    work = Work(runtime)
    gather([None, work.quick(1), None], boottime() + LONG, never)
    assert work.done == [1]
    gather([None, None, None], boottime() + LONG, never)


@pytest.mark.alone
def test_it_ends_at_its_instant(api: tuple[Runtime, TaskGroup, Gather]) -> None:
    runtime, _, gather = api
    work = Work(runtime)
    began = boottime()
    gather([work.slow(0, LONG), work.quick(1), work.quick(2)], began + 0.2, never)
    assert sorted(work.done) == [1, 2]
    assert boottime() - began < LONG / 10


@pytest.mark.alone
def test_once_enough_are_done_the_others_have_a_moment(api: tuple[Runtime, TaskGroup, Gather]) -> None:
    runtime, _, gather = api
    work = Work(runtime)
    began = boottime()
    gather([work.slow(0, LONG), work.slow(1, 0.5), work.slow(2, 0.55)], began + LONG, lambda: 1 in work.done)
    assert sorted(work.done) == [1, 2]
    assert boottime() - began < LONG / 10


def test_what_a_job_raises_is_raised(api: tuple[Runtime, TaskGroup, Gather]) -> None:
    runtime, _, gather = api
    work = Work(runtime)
    with pytest.raises(ZeroDivisionError):
        gather([work.failing(ZeroDivisionError()), work.slow(1, 0.05), work.quick(2)], boottime() + LONG, never)


@pytest.mark.alone
def test_a_thread_that_is_stuck_keeps_nobody_waiting_and_leaves_undone_what_came_too_late() -> None:
    runtime = ThreadRuntime()
    task_group = runtime.task_group(2)
    stuck, work = threading.Event(), Work(runtime)

    async def sticks() -> None:
        stuck.wait(LONG)

    step(task_group.gather([sticks, work.quick(1)], boottime() + 0.5, never))
    step(task_group.gather([work.quick(2), work.quick(3)], boottime() + 0.5, never))
    assert work.done == [1, 3]
    stuck.set()
    step(task_group.gather([work.quick(4), None], boottime() + LONG, never))
    assert work.done == [1, 3, 4]
    task_group.close()


def test_a_task_that_nobody_waits_for_is_cancelled() -> None:
    runtime = AioRuntime()
    cancelled: list[bool] = []

    async def sleeps() -> None:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main() -> int:
        await runtime.task_group(1).gather([sleeps], runtime.now() + 0.05, never)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert cancelled == [True]


def test_who_is_cancelled_takes_its_tasks_along() -> None:
    runtime = AioRuntime()
    work = Work(runtime)

    async def main() -> int:
        asked = asyncio.ensure_future(runtime.task_group(1).gather([work.slow(0, LONG)], runtime.now() + LONG, never))
        while len(asyncio.all_tasks()) < 3:  # this one, who asks, and whom it asked
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1


def test_threads_are_kept_and_go_when_they_are_closed() -> None:
    task_group = ThreadRuntime().task_group(2)
    seen: list[str] = []

    async def note() -> None:
        seen.append(str(threading.get_native_id()))

    for _ in range(3):
        step(task_group.gather([note, note], boottime() + LONG, never))
    assert len(set(seen)) == 2
    assert set(seen) <= _threads()
    task_group.close()
    until(lambda: not set(seen) & _threads())


def _threads() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}
