"""`dibs wait NAME`: wait until nobody holds a lock. It takes nothing and never joins the queue.

Exit status: 0 nobody holds it, 75 somebody still does when the time is over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from dibs._shared import place
from dibs.cli.options import Parser, UsageError, add_name, add_seconds, add_store, connect, next_command
from dibs.cli.output import BUSY, OK, held_by, hides_holders, lock_object, put_json, say
from dibs.cli.polling import POLL_TIMEOUT, poll
from dibs.info import duration


def parser() -> Parser:
    made = Parser("wait", description="Wait until nobody holds a lock, without taking it. The exit status is then 0.")
    add_name(made)
    text = "wait at most S seconds (or 500ms, 5m, 2h), then exit with 75 (default: wait forever)"
    add_seconds(made, "--timeout", text)
    add_store(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    until = float("inf") if options.timeout is None else time.monotonic() + options.timeout
    was_held = False
    with connect(options, "wait", retry=POLL_TIMEOUT) as client:
        for info in poll(lambda: client.inspect(options.name), "wait", until):
            if hides_holders(info) and not was_held:
                raise UsageError(f'{place(client)} does not record who holds "{info.name}": it cannot be waited for')
            was_held = bool(info.holders)
            over = time.monotonic() >= until
            if options.json and (over or not info.holders):
                put_json(lock_object(info))
            if not info.holders:
                return OK
            if over:
                after = f" after {duration(options.timeout)}" if options.timeout else ""
                held = held_by(info.name, info.holders, datetime.now(UTC))
                step = next_command(options, "show", info.name)
                say(f'"{info.name}" on {place(client)}: not free{after}: {held}. Next: {step}', command="wait")
                return BUSY
    raise AssertionError("poll() never ends by itself")
