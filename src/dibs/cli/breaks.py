"""What stays on record of a lock that was broken: by whom, when and why, in the store, beside the lock.

The record of a name's last break is a cell with a name made of the lock's. Its text is foreign when it is read: what is
not what we write is no record. Nobody else's value is overwritten, and where a record cannot be kept (a store without
cells, a name too long, a store that does not answer) there is none: breaking does not depend on it.

It is written after the lock was broken, so a holder that is told at that very moment may look too early.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import dibs
from dibs.cli.talk import age, clip, instant
from dibs.errors import BadName, Conflict, StoreError, Unsupported

LONGEST_REASON = 500
_LONGEST_RECORD = 8192
_LONGEST_HOLDER, _LONGEST_WHO = 250, 80
_TOO_LARGE = 2**63
_MARK = "broken lock"


class Break(NamedTuple):
    at: datetime
    by: str
    host: str
    pid: int
    token: int
    """Of the hold that was broken."""
    holder: str
    reason: str

    @property
    def breaker(self) -> str:
        """root@ci-7 pid 77"""
        return f"{clip(self.by, _LONGEST_WHO)}@{clip(self.host, _LONGEST_WHO)} pid {self.pid}"

    @property
    def why(self) -> str:
        return f"reason: {clip(self.reason, LONGEST_REASON)}" if self.reason else "no reason was given"

    @property
    def what(self) -> str:
        return f"token {self.token} of {clip(self.holder, _LONGEST_HOLDER)}"

    def told(self, now: datetime) -> str:
        """As people say it, harmless on a terminal."""
        return f"{age(self.at, now)} ago by {self.breaker}: {self.what}; {self.why}"

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "at": instant(self.at)}


class Foreign(Exception):
    """Where the record should stand, somebody else keeps something."""


def record(client: dibs.Client, name: str, what: Break) -> None:
    """In place of the name's last one."""

    def replace(value: bytes | None) -> bytes:
        if value is not None and read(value) is None:
            raise Foreign
        return _write(what)

    with suppress(BadName, Unsupported, Conflict, StoreError, Foreign):
        client.cell(_cell(name)).update(replace)


def last(client: dibs.Client, name: str) -> Break | None:
    """The name's last break, if one is on record; compare its token with that of the hold in question."""
    with suppress(BadName, Unsupported, StoreError):
        return read(client.cell(_cell(name)).get()[0])
    return None


def read(value: bytes | None) -> Break | None:
    """None: nothing is there, or nothing of ours."""
    if value is None or len(value) > _LONGEST_RECORD:
        return None
    try:
        said = json.loads(value)
        at = datetime.fromisoformat(said["at"]).astimezone(UTC)
        if said["record"] != _MARK:
            return None
        found = Break(
            at, str(said["by"]), str(said["host"]), int(said["pid"]), int(said["token"]),
            str(said["holder"]), str(said["reason"]),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return found if max(abs(found.pid), abs(found.token)) < _TOO_LARGE else None


def _write(what: Break) -> bytes:
    """Bounded, whatever was given: six bytes a character at most, as JSON says what is not ASCII."""
    short = what._replace(
        by=what.by[:_LONGEST_WHO],
        host=what.host[:_LONGEST_WHO],
        holder=what.holder[:_LONGEST_HOLDER],
        reason=what.reason[:LONGEST_REASON],
    )
    return json.dumps({"record": _MARK, **short.to_json()}).encode()


def _cell(name: str) -> str:
    return f"dibs:broken:{name}"
