"""A clock for a server that runs as somebody else: it must be able to read what steps it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import clock
from lab.clock import Clock


@contextmanager
def readable() -> Iterator[Clock]:
    directory = Path(tempfile.mkdtemp(prefix="dibs-clock-"))
    try:
        directory.chmod(0o755)
        made = Clock(directory, clock.build(directory))
        for file in directory.iterdir():
            file.chmod(0o755)
        yield made
    finally:
        shutil.rmtree(directory)
