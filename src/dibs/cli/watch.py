"""`dibs watch NAME`: first the line as it is, then one line of text for each change in it, until Ctrl-C.

It looks five times a second and tells what is different: who took it, whose hold ended (given back, run out or broken:
the line does not say), who joined, who left. What came and went between two looks is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from dibs.cli import options as given
from dibs.cli.looking import ONE_LOOK, looks
from dibs.cli.options import Parser, add_store, connect
from dibs.cli.talk import OK, age, held_by, instant, lock_object, participant_object, put, put_json, who, whose
from dibs.info import LockInfo, Participant


class Change(NamedTuple):
    event: str
    one: Participant | None
    """Whom it is about; None: the line itself ("state")."""


def main(arguments: Sequence[str]) -> int:
    parser = Parser("watch", description="Follow one lock as its line moves, until Ctrl-C.")
    parser.add_argument("name", metavar="NAME", type=given.name, help="the lock")
    add_store(parser)
    options = parser.parse_args(arguments)
    before: LockInfo | None = None
    with connect(options, "watch", retry=ONE_LOOK) as client:
        for info in looks(client, options.name, "watch"):
            now = datetime.now(UTC)
            for change in changes(before, info):
                if options.json:
                    put_json(_object(change, info, now))
                else:
                    put(_text(change, info, now))
            before = info
    return OK


def changes(before: LockInfo | None, after: LockInfo) -> Iterator[Change]:
    """What is different; those who went come first, as they made room for the others."""
    if before is None:
        yield Change("state", None)
        return
    there = _tokens(after.holders) | _tokens(after.waiters)
    held, waited = _tokens(before.holders), _tokens(before.waiters)
    found = [Change("ended", one) for one in before.holders if one.token not in there]
    found += [Change("left", one) for one in before.waiters if one.token not in there]
    found += [Change("took", one) for one in after.holders if one.token not in held]
    found += [Change("joined", one) for one in after.waiters if one.token not in held | waited]
    yield from found
    if not found and _weights(before) != _weights(after):
        yield Change("state", None)


def _tokens(some: Sequence[Participant]) -> set[int]:
    return {one.token for one in some}


def _weights(info: LockInfo) -> list[int]:
    """A hold may become lighter: that of a writer who goes on as a reader."""
    return [one.weight for one in (*info.holders, *info.waiters)]


def _text(change: Change, info: LockInfo, now: datetime) -> str:
    return f"{now.astimezone():%H:%M:%S}.{now.microsecond // 1000:03}  {_said(change, info, now)}"


def _said(change: Change, info: LockInfo, now: datetime) -> str:
    event, one = change
    if one is None:
        return _state(info, now)
    said = {
        "took": f"took it, token {one.token}",
        "ended": f"holds it no longer, after {age(one.since, now)}, token {one.token}",
        "joined": "joined the line",
        "left": f"left the line, after {age(one.since, now)}",
    }
    state = f"{len(info.waiters)} waiting" if event == "took" and len(info.holders) == 1 else _state(info, now)
    return f"{who(one)}{whose(info.name, one)} {said[event]}; {state}"


def _state(info: LockInfo, now: datetime) -> str:
    """The line in a few words."""
    return f"{held_by(info, now) if info.holders else 'free'}; {len(info.waiters)} waiting"


def _object(change: Change, info: LockInfo, now: datetime) -> dict[str, object]:
    about = {} if change.one is None else {"participant": participant_object(change.one)}
    return {"at": instant(now), "event": change.event, **about, **lock_object(info)}
