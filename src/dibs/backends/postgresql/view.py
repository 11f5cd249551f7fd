"""What onlookers see in session mode: who has a key, and who waits for it, as the server itself knows.

A session of ours says who it is in its application_name, which every role may read: the routine writes the token and
since when, and we write the lease, the owner, the host and the process, in the 63 bytes there are. What else a claim
says of itself is not to be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any

from dibs.backends.postgresql.answers import strange
from dibs.backends.postgresql.link import MICROSECONDS, Call, rows
from dibs.backends.postgresql.port import Port, words_of
from dibs.info import LockInfo, Participant, read_about

_ROOM = 63 - len("dibs 1794821716781994 1000 ")
"""Bytes behind the token and its time."""


@lru_cache(1024)
def label(about: str, lease: float) -> bytes:
    """What stands behind the token in application_name: `30 ana@web-3:4121`."""
    said = read_about(about)
    head, tail = f"{lease:g} ", f":{said['pid']}"
    who = "".join(c if " " <= c < "\x7f" else "?" for c in f"{said['owner']}@{said['host']}")
    return f"{head}{who[: _ROOM - len(head) - len(tail)]}{tail}".encode()


async def line(port: Port, name: str, until: float) -> LockInfo:
    return next(iter(await _seen(port, (name, "", ""), until)), LockInfo(name=name))


async def lines(port: Port, prefix: str, after: str, until: float) -> list[LockInfo]:
    """All of them are one page: there are no more than connections."""
    return await _seen(port, ("", prefix, after), until)


async def evict(port: Port, name: str, token: int, until: float) -> bool:
    """End the session that holds with that token."""
    result, is_repeated = await port.ask_often(Call(port.routines.oust, (name.encode(), b"%d" % token)), until)
    return words_of(result)[1] == b"1" or is_repeated


async def _seen(port: Port, which: Sequence[str], until: float) -> list[LockInfo]:
    result, _ = await port.ask_often(Call(port.routines.seen, [word.encode() for word in which]), until)
    try:
        return [_info(list(several)) for _, several in groupby(rows(result), lambda row: row[1])]
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise strange() from None


def _info(several: list[list[Any]]) -> LockInfo:
    _, name, kind, capacity, *_ = several[0]
    holders = tuple(_participant(row) for row in several if row[4] == b"t")
    waiters = tuple(_participant(row) for row in several if row[4] != b"t")
    return LockInfo(
        name=name.decode(), kind=kind.decode(errors="replace"), capacity=int(capacity), holders=holders, waiters=waiters
    )


def _participant(row: list[Any]) -> Participant:
    now, _, _, capacity, _, exclusive, _, token, said, since, about, login, quiet = row
    lease, _, who = (said or b"").decode(errors="replace").partition(" ")
    place, _, process = who.rpartition(":")
    owner, _, host = place.rpartition("@")
    if about:
        known = read_about(about.decode(errors="replace"))
    elif owner:
        known = {"owner": owner, "host": host, "pid": int(process) if process.isdigit() else 0}
    else:
        known = {"owner": (login or b"?").decode(errors="replace")}
    ago = max(int(now) - int(since), 0) if int(since) else 0
    return Participant(
        **known, token=int(token), weight=int(capacity) if exclusive == b"t" else 1,
        since=datetime.now(UTC) - timedelta(microseconds=ago),
        remaining=max(_number(lease) - int(quiet or 0) / MICROSECONDS, 0.0),
    )  # fmt: skip


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
