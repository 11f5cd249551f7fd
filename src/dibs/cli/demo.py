"""`dibs demo`: worker processes fight for one resource that notices a second user, and the proof that none overlapped.

Five workers take one lock 25 times each. On the way one is killed while it holds the lock, and one is stopped while it
holds it, until somebody else was admitted after its lease; then it goes on, finds its lock lost, and its late write is
refused by the resource (demo_resource.py). demo_supervisor.py decides when, demo_worker.py is one worker.

Exit status: 0 proved, 1 not proved, 64 usage, 69 store unreachable, 128+n ended by signal n. No process, file or
directory stays behind.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import dibs
from dibs.cli.demo_resource import Resource
from dibs.cli.demo_show import Show, show_proof
from dibs.cli.demo_supervisor import Demo, GaveUp
from dibs.cli.demo_worker import NAMESPACE
from dibs.errors import DibsError, StoreError

_NOT_PROVED, _USAGE, _UNREACHABLE = 1, 64, 69
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_WORKERS = 32
"""The resource's record has room for so many."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    try:
        with _noted_signals() as signals, _temporary_directory() as directory:
            return _play(options, directory, signals)
    except StoreError as error:
        print(f"dibs demo: {error}", file=sys.stderr)
        return _UNREACHABLE
    except BrokenPipeError:
        # Nobody reads on (`| head`). What is still buffered must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _play(options: argparse.Namespace, directory: Path, signals: list[int]) -> int:
    show = Show(plain=options.plain)
    options.url = options.url or f"sqlite:///{quote(str(directory / 'demo.db'))}"
    with _connected(options) as client:
        show.say(
            f"{options.workers} workers, {options.turns} turns each, one lock, one resource. "
            f"Lease {options.lease:g} s, seed {options.seed}."
        )
        demo = Demo(options, directory, client, Resource(directory), show, signals)
        try:
            outcome = demo.play()
        except GaveUp as reason:
            show.say(f"given up: {reason}", good=False)
            return 128 + signals[0] if signals else _NOT_PROVED
        finally:
            demo.end()
    return 0 if show_proof(show, outcome) else _NOT_PROVED


def _connected(options: argparse.Namespace) -> dibs.Client:
    try:
        return dibs.connect(options.url, lease=options.lease, owner="demo", namespace=NAMESPACE)
    except (ValueError, DibsError) as error:
        _refuse(str(error))


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


def _refuse(why: str) -> NoReturn:
    print(f"dibs demo: {why}", file=sys.stderr)
    sys.exit(_USAGE)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _refuse(message)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="dibs demo",
        description="Worker processes fight for one resource that notices a second user. One is killed and one is "
        "stopped while it holds the lock; the proof at the end says whether two ever overlapped.",
    )
    parser.add_argument("--url", help="the store (default: a fresh database that is removed at the end)")
    parser.add_argument("--workers", type=int, default=5, help="2 to 32 (default: 5)")
    parser.add_argument("--turns", type=int, default=25, help="of each worker, at least 2 (default: 25)")
    parser.add_argument("--seed", type=int, help="decides who is struck and how long turns take (default: a new one)")
    parser.add_argument("--lease", type=float, default=1.0, help="seconds, at least 0.5 (default: 1)")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live line")
    parser.add_argument("--no-lock", action="store_true", help=argparse.SUPPRESS)  # the resource must convict this
    options = parser.parse_args(arguments)
    if not 2 <= options.workers <= _MOST_WORKERS or options.turns < 2:
        parser.error(f"--workers must be 2 to {_MOST_WORKERS}, --turns at least 2")
    if (options.url or "").startswith("memory:"):
        parser.error("memory:// is one store per process: give a URL that processes share")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1000)
    return options


if __name__ == "__main__":
    sys.exit(main())
