"""`dibs demo`: worker processes compete for one resource that detects a second user; the proof that none overlapped.

Five workers take one lock 25 times each. One is killed while it holds the lock. Another is paused while it holds it,
until the resource has accepted another worker after its lease. Then it continues, finds its lock lost, and the resource
refuses its late write (demo_resource.py). demo_supervisor.py decides when, demo_worker.py is one worker; demo_show.py
and demo_screen.py print it.

Exit status: 0 proved, 1 not proved, 64 usage, 69 store unreachable, 128+n ended by signal n. No process, file or
directory stays behind.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from dibs.cli.demo_resource import Resource
from dibs.cli.demo_screen import Screen, has_colour, is_live
from dibs.cli.demo_show import Lines, Objects, Show
from dibs.cli.demo_supervisor import Demo, GaveUp
from dibs.cli.demo_worker import NAMESPACE
from dibs.cli.options import Parser, connect, time
from dibs.cli.talk import BY_SIGNAL, NO, OK

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_WORKERS = 32
"""The resource's record has room for so many."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    with _noted_signals() as signals, _temporary_directory() as directory:
        return _play(options, directory, signals)


def _play(options: argparse.Namespace, directory: Path, signals: list[int]) -> int:
    show = _show(options)
    options.url = options.url or f"sqlite:///{quote(str(directory / 'demo.db'))}"
    with connect(options, "demo", lease=options.lease, owner="demo") as client:
        demo = Demo(options, directory, client, Resource(directory), show, signals)
        try:
            show.begin(options, demo.names)
            outcome = demo.play()
        except GaveUp as reason:
            show.give_up(str(reason))
            return BY_SIGNAL + signals[0] if signals else NO
        finally:
            demo.end()
            show.close()
    show.prove(outcome)
    return NO if outcome.objections() else OK


def _show(options: argparse.Namespace) -> Show:
    if options.json:
        return Objects()
    lines = Lines(colour=has_colour())
    return Screen(lines, colour=has_colour()) if is_live() and not options.plain else lines


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Signals that end us are noted, and looked at between two steps: no exception falls into the cleaning up."""
    noted: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dibs-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def parser() -> Parser:
    made = Parser(
        "demo",
        description="Worker processes compete for one resource, which detects a second user. One worker is killed\n"
        "and one is paused while it holds the lock. The result at the end says whether two overlapped.",
    )
    made.add_argument("--url", help="the store (default: a temporary SQLite file)")
    made.add_argument("--workers", metavar="N", type=int, default=5, help="worker processes, 2 to 32 (default: 5)")
    made.add_argument(
        "--turns", metavar="N", type=int, default=25, help="turns of each worker, at least 2 (default: 25)"
    )
    made.add_argument(
        "--seed", metavar="N", type=int, help="selects the workers that fail and the length of turns (default: random)"
    )
    made.add_argument(
        "--lease",
        metavar="S",
        type=time,
        default=1.0,
        help="seconds that a lock survives without renewal, at least 0.5 (default: 1)",
    )
    told = made.add_mutually_exclusive_group()
    told.add_argument("--plain", action="store_true", help="print lines instead of drawing a picture, as in a pipe")
    told.add_argument("--json", action="store_true", help="print one JSON object per event; the last one has 'proved'")
    made.add_argument("--no-lock", action="store_true", help=argparse.SUPPRESS)  # the resource must convict this
    made.set_defaults(url_file=None, namespace=NAMESPACE)
    return made


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    made = parser()
    options = made.parse_args(arguments)
    if not 2 <= options.workers <= _MOST_WORKERS or options.turns < 2:
        made.error(f"--workers must be 2 to {_MOST_WORKERS}, --turns at least 2")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1000)
    return options
