"""Settings of the whole test suite."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from hypothesis import settings

from dibs.runtime import threads

# Runs share two cores with others, so an example's own time says nothing; and what a run finds must be found again.
settings.register_profile("dibs", deadline=None, database=None, print_blob=True)
settings.load_profile("dibs")


@pytest.fixture(autouse=True, scope="session")
def _trace_every_thread() -> Iterator[None]:
    """Workers are started by `_thread`, which a coverage tracer does not hear of: hand it on, where there is one."""
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
