"""The logger "dibs", looked up when there is something to say: `import logging` is a tenth of what `dibs run` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def log() -> Logger:
    import logging  # noqa: PLC0415  (see above)

    found = logging.getLogger("dibs")
    if not found.handlers:
        # Without any handler it would be Python that prints to stderr, in the watchdog's thread: if nobody reads that
        # pipe, renewal would end.
        found.addHandler(logging.NullHandler())
    return found
