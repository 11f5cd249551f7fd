"""`dibs wait NAME`: until nobody holds it; nothing is taken, and nobody is in the way of those in line.

Statuses: 0 nobody holds it (any more), 75 somebody still does when the time is over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from dibs.cli import options as given
from dibs.cli.looking import ONE_LOOK, looks
from dibs.cli.options import Parser, add_store, connect
from dibs.cli.talk import BUSY, OK, held_by, lock_object, put_json, say
from dibs.faces import place
from dibs.info import LockInfo, duration, show_command


def main(arguments: Sequence[str]) -> int:
    parser = Parser("wait", description="Wait until nobody holds a lock, without taking it.")
    parser.add_argument("name", metavar="NAME", type=given.name, help="the lock")
    parser.add_argument("--timeout", metavar="S", type=given.time, help="wait so long, then 75 (30, 500ms, 5m, 2h)")
    add_store(parser)
    options = parser.parse_args(arguments)
    until = float("inf") if options.timeout is None else time.monotonic() + options.timeout
    with connect(options, "wait", retry=ONE_LOOK) as client:
        for info in looks(client, options.name, "wait", until):
            over = time.monotonic() >= until
            if options.json and (over or not info.holders):
                put_json(lock_object(info))
            if not info.holders:
                return OK
            if over:
                say(_busy(info, place(client), options.timeout), command="wait")
                return BUSY
    raise AssertionError("looks() never ends by itself")


def _busy(info: LockInfo, store: str, timeout: float) -> str:
    after = f" after {duration(timeout)}" if timeout else ""
    held = held_by(info, datetime.now(UTC))
    return f'"{info.name}" on {store}: not free{after}: {held}. Next: {show_command(info.name)}'
