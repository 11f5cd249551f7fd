"""`dibs top [PREFIX]`: a live view of the locks of a store, the most contended first.

On a terminal with `rich` (the extra `cli`) it draws a screen and reads keys: see top_screen.py. Otherwise it prints one
table; with `--interval` one table per interval, until Ctrl-C.

It scans the store at most once a second. If a scan takes long, the pause grows: scans take at most a fifth of the
time. A thread scans, so that keys work while the store does not answer.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import dibs
from dibs._shared import not_shown, place
from dibs.cli.ls import HEADER, row
from dibs.cli.ls import aligned as columns
from dibs.cli.options import Parser, UsageError, add_seconds, add_store, connect, lock_name
from dibs.cli.output import OK, is_terminal, lock_object, put, put_json, say
from dibs.cli.polling import POLL_TIMEOUT
from dibs.cli.top_view import Sample, View, samples
from dibs.info import instant, printable
from dibs.monitor.scan import Scan, oldest_wait, scan

INTERVAL = 1.0
"""Seconds between the starts of two scans, at least."""
_SHARE = 5
"""The interval is at least this multiple of the time that a scan took."""


def parser() -> Parser:
    made = Parser(
        "top",
        description="Show the locks that are held or waited for, the most contended first, and keep the view current.",
        epilog="keys: s sorts, / filters, Enter opens a lock, Esc goes back, ? shows all keys, q quits",
    )
    made.add_argument(
        "prefix", metavar="PREFIX", nargs="?", default="", type=lock_name, help="only names that begin with PREFIX"
    )
    made.add_argument("--once", action="store_true", help="print one table, and exit; the default without a terminal")
    add_seconds(made, "--interval", "scan the store every S, at least 1 (default: 1)")
    add_store(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if options.interval is not None and options.interval < INTERVAL:
        raise UsageError(f"--interval must be at least {INTERVAL:g} s: each scan reads all names of the store")
    with connect(options, "top", retry=POLL_TIMEOUT) as client:
        if not (options.once or options.json) and _is_live():
            return _live(client, options)
        for sample in samples(_scans(client, options)):
            if options.json:
                _put_object(sample, place(client))
            else:
                _put_table(sample, place(client), not_shown(client))
    return OK


def _is_live() -> bool:
    if not (is_terminal() and sys.stdin is not None and sys.stdin.isatty()):
        return False
    try:
        import termios  # noqa: F401, PLC0415  (POSIX only)

        import rich  # noqa: F401, PLC0415  (optional)
    except ImportError:
        say("the live view needs a POSIX terminal and rich: pip install 'dibs[cli]'", command="top")
        return False
    return True


def _scans(client: dibs.Client, options: argparse.Namespace) -> Iterator[Scan]:
    """One scan, or with `--interval` one after the other for ever."""
    while True:
        began = time.monotonic()
        yield scan(client, options.prefix)
        if options.interval is None or options.once:
            return
        took = time.monotonic() - began
        time.sleep(pause(options.interval, took) - took)


def pause(interval: float, took: float) -> float:
    """Seconds from the start of a scan to the start of the next.

    >>> pause(1.0, 0.1), pause(1.0, 2.0)
    (1.0, 10.0)
    """
    return max(interval, _SHARE * took)


def _put_object(sample: Sample, store: str) -> None:
    seen = sample.scan
    put_json(
        {
            "store": store,
            "as_of": instant(seen.as_of),
            "took": round(seen.took, 6),
            "complete": seen.complete,
            "held": sample.held,
            "waiting": sample.waiting,
            "oldest_wait": round(oldest_wait(seen.locks, seen.as_of), 3),
            "handovers_per_second": round(sample.handovers, 3),
            "locks": [lock_object(info) for info in sample.sorted()],
        }
    )


def _put_table(sample: Sample, store: str, missing: Sequence[str]) -> None:
    view = View(store, missing)
    view.show(sample)
    for line in view.heading():
        put(printable(line))
    if sample.scan.locks:
        for line in columns([HEADER, *(row(info, sample.scan.as_of).cells for info in sample.sorted())]):
            put(line)


def _live(client: dibs.Client, options: argparse.Namespace) -> int:
    from dibs.cli.top_screen import Screen  # noqa: PLC0415  (needs rich and termios)

    with Screen(View(place(client), not_shown(client))) as screen:
        scanner = Scanner(client, options.prefix, options.interval or INTERVAL, screen.hear)
        scanner.start()
        try:
            return screen.run()
        finally:
            scanner.stop()


class Scanner(threading.Thread):
    """Scans the store again and again, and hands each sample, or the error, to `told`."""

    def __init__(
        self, client: dibs.Client, prefix: str, interval: float, told: Callable[[Sample | BaseException], object]
    ) -> None:
        super().__init__(name="scanner", daemon=True)
        self._client, self._prefix, self._interval, self._told = client, prefix, interval, told
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            for sample in samples(self._scans()):
                self._told(sample)
        except BaseException as error:  # noqa: BLE001  (the main thread raises it)
            self._told(error)

    def _scans(self) -> Iterator[Scan]:
        while not self._stopped.is_set():
            began, rest = time.monotonic(), self._interval
            try:
                yield scan(self._client, self._prefix)
                took = time.monotonic() - began
                rest = pause(self._interval, took) - took
            except dibs.Closed:
                return
            except dibs.DibsError as error:
                self._told(error)
            self._stopped.wait(rest)

    def stop(self) -> None:
        """A scan that is under way ends with the client."""
        self._stopped.set()
