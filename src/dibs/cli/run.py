"""`dibs run NAME -- COMMAND ...`: run a command while holding a lock.

Statuses: the command's own (128 + n: by signal n; 126 and 127 as `env`), 64 usage, 69 store unreachable, 75 busy or
timed out (0 with --skip, or --busy-exit-code), 76 lock lost. The processes: we take the lock and renew it, the command
runs in a process group of its own (child.py), and a guard kills that group if we cannot (guard.py).

Limits: what the command moves into another process group or session (a daemon, the jobs of an interactive shell) goes
on without the lock. So does a command that runs as another user (setuid), if we are killed: we may not kill it.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import dibs
from dibs import faces
from dibs.blocking import LockOptions
from dibs.cli import options as given
from dibs.cli.about import shown
from dibs.cli.child import CannotRun, Child
from dibs.cli.guard import Guard
from dibs.cli.options import Parser, add_store, connect, here_only, pairs
from dibs.cli.signals import Signalled, Signals
from dibs.cli.system import let_go_of_streams
from dibs.cli.talk import BUSY, BY_SIGNAL, LOST, OK, lock_object, say
from dibs.cli.terminal import Terminal, end_by_interrupt
from dibs.cli.vigil import MAX_HOLD, SILENCE, STANDSTILL, TAKEN_AWAY, Vigil
from dibs.cli.waiting import Narrator, in_the_way
from dibs.info import duration, printable, show_command

Acquire = Callable[[], dibs.Hold | None]


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    signals = Signals()
    with connect(
        options, "run", lease=options.lease, info={"command": shown(options.command), **options.info}
    ) as client:
        acquire = _asking(client, options, signals.ring)
        with (
            closing(Child(options.command)) as child,
            closing(Guard(child.group)) as guard,
            signals,
            closing(Terminal()) as terminal,
        ):
            let_go_of_streams()
            vigil = Vigil(child, guard, terminal, signals, options.lease, options.max_hold)
            status = _run(options, client, acquire, vigil)
    if terminal.there and status == BY_SIGNAL + signal.SIGINT and (vigil.interrupted or vigil.by_ctrl_c):
        end_by_interrupt(everybody=not vigil.interrupted)
    return status


def _run(options: argparse.Namespace, client: dibs.Client, acquire: Acquire, vigil: Vigil) -> int:
    try:
        vigil.signals.interrupt(True)
        hold = _wait(options, client, acquire)
        vigil.signals.interrupt(False)
    except Signalled as came:
        vigil.interrupted = came.number == signal.SIGINT
        return BY_SIGNAL + came.number
    if hold is None:
        return _busy(options, client)
    told: list[tuple[str, str]] = []  # what is said waits for the release: nobody may be reading
    try:
        status = _execute(options, hold, vigil)
        if not vigil.cause and (others := vigil.child.leaves_others()):
            told.append(("left-behind", f"the command left others behind, who go on without the lock: {others}"))
    except CannotRun as error:
        word = options.command[0]
        told.append(("cannot-run", f"{word!a} cannot be run: {error}{_hint(word, error)}"))
        status = error.status
    except dibs.LockLost:  # in the instant before it could begin
        status = LOST
    status = _give_back(options, client, hold, vigil, status)
    for event, text in told:
        _tell(options, event, text)
    return status


def _hint(word: str, error: CannotRun) -> str:
    """What most likely was meant."""
    if error.number == errno.ENOEXEC:
        return ": it has no #! line"
    if error.number != errno.ENOENT:
        return ""
    if os.path.exists(word):  # noqa: PTH110  (pathlib is slow to import)
        return ": the interpreter that its #! line names is not there" if "/" in word else f": write ./{word}"
    return ": no shell is used, so write -- sh -c '...', or env A=B ..." if " " in word or "=" in word else ""


def _wait(options: argparse.Namespace, client: dibs.Client, acquire: Acquire) -> dibs.Hold | None:
    if options.json or options.skip or options.timeout == 0:
        return acquire()
    with Narrator(client, options.name, here_only(options), say):
        return acquire()


def _execute(options: argparse.Namespace, hold: dibs.Hold, vigil: Vigil) -> int:
    vigil.terminal.lend(vigil.child.group)
    try:
        vigil.begin(hold)
        vigil.child.execute(_environment(options, hold))
        vigil.keep(hold)
    finally:
        vigil.terminal.take_back()
    assert vigil.child.status is not None
    return vigil.child.status


def _environment(options: argparse.Namespace, hold: dibs.Hold) -> dict[str, str]:
    """What the command sees beside its own environment; a password in DIBS_URL stays here, unless asked for."""
    said = {
        "DIBS_NAME": os.fsdecode(hold.name.encode()),  # the same bytes in every locale
        "DIBS_TOKEN": str(hold.token),
        "DIBS_OWNER": hold.owner,
        "DIBS_LEASE": f"{options.lease:.15g}",
    }
    url = os.environ.get("DIBS_URL")
    if url and not options.pass_url:
        try:
            said["DIBS_URL"] = faces.without_secret(url)
        except ValueError:  # --url was given beside it. Whoever uses it finds it broken, and no other store instead
            said["DIBS_URL"] = "***"
    return said


def _give_back(options: argparse.Namespace, client: dibs.Client, hold: dibs.Hold, vigil: Vigil, status: int) -> int:
    lost = bool(vigil.cause) or hold.lost.is_set()
    try:
        hold.release()
    except dibs.LockLost:
        lost = True
    except dibs.StoreError as error:
        _tell(options, "not-given-back", f"{error}; it ends by its lease, within {duration(options.lease)}")
    if not lost:
        return status
    text = f'"{printable(options.name)}": {_why(options, client, hold, vigil)} (token {hold.token})'
    _tell(options, "lost", text, cause=vigil.cause, token=hold.token, status=vigil.child.status)
    return LOST


def _why(options: argparse.Namespace, client: dibs.Client, hold: dibs.Hold, vigil: Vigil) -> str:
    """What became of the lock, and of the command."""
    if vigil.child.status is None:
        return "lost before the command began"
    if not vigil.cause:
        return f"lost{_by_whom(client, hold)} while the command ran, which ended by itself with {vigil.child.status}"
    return {
        TAKEN_AWAY: f"taken away{_by_whom(client, hold)}, and the command was ended",
        MAX_HOLD: f"held for its --max-hold, {duration(options.max_hold or 0)}, and the command was ended",
        SILENCE: "lost, as the store did not confirm it in time, and the command was ended",
        STANDSTILL: "lost, as dibs run stood still for longer than the lease, and the command was killed",
    }[vigil.cause]


def _by_whom(client: dibs.Client, hold: dibs.Hold) -> str:
    from dibs.cli import breaks  # noqa: PLC0415  (not needed to start)

    last = breaks.last(client, hold.name)
    return f" by {last.breaker} ({last.why})" if last is not None and last.token == hold.token else ""


def _busy(options: argparse.Namespace, client: dibs.Client) -> int:
    if options.skip:
        return OK
    try:
        info = client.inspect(options.name)
    except dibs.StoreError:  # it was busy a moment ago: that is what counts
        info = dibs.LockInfo(name=options.name)
    after = f" after {duration(options.timeout)}" if options.timeout else ""
    text = f'"{printable(options.name)}"{here_only(options)}: not free{after}: {in_the_way(info)}'
    _tell(options, "busy", f"{text}. Next: {show_command(options.name)}", **lock_object(info))
    return int(options.busy_exit_code)


def _tell(options: argparse.Namespace, event: str, text: str, **facts: Any) -> None:
    """To stderr: stdout is the command's."""
    if options.json:
        say(json.dumps({"event": event, "name": options.name, "text": text, **facts}))
    else:
        say(text, command="run")


def _asking(client: dibs.Client, options: argparse.Namespace, on_lost: Callable[[dibs.Hold], object]) -> Acquire:
    """The kind of lock that is asked for."""
    more: LockOptions = {"timeout": options.timeout, "max_hold": options.max_hold, "on_lost": on_lost}
    if options.of is not None:
        return partial(client.semaphore(options.name, options.of, **more).acquire, options.permits)
    if options.shared:
        return client.rwlock(options.name, **more).read.acquire
    if options.exclusive:
        return client.rwlock(options.name, **more).write.acquire
    return client.lock(options.name, **more).acquire


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    before, command = _split(arguments)
    parser = _parser()
    options, odd = parser.parse_known_args(before)
    if odd:
        hint = "" if odd[0].startswith("-") else "; the command stands behind --: dibs run NAME -- COMMAND ..."
        parser.error(f"unrecognized: {' '.join(odd)}{hint}")
    if options.name is None:  # a name that looks like an option: dibs run -- --force -- command
        if len(command) < 2 or command[1] != "--":
            parser.error("give the lock's name, then -- and the command")
        try:
            options.name, command = given.name(command[0]), command[2:]
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
    options.command = command
    if not command:
        parser.error("give the command behind --")
    if options.skip or options.try_once:
        if options.try_once and options.timeout is not None:
            parser.error("-n tries once: it goes without --timeout")
        options.timeout = options.timeout or 0.0
    if options.permits is not None and options.of is None:
        parser.error("--permits N needs --of M: how many there are")
    if options.of is not None and (options.shared or options.exclusive):
        parser.error("--of M is for a semaphore, --shared and --exclusive for a read-write lock")
    options.permits = 1 if options.permits is None else options.permits
    options.info = pairs(options.info)
    return options


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _parser() -> Parser:
    parser = Parser(
        "run",
        usage="dibs run NAME [options] -- COMMAND ...",
        description="Run a command while holding a lock. The status is the command's, or 64 usage, 69 store\n"
        "unreachable, 75 busy, 76 lock lost, 126/127 the command cannot be run / is not there.",
        epilog="The command sees DIBS_NAME, DIBS_TOKEN (the fencing token), DIBS_OWNER and DIBS_LEASE.\n\n"
        "  dibs run deploy --timeout 5m -- ./deploy.sh v8\n  dibs run report:nightly --skip -- ./report",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", type=given.name, help="the lock")
    busy = parser.add_argument_group("when it is busy (default: wait for ever)")
    busy.add_argument("--timeout", metavar="S", type=given.time, help="wait so long, then 75 (30, 500ms, 5m, 2h)")
    busy.add_argument("-n", "--try-once", action="store_true", help="do not wait: 75 at once")
    busy.add_argument(
        "--skip",
        action="store_true",
        help="busy is no failure: do nothing, status 0 (waits first if --timeout is given)",
    )
    busy.add_argument("--busy-exit-code", metavar="N", type=_status, default=BUSY, help="instead of 75")
    kind = parser.add_argument_group("what is taken (default: a plain lock)")
    side = kind.add_mutually_exclusive_group()
    side.add_argument("--shared", action="store_true", help="the read side of a read-write lock")
    side.add_argument("--exclusive", action="store_true", help="the write side of a read-write lock")
    kind.add_argument("--permits", metavar="N", type=int, help="so many permits of a semaphore (default: 1)")
    kind.add_argument("--of", metavar="M", type=int, help="a semaphore that has so many")
    hold = parser.add_argument_group("how it is held")
    hold.add_argument(
        "--lease",
        metavar="S",
        type=given.time,
        default=30.0,
        help="how long the lock stays ours if we hang or lose the store (default: 30)",
    )
    hold.add_argument("--max-hold", metavar="S", type=given.time, help="end the command at that age of the hold")
    hold.add_argument("--info", metavar="K=V", action="append", default=[], help="shown to others; several times")
    hold.add_argument("--pass-url", action="store_true", help="the command sees DIBS_URL with its password")
    add_store(parser)
    return parser


def _status(text: str) -> int:
    if not text.isdecimal() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"an exit status is 0 to 255, not {text!a}")
    return int(text)
