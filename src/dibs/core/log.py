"""The logger "dibs", imported on first use: `import logging` takes a tenth of the time of `dibs run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def log() -> Logger:
    import logging  # noqa: PLC0415  (see above)

    found = logging.getLogger("dibs")
    if not found.handlers:
        # Without a handler Python prints to stderr in the watchdog's thread: a full pipe would stop renewal.
        found.addHandler(logging.NullHandler())
    return found
