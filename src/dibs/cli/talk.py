"""What the command line says, and to whom: results to stdout, everything else to stderr; and its exit statuses.

`--json` prints one object per line with the names of `LockInfo` and `Participant`; points in time are ISO 8601, UTC.
What other processes wrote about themselves is foreign text: `printable` before it reaches a terminal, ASCII in JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from dibs.info import LockInfo, Participant, duration, printable

OK, NO, USAGE, UNREACHABLE, BUSY, LOST, CANNOT_RUN, NOT_FOUND = 0, 1, 64, 69, 75, 76, 126, 127
BY_SIGNAL = 128
"""Plus its number: the status of what a signal ended."""


def say(text: str, *, command: str = "") -> None:
    """To whoever sits there. A closed stderr is no reason to fail."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"dibs {command}: {text}\n" if command else f"{text}\n")
            sys.stderr.flush()


def put(text: str) -> None:
    """A result: one line, whole, now. Whoever reads no more (`| head`) is heard as BrokenPipeError."""
    if sys.stdout is not None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def put_json(what: Mapping[str, Any]) -> None:
    put(json.dumps(what))


def lock_object(info: LockInfo) -> dict[str, Any]:
    """A line as `--json` shows it."""
    return {
        "name": info.name,
        "kind": info.kind,
        "capacity": info.capacity,
        "holders": [_participant_object(one) for one in info.holders],
        "waiters": [_participant_object(one) for one in info.waiters],
    }


def _participant_object(one: Participant) -> dict[str, Any]:
    return {
        "owner": one.owner,
        "host": one.host,
        "pid": one.pid,
        "thread": one.thread,
        "since": instant(one.since),
        "remaining": round(one.remaining, 3),
        "token": one.token,
        "weight": one.weight,
        "info": dict(one.info),
    }


def instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe(one: Participant, now: datetime) -> str:
    """Who it is, what it runs and since when, as people say it: ana@web-3 pid 4121 (deploy.sh) for 3m12s."""
    command = one.info.get("command")
    ran = f" ({printable(command)[:80]})" if command else ""
    return f"{one.label}{ran} for {duration(max((now - one.since).total_seconds(), 0.0))}"


def occupy_closed_descriptors() -> None:
    """Where stdin, stdout or stderr is closed, the next file opened would take its number, and what is written to it.
    What stands there now is closed again in whatever this process executes."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
