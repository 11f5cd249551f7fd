"""`dibs break NAME --token N`: take a lock away from the holder with that token, and from no other.

It shows whom it concerns and asks, on the terminal; `--yes` is for those who have none. The store compares the token
once more: a lock that has moved on stays as it is. Who broke it and why goes to stderr, to the system's log where there
is one, and on record in the store (breaks.py).

Statuses: 0 broken, 1 not (another token, or the answer was no), 64 nobody to ask and no --yes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import dibs
from dibs.cli import breaks
from dibs.cli import options as given
from dibs.cli.options import Parser, UsageError, add_store, connect
from dibs.cli.talk import (
    NO,
    OK,
    UNREACHABLE,
    age,
    describe,
    host,
    lock_object,
    put_json,
    say,
    who,
    whose,
)
from dibs.faces import login, place
from dibs.info import Break, LockInfo, Participant, clip, duration

_MEANING = """\
Breaking it lets the next one in at once. This holder is told at its next renewal, at the latest after a third of its
lease; until then it goes on as if it held the lock, and only the token protects the resource from it."""
_MOST_NAMED = 5
_LONGEST_LOGGED = 2000


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if not (options.yes or _terminal()):
        raise UsageError("there is no terminal to ask on: say --yes if you are sure")
    with connect(options, "break") as client:
        info = client.inspect(options.name)
        holder = next((one for one in info.holders if one.token == options.token), None)
        if holder is None:
            return _refuse(options, info, place(client))
        if not (options.yes or _agreed(info, holder, place(client))):
            return _answer(options, info, broken=None, text="not broken: nothing was changed")
        broken = _break(holder, options.reason)
        what = f"by {broken.breaker}: {broken.what}; {broken.why}"
        try:
            client.break_(options.name, token=options.token)
        except dibs.NotHeld as error:
            return _refuse(options, error.info or client.inspect(options.name), place(client))
        except dibs.StoreUnavailable as error:
            _log(f'"{options.name}" on {place(client)}: perhaps broken, without an answer, {what}')
            say(f"{error}. Whether it was broken is not known: look again", command="break")
            return UNREACHABLE
        said = f'"{options.name}" on {place(client)}: broken {what}'
        _log(said)
        breaks.record(client, options.name, broken)
        return _answer(options, info, broken, said)


def _break(holder: Participant, reason: str) -> Break:
    now = datetime.now(UTC)
    held = f"{who(holder)}, held for {age(holder.since, now)}"
    return Break(now, login(), host(), os.getpid(), holder.token, held, reason)


def _refuse(options: argparse.Namespace, info: LockInfo, store: str) -> int:
    now = datetime.now(UTC)
    held = ", ".join(f"{describe(one, now)} (token {one.token})" for one in info.holders[:_MOST_NAMED])
    more = f" and {len(info.holders) - _MOST_NAMED} more" if len(info.holders) > _MOST_NAMED else ""
    there = f"held by {held}{more}" if held else "it is free"
    if any(one.token == options.token for one in info.waiters):
        there += "; that one waits, and a waiter is ended with its process"
    text = f'"{info.name}" on {store}: nobody holds it with token {options.token}: {there}. Nothing was changed'
    return _answer(options, info, broken=None, text=text)


def _answer(options: argparse.Namespace, info: LockInfo, broken: Break | None, text: str) -> int:
    """What came of it; in JSON the line as it was seen last."""
    say(text, command="break")
    if options.json:
        put_json({"broken": None if broken is None else broken.to_json(), **lock_object(info)})
    return NO if broken is None else OK


def _terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _agreed(info: LockInfo, holder: Participant, store: str) -> bool:
    now = datetime.now(UTC)
    say(f'"{info.name}" on {store}')
    say(f"held by {describe(holder, now)}{whose(info.name, holder)}")
    say(f"token {holder.token}, {duration(holder.remaining)} of its lease left")
    behind = [describe(one, now) for one in info.waiters]
    if behind:
        say(f"{len(behind)} waiting: {', '.join(behind[:_MOST_NAMED])}{', ...' if len(behind) > _MOST_NAMED else ''}")
    else:
        say("nobody waits")
    say(_MEANING)
    say(f"Safer, if it lives: end pid {holder.pid} on {clip(holder.host, 80)}. Then nobody overlaps.")
    sys.stderr.write("break it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _log(text: str) -> None:
    """To the system's log: where there is none, nobody hears it, and that is no error."""
    try:
        import syslog  # noqa: PLC0415  (not everywhere)
    except ImportError:
        return
    syslog.openlog("dibs", syslog.LOG_PID, syslog.LOG_AUTH)
    syslog.syslog(syslog.LOG_NOTICE, clip(text, _LONGEST_LOGGED))
    syslog.closelog()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("break", description="Take a lock away from the holder with that token.")
    parser.add_argument("name", metavar="NAME", type=given.name, help="the lock")
    parser.add_argument("--token", metavar="N", type=int, required=True, help="the holder's, as dibs show prints it")
    parser.add_argument("--reason", metavar="TEXT", default="", help="is logged and kept")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_store(parser)
    return parser.parse_args(arguments)
