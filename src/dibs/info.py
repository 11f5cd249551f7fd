"""What anyone may see of a line: `LockInfo` and its `Participant`s, and the words in which errors speak of them.

Nothing here is a credential: claim ids never appear. What other processes wrote about themselves (`about`) is foreign
text: it is parsed with a size limit and its control characters are made visible before anyone prints them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

_LONGEST_ABOUT = 16_384
_LONG_AGO = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One claim in a line, holding or waiting.

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
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{printable(self.owner)}@{printable(self.host)} pid {self.pid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """A line as it stood when it was looked at; holders and waiters in line order.

    >>> LockInfo(name="invoice:42").holders
    ()
    """

    name: str
    kind: str = "mutex"
    capacity: int = 1
    holders: tuple[Participant, ...] = ()
    waiters: tuple[Participant, ...] = ()


def printable(text: object) -> str:
    """Foreign text with control characters made visible, so that it cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def read_about(text: str) -> dict[str, Any]:
    """What a claim says of itself; anything that is not what we write is shown as unknown, never raised."""
    if len(text) > _LONGEST_ABOUT:
        return {}
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    pid, info = said.get("pid"), said.get("info")
    return {
        "owner": str(said.get("owner", "?")),
        "host": str(said.get("host", "?")),
        "pid": pid if isinstance(pid, int) else 0,
        "thread": str(said.get("thread", "")),
        "info": info if isinstance(info, dict) else {},
    }


def write_about(owner: str, host: str, pid: int, thread: str, info: Mapping[str, Any]) -> str:
    """The text that stands in the store beside a claim."""
    try:
        text = json.dumps({"owner": owner, "host": host, "pid": pid, "thread": thread, "info": dict(info)})
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"info must be a small dict that JSON can carry: {error}") from None
    if len(text) > _LONGEST_ABOUT:
        raise ValueError(f"info is too large: {len(text)} characters as JSON, at most {_LONGEST_ABOUT}")
    return text


def duration(seconds: float) -> str:
    """A length of time as people say it.

    >>> duration(5), duration(0.25), duration(192), duration(7260)
    ('5 s', '0.25 s', '3m12s', '2h1m')
    """
    if seconds < 60:
        return f"{round(max(seconds, 0.0), 2):g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"


def in_the_way(info: LockInfo, own_token: int | None, now: datetime, is_me: Callable[[str, int], bool]) -> str:
    """Who holds it, since when, and how many stand before us: the middle of every busy message."""
    ahead = [p for p in (*info.holders, *info.waiters) if own_token is None or p.token < own_token]
    if not ahead:
        return "nobody holds it any more"
    first = ahead[0]
    you = " (this process)" if is_me(first.host, first.pid) else ""
    since = duration((now - first.since).total_seconds())
    text = f"held by {first.label}{you} for {since} (token {first.token})"
    if len(info.holders) > 1:
        text += f" and {len(info.holders) - 1} more"
    return f"{text}, {len(ahead)} ahead of you"
