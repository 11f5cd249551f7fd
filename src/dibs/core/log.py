"""The logger "dibs" and its children.

dibs does not import logging: a program that has not imported it has not configured it, so nobody would see a record.
The import takes a tenth of the time of `dibs run`. A child that is forked while another thread imports logging would
wait for that thread for ever.

Every record has the field `event_name`, which is stable, and fields for its figures: docs/logging.md lists them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dibs.events import Event
from dibs.info import duration

if TYPE_CHECKING:
    from logging import Logger

_PERIOD = 10.0


class Log:
    """A logger that cannot disturb a lock: it ignores the exceptions of handlers, filters and record factories."""

    def __init__(self, logger: Logger | None) -> None:
        """None: the program has not imported logging."""
        self._logger = logger

    def wants(self, level: int) -> bool:
        return self._logger is not None and self._logger.isEnabledFor(level)

    def debug(self, text: str, *args: object, extra: dict[str, Any]) -> None:
        self._say(10, text, args, extra)

    def info(self, text: str, *args: object, extra: dict[str, Any]) -> None:
        self._say(20, text, args, extra)

    def warning(self, text: str, *args: object, extra: dict[str, Any]) -> None:
        self._say(30, text, args, extra)

    def error(self, text: str, *args: object, extra: dict[str, Any]) -> None:
        self._say(40, text, args, extra)

    def exception(self, text: str, *args: object, extra: dict[str, Any]) -> None:
        self._say(40, text, args, extra, with_traceback=True)

    def _say(
        self, level: int, text: str, args: tuple[object, ...], extra: dict[str, Any], *, with_traceback: bool = False
    ) -> None:
        if self._logger is not None:
            with suppress(Exception):
                self._logger.log(level, text, *args, extra=extra, exc_info=with_traceback, stacklevel=3)


def log(child: str = "") -> Log:
    """The logger "dibs", or "dibs.<child>"."""
    logging: Any = sys.modules.get("logging")
    try:
        found, null_handler = logging.getLogger("dibs"), logging.NullHandler
    except AttributeError:  # it is not imported, or not to the end
        return Log(None)
    if not found.handlers:
        # Without a handler Python prints to stderr in the watchdog's thread: a full pipe would stop renewal.
        found.addHandler(null_handler())
    return Log(found.getChild(child) if child else found)


def fields(event_name: str, **more: Any) -> dict[str, Any]:
    """The `extra` of a record. "event" and "name" would collide with structlog and with `LogRecord`."""
    return {"event_name": event_name, **more}


class LogLimit:
    """At most `most` records in ten seconds, so that a store that is away does not flood the log."""

    def __init__(self, now: Callable[[], float], most: int) -> None:
        self._now = now
        self._most = most
        self._since = -_PERIOD
        self._count = 0
        self._left_out = 0

    def more(self) -> str | None:
        """The end of the message, which tells how many were left out before it; None: leave this one out, too."""
        now = self._now()
        if now - self._since >= _PERIOD:
            self._since, self._count = now, 0
        if self._count >= self._most:
            self._left_out += 1
            return None
        self._count += 1
        left_out, self._left_out = self._left_out, 0
        return f" (and {left_out} more like this before)" if left_out else ""


def wants_debug() -> bool:
    """Whether acquires and releases are logged."""
    return log("lock").wants(10)


def lock_fields(event: Event) -> dict[str, Any]:
    return fields(event.what, lock=event.name, kind=event.kind, owner=event.owner, store=event.store, token=event.token)


def log_debug(event: Event) -> None:
    """An observer that logs the frequent events; the reporter logs the others itself."""
    text = _FREQUENT.get(event.what)
    if text is not None:
        said = text.format(waited=duration(event.waited), held=duration(event.held), left=duration(event.left))
        if event.error is not None:
            said += f": {event.error}"
        names = _FIGURES.get(event.what, ("waited", "contended"))
        figures = {name: getattr(event, name) for name in names}
        log("lock").debug('"%s" on %s: %s', event.name, event.store, said, extra={**lock_fields(event), **figures})


_FIGURES = {"released": ("held",), "given_back": ("held",), "renewed": ("left", "latency")}
_FREQUENT = {
    "acquired": "acquired after {waited}",
    "waiting": "busy, waiting",
    "busy": "busy",
    "timed_out": "not free after {waited}",
    "cancelled": "cancelled after {waited}",
    "failed": "not acquired after {waited}",
    "released": "released after {held}",
    "given_back": "given back after {held}",
    "renewed": "renewed with {left} left",
}
