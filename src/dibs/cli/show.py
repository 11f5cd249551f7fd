"""`dibs show NAME`: the holders of a lock and its queue, in order, with everything known about them.

A name that nobody holds is free. That is no error: the exit status is 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from dibs._shared import place
from dibs.cli.ls import kind, share
from dibs.cli.options import Parser, add_name, add_store, connect
from dibs.cli.output import OK, age, lock_object, ordinal, put, put_json, same, unheld
from dibs.info import Break, LockInfo, Participant, clip, duration
from dibs.monitor import break_log

_LONGEST_VALUE, _LONGEST_INFO = 200, 1000


def parser() -> Parser:
    made = Parser("show", description="Show the holders of one lock, and its queue in order.")
    add_name(made)
    add_store(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    with connect(options, "show") as client:
        info, broken, store = client.inspect(options.name), break_log.last(client, options.name), place(client)
    if options.json:
        put_json({**lock_object(info), "last_break": None if broken is None else broken.to_json()})
    else:
        for line in _lines(info, store, broken, datetime.now(UTC)):
            put(line)
    return OK


def _lines(info: LockInfo, store: str, broken: Break | None, now: datetime) -> Iterator[str]:
    if info.holders or info.waiters:
        yield f'"{info.name}" on {store}: {kind(info)}, {len(info.holders)} holding, {len(info.waiters)} waiting'
    else:
        yield f'"{info.name}" on {store}: {unheld(info)}'
    for one in info.holders:
        yield from _participant("holds", info, one, now, _hold(info, one))
    for at, one in enumerate(info.waiters, 1):
        yield from _participant(ordinal(at), info, one, now, ())
    if broken is not None:
        yield f"last broken: {broken.told(now)}"


def _participant(at: str, info: LockInfo, one: Participant, now: datetime, hold: Iterable[str]) -> Iterator[str]:
    thread = f" thread {clip(one.thread, 60)}" if one.thread not in ("", "MainThread") else ""
    yield f"{at:<6} {clip(one.label, 120)}{thread}{same(info.name, one)}"
    if command := one.info.get("command"):
        yield f"       command  {clip(command, _LONGEST_VALUE)}"
    if ago := age(one, now):
        yield f"       since    {ago} ago ({one.since.astimezone():%Y-%m-%d %H:%M:%S %Z})"
    yield from hold
    if info.kind == "semaphore":
        yield f"       permits  {one.weight} of {info.capacity}"
    if said := _info(one):
        yield f"       info     {said}"


def _hold(info: LockInfo, one: Participant) -> Iterator[str]:
    """Lines that a waiter does not have."""
    side = f" ({share(info, one)})" if info.kind == "rw" else ""
    yield f"       lease    {duration(one.remaining)} left"
    if one.token:
        yield f"       token    {one.token}{side}"
    elif side:
        yield f"       side     {share(info, one)}"


def _info(one: Participant) -> str:
    pairs = (
        f"{clip(key, _LONGEST_VALUE)}={clip(_value(value), _LONGEST_VALUE)}"
        for key, value in one.info.items()
        if key != "command"
    )
    return clip(" ".join(pairs), _LONGEST_INFO)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
