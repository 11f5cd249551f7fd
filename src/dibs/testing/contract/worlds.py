"""The pytest hooks of the suite: they run each test for every store and both APIs, in an event loop of its own.

`on`, `needs` and `without` restrict a test to APIs and stores. A test that does not apply is not collected, so nothing
is skipped. The hooks apply only to tests beside a conftest.py that imports them. Async tests are wrapped into sync
functions, so other asyncio plugins do not run them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dibs.core.queue import FAIR, FOREIGN, QUORUM
from dibs.testing.contract.clocks import PATIENCE, clock_of
from dibs.testing.contract.harness import APIS, MUTEXES, NEEDED, ONE_KIND, World
from dibs.testing.contract.seats import FORMS
from dibs.testing.contract.stores import LOCK, VERBS, WHOLE, Subject, chosen

LONGEST_TEST = 100.0


def on(*apis: str) -> pytest.MarkDecorator:
    """Run the test only through these APIs."""
    return pytest.mark.dibs_on(*apis)


def needs(*capabilities: str) -> pytest.MarkDecorator:
    """Run the test, or one parameter of it, only on stores with these capabilities (see dibs.core.queue).

    A FOREIGN store counts as FAIR: its locks have an order if they ask for it, and then they do (see `World.client`).
    """
    return pytest.mark.dibs_needs(*capabilities)


def without(*capabilities: str) -> pytest.MarkDecorator:
    """Run the test only on stores without these capabilities.

    With FOREIGN: the format of the other library has not what the test is about. docs/stores/redisson.md lists that.
    """
    return pytest.mark.dibs_without(*capabilities)


def foreign_kinds(*kinds: str) -> pytest.MarkDecorator:
    """Run the test on a FOREIGN store only with these kinds of `mutex`: the others have not what the test is about."""
    return pytest.mark.dibs_foreign_kinds(*kinds)


above_the_store = pytest.mark.dibs_above_the_store
"""The test is about the core, whatever the store: arguments, bookkeeping, locks made of several claims."""
every_form = pytest.mark.dibs_every_form
"""The test also runs where only operations are tested: for each form of a store, such as a cluster."""

timed = pytest.mark.dibs_timed
"""The result may depend on the speed of the machine, except on the memory store, whose time is virtual: a lease ends
during the test, or must not end although it is short."""


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    subject, api = request.param
    with clock_of(subject):
        yield World(api, subject, tmp_path, fair=FAIR in _words(request.node, "dibs_needs"))


@pytest.fixture(params=[pytest.param(kind, marks=needs(*NEEDED.get(kind, ()))) for kind in MUTEXES])
def mutex(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Each kind that can be used as a mutex: `mutex(client, name, **options)`."""
    return MUTEXES[request.param]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "dibs_foreign_kinds(*kinds): for dibs.testing: of a FOREIGN store only these")
    chosen(config)  # reports a wrong --dibs-store once, before tests are collected


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    subjects = chosen(metafunc.config).values()
    if "world" in metafunc.fixturenames:
        worlds = [pytest.param((one, api), id=f"{one.name}-{api}") for one in subjects for api in APIS]
        metafunc.parametrize("world", worlds, indirect=True)
    if "seats" in metafunc.fixturenames:
        made = [one for subject in subjects for one in _forms(subject, "ana" in metafunc.fixturenames)]
        params = [pytest.param(one, id=f"{one.name}-{one.form}" if one.form else one.name) for one in made]
        metafunc.parametrize("seats", params, indirect=True)


def _forms(subject: Subject, is_about_queues: bool) -> Sequence[Subject]:
    """The subjects for a test with seats."""
    if FOREIGN not in subject.capabilities:
        return [subject]
    return [replace(subject, form=form) for form in FORMS if is_about_queues or form == "fenced"]


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
    """Add a command that repeats a failing test: its id has the name of the store, but not its --dibs-store."""
    report = yield
    subject = subject_of(item)
    if report.failed and subject is not None:
        words = item.config.invocation_params.args
        plugins = [f"-p {name}" for word, name in pairwise(map(str, words)) if word == "-p"]
        command = ["python -m pytest", *plugins, f"--dibs-store {subject.wish}", f"'{item.nodeid}'"]
        report.sections.append(("repeat this test with", " ".join(command)))
    return report


def _has_time(item: pytest.Function) -> None:
    """Give pytest-timeout a longer limit than ours, whose error says more."""
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
        return False  # it has no Queue of its own
    has = subject.capabilities
    if FOREIGN in has:
        kinds = _words(item, "dibs_foreign_kinds")
        if kinds and params.get("mutex") not in kinds:
            return False
        if "world" in params or subject.form == "fair":
            has |= {FAIR}
    return _words(item, "dibs_needs") <= has and not _words(item, "dibs_without") & has


def _words(item: pytest.Item, mark: str) -> set[str]:
    return {word for one in item.iter_markers(mark) for word in one.args}


def _in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(_run(test, arguments))

    return run


async def _run(test: Callable[..., Any], arguments: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(LONGEST_TEST):
            await test(**arguments)
    finally:
        if isinstance(world := arguments.get("world"), World):
            await world.end()
