"""A wall clock for a server that another user runs: that user must be able to read what makes it jump."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lab import clock as clocks
from lab.clock import Clock
from lab.servers import guard


def steerable() -> Clock:
    place = Path(tempfile.mkdtemp(prefix="clock-", dir=guard.root()))
    place.chmod(0o755)
    made = Clock(place, clocks.build(place))
    for file in place.iterdir():
        file.chmod(0o755)
    return made
