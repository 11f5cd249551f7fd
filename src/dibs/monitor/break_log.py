"""The records of a break: in the system log, and of the last break of a lock in a cell beside it.

The text is untrusted: anything that we did not write is no record, and is not overwritten. Recording is best effort (a
store may have no cells, or not reply), and follows the break: a holder that looks at once may not find it yet.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime

import dibs
from dibs.errors import BadName, Conflict, StoreError, Unsupported
from dibs.info import BREAK_MARK, Break, Participant, break_cell, clip, duration, elapsed, read_break, who

_LONGEST_LOGGED = 2000


class Foreign(Exception):
    """The cell contains something that is not a record."""


def record(client: dibs.Client, name: str, what: Break) -> None:
    """Replace the record of that name."""
    text = json.dumps({"record": BREAK_MARK, **what.shortened().to_json(), "token": what.token}).encode()

    def replace(value: bytes | None) -> bytes:
        if value is not None and read_break(value) is None:
            raise Foreign
        return text

    with suppress(BadName, Unsupported, Conflict, StoreError, Foreign):
        client.cell(break_cell(name)).update(replace)


def last(client: dibs.Client, name: str) -> Break | None:
    """The last break of that name, if it is recorded; compare its token with that of your hold."""
    with suppress(BadName, Unsupported, StoreError):
        return read_break(client.cell(break_cell(name)).get()[0])
    return None


def describe(holder: Participant, reason: str, by: str) -> Break:
    """A break of that hold by this process, now."""
    now = datetime.now(UTC)
    age = elapsed(holder, now)
    held = who(holder) if age is None else f"{who(holder)}, held for {duration(age)}"
    host = os.uname().nodename if hasattr(os, "uname") else "?"
    return Break(now, by, host, os.getpid(), holder.token, held, reason)


def log(text: str) -> None:
    """Write to syslog if there is one."""
    try:
        import syslog  # noqa: PLC0415  (POSIX only)
    except ImportError:
        return
    syslog.openlog("dibs", syslog.LOG_PID, syslog.LOG_AUTH)
    syslog.syslog(syslog.LOG_NOTICE, clip(text, _LONGEST_LOGGED))
    syslog.closelog()
