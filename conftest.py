"""Settings for all tests of dibs: those under tests/ and the published contract suite.

pytest would load the plugin of dibs by its entry point, before coverage is measured: pyproject.toml says `-p no:dibs`,
and this file loads it.
"""

from __future__ import annotations

import _thread
import gc
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from types import SimpleNamespace

import pytest

from dibs.core import grants
from dibs.runtime import threads
from dibs.testing.contract.worlds import subject_of

pytest_plugins = ["dibs.testing.plugin", "lab.suite", "freezes"]
SERVERS = frozenset({"zookeeper", "redis", "redisson", "postgresql", "mariadb", "five"})
"""One store of each kind, as tests/full.txt names them."""
# A TLS context reads all authorities of the system, which takes ten times as long as the rest of a client on MySQL, and
# every test there makes one. Tests that encrypt name the authority that they trust.
os.environ["SSL_CERT_FILE"] = os.devnull
_REPEAT = "repeat this test with"
_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGTSTP)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # the controller of xdist runs no test, and keeps what it has
    # Runs of pytest that a test starts have options of their own: --junitxml would overwrite the report of this run.
    os.environ.pop("PYTEST_ADDOPTS", None)
    # A shell without job control starts background jobs with SIGINT and SIGQUIT ignored, and nohup ignores SIGHUP.
    # Tests and the programs they start need these signals.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Half a million objects are made here, and stay: the garbage collector need not look at them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_place_contract(items: list[pytest.Item]) -> None:
    """Choose where the contract suite runs. On memory and SQLite, scripts/test runs all of it, but for the async API of
    tests that take real time; on one server of each kind, the operations of a store. The rest is for the gate."""
    for item in items:
        subject = subject_of(item)
        if subject is None or subject.is_memory:
            continue
        is_timed = item.get_closest_marker("dibs_timed") is not None
        if not subject.has_server:
            if is_timed:
                item.add_marker(pytest.mark.gate if _has_a_sync_twin(item) else pytest.mark.alone)
        elif is_timed or subject.name not in SERVERS or not _is_about_operations(item):
            item.add_marker(pytest.mark.gate)


def _has_a_sync_twin(item: pytest.Item) -> bool:
    """Whether it is the async twin of a test of the sync API."""
    return "-aio" in item.name and item.get_closest_marker("dibs_on") is None


def _is_about_operations(item: pytest.Item) -> bool:
    is_of_the_api = "world" in getattr(item, "fixturenames", ())
    return not is_of_the_api or item.get_closest_marker("dibs_every_form") is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long tests first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None:  # the native style does not leave out the frames of pytest itself
        call.excinfo.traceback = call.excinfo.traceback.cut(path=item.path)
    report = yield
    if report.failed:  # what the contract suite says about it leaves out how it was run here
        report.sections[:] = [*(one for one in report.sections if one[0] != _REPEAT), (_REPEAT, _command(item))]
    return report


def _command(item: pytest.Item) -> str:
    """One shell command that runs this test alone, with the seeds of this run."""
    option = item.config.getoption
    seeds = [f"{name}={value}" for name, value in os.environ.items() if re.fullmatch("DIBS_[A-Z]+_SEED", name)]
    python = os.path.relpath(sys.executable, item.config.rootpath)
    order = [f"--randomly-seed={option('randomly_seed')}"] if option("randomly_seed", None) is not None else []
    marks = [word for mark in ("gate", "soak") if item.get_closest_marker(mark) for word in ("-m", mark)]
    profile = [f"--hypothesis-profile={name}" for name in [option("--hypothesis-profile", None)] if name]
    subject = subject_of(item)
    store = ["--dibs-store", subject.wish] if subject is not None else []
    group = item.get_closest_marker("xdist_group")  # which xdist appends to the id
    test = item.nodeid if group is None else item.nodeid.removesuffix(f"@{group.args[0]}")
    return " ".join([*seeds, shlex.join([python, "-m", "pytest", *marks, *order, *profile, *store, test])])


@pytest.fixture(autouse=True)
def _patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiters keep their place although a process stands still, in tests that run beside others."""
    subject = subject_of(request.node)
    is_virtual = subject is not None and subject.is_memory
    if not is_virtual and not any(map(request.node.get_closest_marker, ("alone", "gate", "soak", "dibs_timed"))):
        monkeypatch.setattr(grants, "WAITING_LEASE", 60.0)


@pytest.fixture(autouse=True)
def _unchanged_signals() -> Iterator[None]:
    """A handler that a test leaves behind would swallow the interrupt of a later one."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    if changed := {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) != before[number]}:
        for number in changed:
            signal.signal(number, before[number])
        pytest.fail(f"the test left handlers of signals behind: {changed}")


@pytest.fixture(autouse=True, scope="session")
def _trace_every_thread() -> Iterator[None]:
    """Let a coverage tracer follow workers, which are started by `_thread` and not by `threading`."""
    start = _thread.start_new_thread

    def traced(function: Callable[..., object], args: tuple[object, ...]) -> int:
        def run() -> None:
            sys.settrace(threading.gettrace())
            function(*args)

        return start(run, ())

    if threading.gettrace() is None:
        yield
        return
    threads._thread = SimpleNamespace(start_new_thread=traced, allocate_lock=_thread.allocate_lock)
    yield
    threads._thread = _thread
