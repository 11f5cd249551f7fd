"""Runs the coroutines of the core for the sync API."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from dibs.runtime.threads import step

T = TypeVar("T")

LOOPS = "asyncio.events"
modules = sys.modules
_told: list[bool] = []


def ask(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a call that asks the store; warn if an event loop is running."""
    if LOOPS in modules:
        try:
            warn_in_a_loop()
        except RuntimeWarning:
            coroutine.close()
            raise
    return step(coroutine)


def warn_in_a_loop() -> None:
    """Warn once per process if a call blocks a running event loop. Call it only if asyncio is imported."""
    if _told or (running := getattr(modules[LOOPS], "_get_running_loop", None)) is None or running() is None:
        return
    _told.append(True)
    from warnings import warn  # noqa: PLC0415  (rarely needed)

    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("dibs."):
        frame, depth = frame.f_back, depth + 1
    warn(
        "the sync API of dibs is used in a running event loop, which stands still while a call waits: "
        "use the client of dibs.aio.connect() (import dibs.aio)",
        RuntimeWarning,
        stacklevel=depth,
    )
