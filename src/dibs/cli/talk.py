"""What the command line says, and to whom: results to stdout, everything else to stderr; and its exit statuses.

`--json` prints one object per line with the names of `LockInfo` and `Participant`; points in time are ISO 8601, UTC.
What other processes wrote about themselves is foreign text: `printable` before it reaches a terminal, ASCII in JSON.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dibs.info import LockInfo, Participant, clip, duration, printable

OK, NO, USAGE, UNREACHABLE, NOT_BY_SYSTEM, BUSY, LOST, CANNOT_RUN, NOT_FOUND = 0, 1, 64, 69, 71, 75, 76, 126, 127
_PATIENCE = 1.0
"""How long a message waits for its reader: a lock may have to be renewed, or a command ended, meanwhile."""
BY_SIGNAL = 128
"""Plus its number: the status of what a signal ended."""


def say(text: str, *, command: str = "") -> None:
    """To whoever sits there. That stderr is closed is no reason to fail, and that nobody reads it none to wait."""
    if sys.stderr is not None:
        try:
            if _is_unread():
                return
            sys.stderr.write(harmless(f"dibs {command}: {text}\n" if command else f"{text}\n"))
            sys.stderr.flush()
        except OSError:
            drop_unread(2)
        except ValueError:
            return


def _is_unread() -> bool:
    try:
        return not select.select([], [sys.stderr], [], _PATIENCE)[1]
    except (ValueError, OSError):  # not a file, as under pytest; or Windows, where select() takes sockets only
        return False


def drop_unread(number: int) -> None:
    """Nobody reads there any more: what is still buffered must not fail once more at exit, with a status of its own."""
    opened = os.open(os.devnull, os.O_WRONLY)
    os.dup2(opened, number)
    os.close(opened)


def put(text: str) -> None:
    """A result: one line, whole, now. Whoever reads no more (`| head`) is heard as BrokenPipeError; not so, where
    Python is told not to buffer, by one write of many lines: what of it a pipe does not take is lost."""
    if sys.stdout is not None:
        sys.stdout.write(harmless(text) + "\n")
        sys.stdout.flush()


def harmless(text: str) -> str:
    """Whatever is in it, it steers no terminal: here everything passes that is said. Only its own newlines are kept."""
    return "\n".join(line if line.isprintable() else printable(line) for line in text.split("\n"))


def put_json(what: Mapping[str, Any]) -> None:
    put(json.dumps(what))


def lock_object(info: LockInfo) -> dict[str, Any]:
    """A line as `--json` shows it."""
    return {
        "name": info.name,
        "kind": info.kind,
        "capacity": info.capacity,
        "holders": [participant_object(one) for one in info.holders],
        "waiters": [participant_object(one) for one in info.waiters],
    }


def participant_object(one: Participant) -> dict[str, Any]:
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


def who(one: Participant) -> str:
    """Who it is and what it runs: ana@web-3 pid 4121 (deploy.sh)."""
    command = one.info.get("command")
    ran = f" ({clip(command, 80)})" if command else ""
    return f"{clip(one.label, 120)}{ran}"


def age(since: datetime, now: datetime) -> str:
    return duration(max((now - since).total_seconds(), 0.0))


def describe(one: Participant, now: datetime) -> str:
    """Who it is, what it runs and since when, as people say it: ana@web-3 pid 4121 (deploy.sh) for 3m12s."""
    return f"{who(one)} for {age(one.since, now)}"


def ordinal(number: int) -> str:
    """A place in the queue.

    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 101, 111)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '21st', '101st', '111th']
    """
    teens = 10 < number % 100 < 14
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def runs_under(name: str, one: Participant) -> bool:
    """Whether this process is part of the command that a `dibs run` runs under that hold."""
    under = os.fsencode(os.environ.get("DIBS_NAME", "")), os.environ.get("DIBS_TOKEN")
    return under == (name.encode(), str(one.token))


def same(name: str, one: Participant) -> str:
    """What a participant of this lock has in common with the reader, as far as labels tell; else an empty text."""
    if runs_under(name, one):
        return " (this command runs under it)"
    from dibs.faces import login  # noqa: PLC0415  (not needed to start)

    if one.host != host():
        return " (same login on another host)" if one.owner == login() else ""
    if one.pid == os.getpid():
        return " (same process)"
    return " (same login on this host)" if one.owner == login() else " (same host)"


def held_by(name: str, holders: Sequence[Participant], now: datetime) -> str:
    """The first holder, and how many more there are; there must be one."""
    first, more = holders[0], len(holders) - 1
    others = f" and {more} more" if more else ""
    return f"held by {describe(first, now)}{same(name, first)}{others}"


def host() -> str:
    return os.uname().nodename if hasattr(os, "uname") else "?"


def occupy_closed_descriptors() -> None:
    """Where stdin, stdout or stderr is closed, the next file opened would take its number, and what is written to it.
    What stands there now is closed again in whatever this process executes."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
