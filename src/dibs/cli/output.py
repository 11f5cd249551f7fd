"""The output of the commands: results to stdout, everything else to stderr; and the exit statuses.

`--json` prints one object per line with the names of `LockInfo` and `Participant`; times are ISO 8601, UTC. Text from
other processes is untrusted: it is made `printable` before it reaches a terminal, and is ASCII in JSON.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dibs.info import LockInfo, Participant, begun, duration, elapsed, printable, who

OK, NO, USAGE, UNREACHABLE, NOT_BY_SYSTEM, BUSY, LOST, CANNOT_RUN, NOT_FOUND = 0, 1, 64, 69, 71, 75, 76, 126, 127
_PATIENCE = 1.0
"""Seconds that a message waits for its reader: we may have to renew a lock or end a command."""
BY_SIGNAL = 128
"""Plus the signal's number: the status of a process that a signal ended."""


def say(text: str, *, command: str = "") -> None:
    """Print to stderr. A closed stderr is no error, and an unread one does not block."""
    if sys.stderr is not None:
        try:
            if _is_unread():
                return
            sys.stderr.write(harmless(f"dibs {command}: {text}\n" if command else f"{text}\n"))
            sys.stderr.flush()
        except OSError:
            redirect_to_null(2)
        except ValueError:
            return


def _is_unread() -> bool:
    try:
        return not select.select([], [sys.stderr], [], _PATIENCE)[1]
    except (ValueError, OSError):  # not a file, as under pytest; on Windows select() takes sockets only
        return False


def report(message: Mapping[str, Any], *, command: str, as_json: bool) -> None:
    """Print the message to stderr: its text, or with `as_json` the whole object."""
    if as_json:
        say(json.dumps(message))
    else:
        say(message["text"], command=command)


def redirect_to_null(*descriptors: int) -> None:
    """Replace descriptors by /dev/null. Output that is buffered for a closed reader then does not fail at exit."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def put(text: str) -> None:
    """Print a result to stdout, one line per call: with an unbuffered stdout, a pipe may drop part of a longer write.
    A closed reader (`| head`) raises BrokenPipeError."""
    if sys.stdout is not None:
        sys.stdout.write(harmless(text) + "\n")
        sys.stdout.flush()


def harmless(text: str) -> str:
    """The text without control characters; newlines are kept. All output passes through here."""
    return "\n".join(line if line.isprintable() else printable(line) for line in text.split("\n"))


def put_json(what: Mapping[str, Any]) -> None:
    put(json.dumps(what))


def lock_object(info: LockInfo) -> dict[str, Any]:
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
        "since": begun(one),
        "remaining": round(one.remaining, 3),
        "token": one.token or None,
        "weight": one.weight,
        "info": dict(one.info),
    }


def age(one: Participant, now: datetime) -> str:
    """Empty: not known."""
    seconds = elapsed(one, now)
    return "" if seconds is None else duration(seconds)


def describe(one: Participant, now: datetime) -> str:
    """The participant and since when, for example: ana@web-3 pid 4121 (deploy.sh) for 3m12s."""
    held = age(one, now)
    return f"{who(one)} for {held}" if held else who(one)


def ordinal(number: int) -> str:
    """A place in the queue.

    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 101, 111)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '21st', '101st', '111th']
    """
    teens = 10 < number % 100 < 14
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def runs_under(name: str, one: Participant) -> bool:
    """Whether this process runs in a `dibs run` under that hold."""
    under = os.fsencode(os.environ.get("DIBS_NAME", "")), os.environ.get("DIBS_TOKEN")
    return under == (name.encode(), str(one.token))


def same(name: str, one: Participant) -> str:
    """A note if the participant is this process, host or login, by its labels; else empty."""
    if runs_under(name, one):
        return " (this command runs under it)"
    from dibs._shared import login  # noqa: PLC0415  (not needed to start)

    if one.host != host():
        return " (same login on another host)" if one.owner == login() else ""
    if one.pid == os.getpid():
        return " (same process)"
    return " (same login on this host)" if one.owner == login() else " (same host)"


def held_by(name: str, holders: Sequence[Participant], now: datetime) -> str:
    """The first holder and the number of others; there must be at least one."""
    first, more = holders[0], len(holders) - 1
    others = f" and {more} more" if more else ""
    return f"held by {describe(first, now)}{same(name, first)}{others}"


def unheld(info: LockInfo) -> str:
    """The state of a lock without holders."""
    return "no holder is recorded" if hides_holders(info) else "free"


def hides_holders(info: LockInfo) -> bool:
    """Whether it may be in use though it has no holders: a store that records them shows a free name as a mutex."""
    return info.kind == "semaphore" and not (info.holders or info.waiters)


def is_terminal() -> bool:
    """Whether stdout is a terminal that understands control codes."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def has_colour() -> bool:
    return is_terminal() and not os.environ.get("NO_COLOR")


def host() -> str:
    return os.uname().nodename if hasattr(os, "uname") else "?"


def occupy_closed_descriptors() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr. Otherwise the next file that we open would get its
    number, and our output. In a program that we execute they are closed again."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
