"""`dibs watch NAME`: print the state of a lock, then one line for each change, until Ctrl-C.

With `--prefix` it does so for every lock whose name begins with that text. It reads the store five times a second and
prints the differences: who took the lock, whose hold ended (the queue does not say why), who joined the queue, who left
it. It misses changes that are undone between two reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import dibs
from dibs._shared import place
from dibs.cli.options import Parser, UsageError, add_name, add_store, connect, lock_name
from dibs.cli.output import OK, age, held_by, lock_object, participant_object, put, put_json, same, say, unheld
from dibs.cli.polling import POLL_TIMEOUT, poll
from dibs.info import LockInfo, Participant, clip, instant, who

_LONGEST_NAME = 60


class Change(NamedTuple):
    event: str
    one: Participant | None
    """The participant concerned; None: the lock itself ("state")."""


def parser() -> Parser:
    made = Parser("watch", description="Print the state of a lock, then each change, until Ctrl-C.")
    add_name(made, nargs="?")
    made.add_argument(
        "--prefix",
        metavar="TEXT",
        type=lock_name,
        help="watch every lock whose name begins with TEXT, instead of one; '' watches all locks",
    )
    add_store(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if (options.name is None) == (options.prefix is None):
        raise UsageError("give the name of one lock, or --prefix TEXT (see dibs watch --help)")
    with connect(options, "watch", retry=POLL_TIMEOUT) as client:
        if options.prefix is not None and not options.json:
            which = f' whose names begin with "{options.prefix}"' if options.prefix else ""
            say(f"watching all locks on {place(client)}{which}", command="watch")
        before: dict[str, LockInfo] | None = None
        for after in poll(lambda: _read(client, options.name, options.prefix), "watch"):
            now = datetime.now(UTC)
            for info, change in differences(before, after):
                if options.json:
                    put_json(_object(change, info, now))
                else:
                    name = "" if options.prefix is None else f'"{clip(info.name, _LONGEST_NAME)}": '
                    put(f"{now.astimezone():%H:%M:%S}.{now.microsecond // 1000:03}  {name}{_said(change, info, now)}")
            before = after
    return OK


def _read(client: dibs.Client, name: str | None, prefix: str | None) -> dict[str, LockInfo]:
    found = [client.inspect(name)] if name is not None else client.locks(prefix or "")
    return {info.name: info for info in found}


def differences(before: dict[str, LockInfo] | None, after: dict[str, LockInfo]) -> Iterator[tuple[LockInfo, Change]]:
    """The changes of every lock. A name that is not listed is free."""
    if before is None:
        yield from ((info, Change("state", None)) for info in after.values())
        return
    for name in sorted(before.keys() | after.keys()):
        free = LockInfo(name=name)
        info = after.get(name, free)
        yield from ((info, change) for change in changes(before.get(name, free), info))


def changes(before: LockInfo, after: LockInfo) -> Iterator[Change]:
    """The changes of one lock; participants that went come first, as they made room for the others."""
    there = _keys(after.holders) | _keys(after.waiters)
    held, waited = _keys(before.holders), _keys(before.waiters)
    found = [Change("ended", one) for one in before.holders if one.key not in there]
    found += [Change("left", one) for one in before.waiters if one.key not in there]
    found += [Change("took", one) for one in after.holders if one.key not in held]
    found += [Change("joined", one) for one in after.waiters if one.key not in held | waited]
    yield from found
    if not found and _weights(before) != _weights(after):
        yield Change("state", None)


def _keys(some: Sequence[Participant]) -> set[int | str]:
    return {one.key for one in some}


def _weights(info: LockInfo) -> list[int]:
    """A hold may become lighter: a writer may downgrade to a reader."""
    return [one.weight for one in (*info.holders, *info.waiters)]


def _said(change: Change, info: LockInfo, now: datetime) -> str:
    event, one = change
    if one is None:
        return _state(info, now)
    after = f", after {ago}" if (ago := age(one, now)) else ""
    token = f", token {one.token}" if one.token else ""
    said = {
        "took": f"took it{token}",
        "ended": f"no longer holds it{after}{token}",
        "joined": "joined the queue",
        "left": f"left the queue{after}",
    }
    state = f"{len(info.waiters)} waiting" if event == "took" and len(info.holders) == 1 else _state(info, now)
    return f"{who(one)}{same(info.name, one)} {said[event]}; {state}"


def _state(info: LockInfo, now: datetime) -> str:
    held = held_by(info.name, info.holders, now) if info.holders else unheld(info)
    return f"{held}; {len(info.waiters)} waiting"


def _object(change: Change, info: LockInfo, now: datetime) -> dict[str, object]:
    about = {} if change.one is None else {"participant": participant_object(change.one)}
    return {"at": instant(now), "event": change.event, **about, **lock_object(info)}
