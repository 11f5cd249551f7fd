"""The tests of dibs itself: they take in its plugin and measure its coverage, wherever they stand.

By its entry point pytest would import dibs before anything is measured: pyproject.toml says `-p no:dibs`.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from dibs.runtime import threads

pytest_plugins = ["dibs.testing.plugin"]


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
