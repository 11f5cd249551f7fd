"""What pytest needs to run the suite: its tests over every store and both APIs, and an event loop for each.

`on`, `needs` and `without` say what a test is about. What a API or a store does not have it is not asked for: such a
test is left out of what pytest collects, so nothing is skipped. Hooks count for the tests beside the conftest.py that
takes them in, and for nobody else's; pytest's own function runs each test, so other plugins for asyncio see no async
test.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterator
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dibs.core.queue import QUORUM
from dibs.testing.contract.clocks import PATIENCE, clock_of
from dibs.testing.contract.harness import APIS, MUTEXES, NEEDED, ONE_KIND, World
from dibs.testing.contract.stores import LOCK, VERBS, WHOLE, Subject, chosen

LONGEST_TEST = 100.0


def on(*apis: str) -> pytest.MarkDecorator:
    """For what only one API has."""
    return pytest.mark.dibs_on(*apis)


def needs(*capabilities: str) -> pytest.MarkDecorator:
    """For what only some stores can do; the words are in dibs.core.queue. Also for one parameter of a test."""
    return pytest.mark.dibs_needs(*capabilities)


def without(*capabilities: str) -> pytest.MarkDecorator:
    """For what is so only where a store cannot do this."""
    return pytest.mark.dibs_without(*capabilities)


above_the_store = pytest.mark.dibs_above_the_store
"""For what the core decides whatever the store: arguments, bookkeeping, what is made of several claims."""
every_form = pytest.mark.dibs_every_form
"""For what each form of a store is asked too, beside the verbs: servers behind a sentinel, in a cluster and so on."""


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    subject, api = request.param
    with clock_of(subject):
        yield World(api, subject, tmp_path)


@pytest.fixture(params=[pytest.param(kind, marks=needs(*NEEDED.get(kind, ()))) for kind in MUTEXES])
def mutex(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Each kind that can be used as a mutex: `mutex(client, name, **options)`."""
    return MUTEXES[request.param]


def pytest_configure(config: pytest.Config) -> None:
    chosen(config)  # what names no store is said once, before any test is looked at


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    subjects = chosen(metafunc.config).values()
    if "world" in metafunc.fixturenames:
        worlds = [pytest.param((one, api), id=f"{one.name}-{api}") for one in subjects for api in APIS]
        metafunc.parametrize("world", worlds, indirect=True)
    if "seats" in metafunc.fixturenames:
        metafunc.parametrize("seats", [pytest.param(one, id=one.name) for one in subjects], indirect=True)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    made = yield
    if not isinstance(made, list):
        return made
    wanted = [item for item in made if _is_asked(item)]
    for item in wanted:
        _has_time(item)
        if inspect.iscoroutinefunction(item.obj):
            item.obj = _in_a_loop(item.obj)
    return wanted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print a command that repeats a failing test: its id names the store, but not where that comes from."""
    report = yield
    subject = subject_of(item)
    if report.failed and subject is not None:
        given = item.config.invocation_params.args
        plugins = [f"-p {name}" for word, name in pairwise(map(str, given)) if word == "-p"]
        words = ["python -m pytest", *plugins, f"--dibs-store {subject.wish}", f"'{item.nodeid}'"]
        report.sections.append(("repeat this test with", " ".join(words)))
    return report


def _has_time(item: pytest.Function) -> None:
    """Where pytest-timeout is used it must not come before our own end, which says more."""
    if item.config.pluginmanager.hasplugin("timeout"):
        item.add_marker(pytest.mark.timeout(LONGEST_TEST + 2 * PATIENCE))


def subject_of(item: pytest.Item) -> Subject | None:
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    subject = params["world"][0] if "world" in params else params.get("seats")
    return subject if isinstance(subject, Subject) else None


def _is_asked(item: pytest.Function) -> bool:
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    subject = subject_of(item)
    if subject is None:
        return True
    if "world" in params and any(params["world"][1] not in mark.args for mark in item.iter_markers("dibs_on")):
        return False
    part = subject.part
    if part != WHOLE and (item.get_closest_marker("dibs_above_the_store") or params.get("mutex", ONE_KIND) != ONE_KIND):
        return False
    if part == LOCK and item.path.stem != "test_mutex":
        return False
    if part == VERBS and "world" in params and not item.get_closest_marker("dibs_every_form"):
        return False
    if "seats" in params and QUORUM in subject.capabilities:
        return False  # it has no queue of its own to sit at
    needed = {word for mark in item.iter_markers("dibs_needs") for word in mark.args}
    unwanted = {word for mark in item.iter_markers("dibs_without") for word in mark.args}
    return needed <= subject.capabilities and not unwanted & subject.capabilities


def _in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    @wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(_run(test, given))

    return run


async def _run(test: Callable[..., Any], given: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(LONGEST_TEST):
            await test(**given)
    finally:
        if isinstance(world := given.get("world"), World):
            await world.end()
