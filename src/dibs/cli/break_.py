"""`dibs break NAME --token N`: take a lock away from the holder with that token, and from no other.

It shows the holder and asks on the terminal; `--yes` is for callers without a terminal. The store compares the token
again, so a lock that has a new holder is not broken. The user and the reason are written to stderr, to syslog if there
is one, and into the store (break_log.py). Without a token, or with one that nobody holds, it lists the holders and the
command that breaks each. Where holders need not have tokens, `--holder ID` takes the place of `--token N`.

Exit status: 0 broken, 1 not broken (another token, or the answer was no), 64 no token, or no terminal and no --yes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import dibs
from dibs._shared import break_option, login, place
from dibs.cli.options import Parser, UsageError, add_name, add_store, connect, next_command
from dibs.cli.output import NO, OK, UNREACHABLE, USAGE, describe, hides_holders, lock_object, put_json, same, say
from dibs.info import Break, LockInfo, Participant, clip, duration
from dibs.monitor import break_log

_MEANING = """\
If you break it, the next waiter gets the lock at once. This holder learns of that at its next renewal, at most a third
of its lease later. Until then both may act, and {} protects the resource."""
_MOST_NAMED = 5


def parser() -> Parser:
    made = Parser(
        "break",
        description="Take a lock away from the holder with that token.\n"
        "Without --token, list the holders, and the command that breaks each.",
    )
    add_name(made)
    named = made.add_mutually_exclusive_group()
    named.add_argument("--token", metavar="N", type=int, help="the holder's token, as dibs show prints it")
    named.add_argument("--holder", metavar="ID", help="with layout=redisson, in place of --token: the holder's id")
    made.add_argument("--reason", metavar="TEXT", default="", help="why; logged and kept in the store (default: none)")
    made.add_argument("--yes", action="store_true", help="do not ask")
    add_store(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if (options.token, options.holder) != (None, None) and not (options.yes or _terminal()):
        raise UsageError("there is no terminal to ask on; add --yes if you are sure")
    with connect(options, "break") as client:
        info = client.inspect(options.name)
        option = break_option(client)
        given = options.holder if option == "--holder" else options.token
        if given is None:
            _refuse(options, info, client)
            return USAGE
        holder = next((one for one in info.holders if _id(one, option) == given), None)
        if holder is None:
            return _refuse(options, info, client)
        if not (options.yes or _agreed(info, holder, place(client))):
            return _answer(options, info, broken=None, text="not broken; nothing was changed")
        broken = break_log.describe(holder, options.reason, by=login())
        what = f"by {broken.breaker}: {broken.what}; {broken.why}"
        try:
            client.break_(options.name, token=options.token, holder=options.holder)
        except dibs.NotHeld as error:
            return _refuse(options, error.info or client.inspect(options.name), client)
        except dibs.StoreUnavailable as error:
            break_log.log(f'"{options.name}" on {place(client)}: perhaps broken, the store did not reply, {what}')
            step = next_command(options, "show", options.name)
            say(f"{error} (it is not known whether the lock was broken; look again: {step})", command="break")
            return UNREACHABLE
        said = f'"{options.name}" on {place(client)}: broken {what}'
        break_log.log(said)
        break_log.record(client, options.name, broken)
        return _answer(options, info, broken, said)


def _id(one: Participant, option: str) -> int | str:
    return one.owner if option == "--holder" else one.token


def _refuse(options: argparse.Namespace, info: LockInfo, client: dibs.Client) -> int:
    """Change nothing; list the holders, each with the command that breaks its hold."""
    now, option = datetime.now(UTC), break_option(client)
    given = options.holder if option == "--holder" else options.token
    why = f"no {option} was given" if given is None else f"nobody holds it with {option[2:]} {given}"
    if given is not None and any(_id(one, option) == given for one in info.waiters):
        why += " (that one waits; end its process to remove it from the queue)"
    state = "Held by:" if info.holders else "No holder is recorded." if hides_holders(info) else "It is free."
    lines = [f'"{info.name}" on {place(client)}: {why}. Nothing was changed. {state}']
    for one in info.holders[:_MOST_NAMED]:
        token = f", token {one.token}" if one.token else ""
        lines.append(f"  {describe(one, now)}{same(info.name, one)}{token}")
        lines.append(f"    {next_command(options, 'break', info.name, option, str(_id(one, option)))}")
    if more := len(info.holders) - _MOST_NAMED:
        lines += [f"  and {more} more: {next_command(options, 'show', info.name)}"] if more > 0 else []
    return _answer(options, info, broken=None, text="\n".join(lines))


def _answer(options: argparse.Namespace, info: LockInfo, broken: Break | None, text: str) -> int:
    """Print the result; in JSON with the lock as it was last seen."""
    say(text, command="break")
    if options.json:
        put_json({"broken": None if broken is None else broken.to_json(), **lock_object(info)})
    return NO if broken is None else OK


def _terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _agreed(info: LockInfo, holder: Participant, store: str) -> bool:
    now = datetime.now(UTC)
    say(f'"{info.name}" on {store}')
    say(f"held by {describe(holder, now)}{same(info.name, holder)}")
    token = f"token {holder.token}, " if holder.token else ""
    say(f"{token}{duration(holder.remaining)} of its lease left")
    behind = [describe(one, now) for one in info.waiters]
    if behind:
        say(f"{len(behind)} waiting: {', '.join(behind[:_MOST_NAMED])}{', ...' if len(behind) > _MOST_NAMED else ''}")
    else:
        say("nobody is waiting")
    say(_MEANING.format("only the fencing token" if holder.token else "nothing"))
    process = f"pid {holder.pid} on {clip(holder.host, 80)}" if holder.pid else "its process"
    say(f"It is safer to end {process}: then no two holders overlap.")
    sys.stderr.write("break it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
