"""Snapshots of a queue (`LockInfo` with its `Participant`s), their texts in errors, and the findings of `doctor`.

Nothing here is a credential: claim ids never appear. Descriptions that other processes wrote are untrusted text: they
are parsed with a size limit, and their control characters are escaped before they are printed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from shlex import quote
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Never, Self, dataclass_transform

_LONGEST_DESCRIPTION = 16_384
LONGEST_REASON = 500
BREAK_MARK = "broken lock"
_LONGEST_RECORD = 8192
_LONGEST_HOLDER, _LONGEST_WHO = 250, 80
_TOO_LARGE = 2**63
_LONGEST_LEFT = 1e9
_LONG_AGO = datetime.fromtimestamp(0, UTC)
_JSON = json.JSONDecoder(parse_constant=str)
"""`json.loads` with an option makes a decoder each time, which costs as much as a description."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Seen:
    """An immutable snapshot: created by keyword, compared and shown by its fields.

    A data class for type checkers only: `dataclasses` would take a quarter of the time of `import dibs`.
    """

    _fields: ClassVar[tuple[str, ...]]
    _needed: ClassVar[frozenset[str]]
    """Fields without a default; defaults are class attributes."""
    _known: ClassVar[frozenset[str]]

    def __init_subclass__(cls) -> None:
        cls._fields = (*getattr(cls, "_fields", ()), *cls.__annotations__)
        cls._needed = frozenset(name for name in cls._fields if not hasattr(cls, name))
        cls._known = frozenset(cls._fields)

    def __init__(self, **given: Any) -> None:
        if not self._needed <= given.keys() <= self._known:
            raise TypeError(f"a {type(self).__name__} is made of {', '.join(self._fields)}, not of {', '.join(given)}")
        vars(self).update(given)

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"a {type(self).__name__} is a snapshot and cannot be changed")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"a {type(self).__name__} is a snapshot and cannot be changed")

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def _replace(self, **changes: Any) -> Self:
        return type(self)(**{**vars(self), **changes})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"


class Participant(Seen):
    """A holder or a waiter of a lock, as the store showed it. The texts are its own; they prove nothing.

    Attributes:
        owner: The option `owner` of its lock, or its login name.
        host: The name of its machine.
        pid: The number of its process.
        thread: The name of its thread or task.
        since: When it was granted the lock; of a waiter, when it asked for it. In UTC; 1970-01-01: not known.
        remaining: Seconds until it ends without renewal.
        token: Its fencing token; 0: it has none.
        weight: How many permits of a semaphore; of a write lock, all of them.
        info: The option `info` of its lock, merged with its client's.

    Example:
        >>> Participant(owner="ana", host="web-3", pid=4121).label
        'ana@web-3 pid 4121'
    """

    owner: str = "?"
    host: str = "?"
    pid: int = 0
    thread: str = ""
    since: datetime = _LONG_AGO
    remaining: float = 0.0
    token: int = 0
    weight: int = 1
    info: Mapping[str, Any] = MappingProxyType({})

    @property
    def key(self) -> int | str:
        """Its token, or its owner if it has no token. It tells the holders of one lock apart."""
        return self.token or self.owner

    @property
    def label(self) -> str:
        """Owner, host and process in one text, safe to print. Java programs do not tell host and process."""
        host = "" if self.host == "?" else f"@{printable(self.host)}"
        process = f" pid {self.pid}" if self.pid else ""
        return f"{printable(self.owner)}{host}{process}"


class LockInfo(Seen):
    """The holders and waiters of one name at one moment: see `Client.inspect`.

    Attributes:
        name: The name, without the client's namespace.
        kind: `"mutex"`, `"rw"`, `"semaphore"`, `"election"` or `"striped"`; of a free name `"mutex"`.
        capacity: How many permits there are; 1 for a mutex.
        holders: Who holds it, in the order of the queue. Empty: it is free.
        waiters: Who waits for it, in the order of the queue.

    Example:
        >>> LockInfo(name="invoice:42").holders
        ()
    """

    name: str
    kind: str = "mutex"
    capacity: int = 1
    holders: tuple[Participant, ...] = ()
    waiters: tuple[Participant, ...] = ()


class Finding(NamedTuple):
    """One thing that `Client.doctor` found: a guarantee of the store as it is set up, or what endangers one.

    Attributes:
        level: `"about"`: which store this is, with the versions. `"promise"`: a guarantee. `"note"`: a limit to know
            of. `"danger"`: something to fix.
        what: What was found.
        fix: How to fix it; empty where there is nothing to fix.

    Example:
        >>> Finding("danger", "3 MB are left on the disk", "make room").fix
        'make room'
    """

    level: Literal["about", "promise", "note", "danger"]
    what: str
    fix: str = ""


def printable(text: object) -> str:
    """Untrusted text with control characters escaped, so that it cannot control a terminal."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in said)


def clip(text: object, most: int) -> str:
    """Untrusted text on one line, at most that long.

    >>> clip("\\x1b[2J", 20), clip("a" * 99, 6)
    ('\\\\x1b[2J', 'aaa...')
    """
    said = printable(str(text)[: most + 1])
    return said if len(said) <= most else said[: most - 3] + "..."


def instant(at: datetime) -> str:
    """In UTC, to the millisecond, as JSON has it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_since(then: datetime, now: datetime) -> float:
    return max((now - then).total_seconds(), 0.0)


def elapsed(one: Participant, now: datetime) -> float | None:
    """Seconds since it was granted the lock, or asked for it. None: not known."""
    return None if one.since == _LONG_AGO else seconds_since(one.since, now)


def begun(one: Participant) -> str | None:
    """Its `since` as JSON has it. None: not known."""
    return None if one.since == _LONG_AGO else instant(one.since)


def bounded(seconds: float) -> float:
    """The time left of a lease, whatever a damaged row says.

    >>> [bounded(left) for left in (5.0, -1.0, float("nan"))], bounded(float("inf")) < 1e10
    ([5.0, 0.0, 0.0], True)
    """
    return min(seconds, _LONGEST_LEFT) if seconds > 0 else 0.0


def who(one: Participant) -> str:
    """The participant in a few words, for example: ana@web-3 pid 4121 (deploy.sh)."""
    command = one.info.get("command")
    ran = f" ({clip(command, 80)})" if command else ""
    return f"{clip(one.label, 120)}{ran}"


class Break(NamedTuple):
    """The record of the last `dibs break` of a name, in a cell beside the lock (monitor/break_log.py writes it)."""

    at: datetime
    by: str
    host: str
    pid: int
    token: int
    """The token of the hold that was broken; 0: it had none."""
    holder: str
    reason: str

    @property
    def breaker(self) -> str:
        """For example: root@ci-7 pid 77."""
        return f"{clip(self.by, _LONGEST_WHO)}@{clip(self.host, _LONGEST_WHO)} pid {self.pid}"

    @property
    def why(self) -> str:
        return f"reason: {clip(self.reason, LONGEST_REASON)}" if self.reason else "no reason was given"

    @property
    def what(self) -> str:
        token = f"token {self.token} of " if self.token else ""
        return f"{token}{clip(self.holder, _LONGEST_HOLDER)}"

    def told(self, now: datetime) -> str:
        """One sentence, safe on a terminal."""
        return f"{duration((now - self.at).total_seconds())} ago by {self.breaker}: {self.what}; {self.why}"

    def shortened(self) -> Break:
        return self._replace(
            by=self.by[:_LONGEST_WHO],
            host=self.host[:_LONGEST_WHO],
            holder=self.holder[:_LONGEST_HOLDER],
            reason=self.reason[:LONGEST_REASON],
        )

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "at": instant(self.at), "token": self.token or None}


def break_cell(name: str) -> str:
    """The cell with the record of that lock."""
    return f"dibs:broken:{name}"


def read_break(value: bytes | None) -> Break | None:
    """None: there is no record, or the value is not one that `dibs break` wrote."""
    if value is None or len(value) > _LONGEST_RECORD:
        return None
    try:
        said = json.loads(value)
        at = datetime.fromisoformat(said["at"]).astimezone(UTC)
        if said["record"] != BREAK_MARK:
            return None
        found = Break(
            at, str(said["by"]), str(said["host"]), int(said["pid"]), int(said["token"]),
            str(said["holder"]), str(said["reason"]),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return found if max(abs(found.pid), abs(found.token)) < _TOO_LARGE else None


def show_command(name: str, *options: str) -> str:
    return command_line("show", name, *options)


def command_line(command: str, name: str, *options: str) -> str:
    """A command line to paste into a shell.

    >>> command_line("show", "invoice:42"), command_line("show", "a b", "--url", "redis://cache")
    ('dibs show invoice:42', "dibs show 'a b' --url redis://cache")
    >>> command_line("show", "--force", "--url", "redis://cache")
    'dibs show --url redis://cache -- --force'
    """
    words = [*options, "--", name] if name.startswith("-") else [name, *options]
    return " ".join(["dibs", command, *(quote(printable(word)) for word in words)])


def read_description(text: str) -> dict[str, Any]:
    """Parse the description of a claim; anything malformed becomes unknown, and raises nothing."""
    said: object = None
    if len(text) <= _LONGEST_DESCRIPTION:
        with suppress(ValueError, RecursionError):
            said = _JSON.decode(text)
    if not isinstance(said, dict):
        said = {}
    pid, info = said.get("pid"), said.get("info")
    return {
        "owner": str(said.get("owner", "?")),
        "host": str(said.get("host", "?")),
        "pid": pid if isinstance(pid, int) and not isinstance(pid, bool) else 0,
        "thread": str(said.get("thread", "")),
        "info": info if isinstance(info, dict) else {},
    }


def write_description(owner: str, host: str, pid: int, thread: str, info: Mapping[str, Any]) -> str:
    """The description of a claim, as JSON, for the store."""
    try:
        text = json.dumps(
            {"owner": owner, "host": host, "pid": pid, "thread": thread, "info": dict(info)}, allow_nan=False
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"info must be a small dict that can be written as JSON: {error}") from None
    if len(text) > _LONGEST_DESCRIPTION:
        raise ValueError(f"info is too large: {len(text)} characters as JSON, at most {_LONGEST_DESCRIPTION}")
    return text


def duration(seconds: float) -> str:
    """A length of time for people.

    >>> duration(5), duration(0.25), duration(192), duration(7260)
    ('5 s', '0.25 s', '3m12s', '2h1m')
    """
    if seconds < 60:
        return f"{round(max(seconds, 0.0), 2):g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"


def busy_text(info: LockInfo, own_token: int | None, now: datetime, is_me: Callable[[str, int], bool]) -> str:
    """The first holder, since when it holds, and the number of claims ahead: the middle of every busy message."""
    ahead = [p for p in (*info.holders, *info.waiters) if own_token is None or p.token < own_token]
    if not ahead:
        return "nobody holds it any more"
    first = ahead[0]
    you = " (this process)" if is_me(first.host, first.pid) else ""
    text = f"held by {first.label}{you}"
    age = elapsed(first, now)
    if age is not None:
        text += f" for {duration(age)}"
    if first.token:
        text += f" (token {first.token})"
    if len(info.holders) > 1:
        text += f" and {len(info.holders) - 1} more"
    return f"{text}, {len(ahead)} ahead of you"
