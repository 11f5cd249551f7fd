"""For `--dibs-store`: the URL of a fresh store of each kind."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

_numbers = count(1)


def _of(scheme: str) -> Callable[[Path], str]:
    return lambda _: f"{scheme}://{next(_numbers)}"


fresh = _of("acme")
plain = _of("acme-plain")
leave = _of("acme-leave")
wake = _of("acme-wake")
