"""For tests that start processes: a `tmp_path` in which nobody outlives the test or the test run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.servers import guard


@contextmanager
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=guard.root(), prefix="test-"))
    try:
        yield path
    finally:
        guard.clear(path)


@pytest.fixture(name="tmp_path")
def guarded_directory() -> Iterator[Path]:
    """Replaces pytest's `tmp_path`: a process that works there is killed at the end of the test or of the test run."""
    with directory() as path:
        yield path
