"""Where the lab keeps the Java classes that it compiles: in the user's cache, one builder at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Program(NamedTuple):
    version: str
    """Of the library that it drives."""
    class_path: str


@contextlib.contextmanager
def alone(library: str) -> Iterator[Path]:
    """The cache directory. No other process builds for that library meanwhile."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dibs-lab"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{library}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache
