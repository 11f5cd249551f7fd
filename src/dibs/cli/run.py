"""`dibs run NAME -- COMMAND ...`: run a command while holding a lock.

Exit status: the command's own (128 + n: by signal n; 126 and 127 as `env`), 64 usage, 69 store unreachable, 75 busy or
timed out (0 with --skip, or --busy-exit-code), 76 lock lost. The processes: we take the lock and renew it, the command
runs in a process group of its own, and a guard kills that group if we cannot (both in child.py).

Limits: a process that the command moves into another process group or session (a daemon, the jobs of an interactive
shell) continues without the lock. So does a command that runs as another user (setuid) if we are killed: we may not
kill it.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import dibs
from dibs import _shared
from dibs.cli.child import CannotRun, Child, Guard
from dibs.cli.description import describe_command
from dibs.cli.options import (
    Parser,
    add_name,
    add_seconds,
    add_store,
    connect,
    here_only,
    lock_name,
    next_command,
    pairs,
)
from dibs.cli.output import BUSY, BY_SIGNAL, LOST, OK, lock_object, redirect_to_null, report, say
from dibs.cli.signals import Signalled, Signals
from dibs.cli.supervise import BROKEN, MAX_HOLD, STANDSTILL, UNREACHABLE, Supervision
from dibs.cli.terminal import Terminal, end_by_interrupt
from dibs.cli.waiting import Narrator, describe_queue
from dibs.info import duration, printable

Acquire = Callable[[], dibs.Hold | None]


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    signals = Signals()
    info = {"command": describe_command(options.command), **options.info}
    with connect(options, "run", lease=options.lease, info=info) as client:
        acquire = _acquire_of(client, options, signals.wake)
        with (
            closing(Child(options.command)) as child,
            closing(Guard(child.group)) as guard,
            signals,
            closing(Terminal()) as terminal,
        ):
            redirect_to_null(0, 1)  # the command's pipes then close when the command closes them
            supervision = Supervision(child, guard, terminal, signals, options.lease, options.max_hold)
            status = _run(options, client, acquire, supervision)
    if terminal.there and status == BY_SIGNAL + signal.SIGINT and (supervision.interrupted or supervision.by_ctrl_c):
        end_by_interrupt(everybody=not supervision.interrupted)
    return status


def _run(options: argparse.Namespace, client: dibs.Client, acquire: Acquire, supervision: Supervision) -> int:
    try:
        supervision.signals.interrupt(True)
        hold = _wait(options, client, acquire)
        supervision.signals.interrupt(False)
    except Signalled as came:
        supervision.interrupted = came.number == signal.SIGINT
        return BY_SIGNAL + came.number
    if hold is None:
        return _busy(options, client)
    messages: list[tuple[str, str]] = []  # printed after the release: stderr may block
    try:
        status = _execute(options, hold, supervision)
        if not supervision.cause and (others := supervision.child.leaves_others()):
            messages.append(("left-behind", f"the command left processes that continue without the lock: {others}"))
    except CannotRun as error:
        word = options.command[0]
        messages.append(("cannot-run", f"{word!a} cannot be run: {error}{_hint(word, error)}"))
        status = error.status
    except dibs.LockLost:  # before the command started
        status = LOST
    status = _give_back(options, client, hold, supervision, status)
    for event, text in messages:
        _tell(options, event, text)
    return status


def _hint(word: str, error: CannotRun) -> str:
    if error.number == errno.ENOEXEC:
        return ": it has no #! line"
    if error.number != errno.ENOENT:
        return ""
    if os.path.exists(word):  # noqa: PTH110  (pathlib is slow to import)
        return ": the interpreter in its #! line does not exist" if "/" in word else f": write ./{word}"
    return ": dibs run uses no shell; write -- sh -c '...' or -- env A=B ..." if " " in word or "=" in word else ""


def _wait(options: argparse.Namespace, client: dibs.Client, acquire: Acquire) -> dibs.Hold | None:
    if options.json or options.skip or options.timeout == 0:
        return acquire()
    with Narrator(client, options.name, here_only(options), say):
        return acquire()


def _execute(options: argparse.Namespace, hold: dibs.Hold, supervision: Supervision) -> int:
    supervision.terminal.lend(supervision.child.group)
    try:
        supervision.begin(hold)
        supervision.child.execute(_environment(options, hold))
        supervision.watch(hold)
    finally:
        supervision.terminal.take_back()
    assert supervision.child.status is not None
    return supervision.child.status


def _environment(options: argparse.Namespace, hold: dibs.Hold) -> dict[str, str | None]:
    """Variables that are added to the command's environment, or removed from it (None). A password in DIBS_URL is
    removed, unless asked for."""
    token = _token(hold)
    said = {
        "DIBS_NAME": os.fsdecode(hold.name.encode()),  # the same bytes in every locale
        "DIBS_TOKEN": None if token is None else str(token),
        "DIBS_OWNER": hold.owner,
        "DIBS_LEASE": f"{options.lease:.15g}",
    }
    url = os.environ.get("DIBS_URL")
    if url and not options.pass_url:
        try:
            said["DIBS_URL"] = _shared.without_secret(url)
        except ValueError:  # we used --url. The command must fail with a bad DIBS_URL, not use another store
            said["DIBS_URL"] = "***"
    return said


def _token(hold: dibs.Hold) -> int | None:
    """None: this kind of lock has no token on this store."""
    try:
        return hold.token
    except dibs.Unsupported:
        return None


def _give_back(
    options: argparse.Namespace, client: dibs.Client, hold: dibs.Hold, supervision: Supervision, status: int
) -> int:
    lost = bool(supervision.cause) or hold.lost.is_set()
    try:
        hold.release()
    except dibs.LockLost:
        lost = True
    except dibs.StoreError as error:
        _tell(
            options, "not-released", f"{error} (the lock was not released; it expires within {duration(options.lease)})"
        )
    if not lost:
        return status
    token = _token(hold)
    text = f'"{printable(options.name)}": {_why(options, client, hold, supervision)}'
    text += "" if token is None else f" (token {token})"
    reason = supervision.cause or hold.lost_reason
    _tell(options, "lost", text, reason=reason, token=token, status=supervision.child.status)
    return LOST


def _why(options: argparse.Namespace, client: dibs.Client, hold: dibs.Hold, supervision: Supervision) -> str:
    """Why the lock was lost, and how the command ended."""
    if supervision.child.status is None:
        return "the lock was lost before the command started"
    if not supervision.cause:
        return (
            f"the lock was lost{_by_whom(client, hold)} while the command ran; "
            f"the command ended by itself with status {supervision.child.status}"
        )
    return {
        BROKEN: f"the lock was taken away{_by_whom(client, hold)}; the command was terminated",
        MAX_HOLD: f"the lock reached --max-hold ({duration(options.max_hold or 0)}); the command was terminated",
        UNREACHABLE: "the lock was lost because the store did not confirm its renewal; the command was terminated",
        STANDSTILL: "the lock was lost because dibs run was stopped for longer than the lease; the command was killed",
    }[supervision.cause]


def _by_whom(client: dibs.Client, hold: dibs.Hold) -> str:
    from dibs.monitor import break_log  # noqa: PLC0415  (not needed to start)

    last = break_log.last(client, hold.name)
    return f" by {last.breaker} ({last.why})" if last is not None and last.token == _token(hold) else ""


def _busy(options: argparse.Namespace, client: dibs.Client) -> int:
    if options.skip:
        return OK
    try:
        info = client.inspect(options.name)
    except dibs.StoreError:  # report busy, without the holder
        info = dibs.LockInfo(name=options.name)
    after = f" after {duration(options.timeout)}" if options.timeout else ""
    text = f'"{printable(options.name)}"{here_only(options)}: not free{after}: {describe_queue(info)}'
    _tell(options, "busy", f"{text}. Next: {next_command(options, 'show', options.name)}", **lock_object(info))
    return int(options.busy_exit_code)


def _tell(options: argparse.Namespace, event: str, text: str, **facts: Any) -> None:
    message = {"event": event, "name": options.name, "text": text, **facts}
    report(message, command="run", as_json=options.json)


def _acquire_of(client: dibs.Client, options: argparse.Namespace, on_lost: Callable[[dibs.Hold], object]) -> Acquire:
    """`acquire` of the kind of lock that the options ask for."""
    more: dict[str, Any] = {"timeout": options.timeout, "max_hold": options.max_hold, "on_lost": on_lost}
    if options.of is not None:
        return partial(client.semaphore(options.name, options.of, **more).acquire, options.permits)
    if options.shared:
        return client.rwlock(options.name, **more).read.acquire
    if options.exclusive:
        return client.rwlock(options.name, **more).write.acquire
    return client.lock(options.name, **more).acquire


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    before, command = _split(arguments)
    made = parser()
    options, odd = made.parse_known_args(before)
    if odd:
        hint = "" if odd[0].startswith("-") else "; write the command after --: dibs run NAME -- COMMAND ..."
        made.error(f"unrecognized: {' '.join(odd)}{hint}")
    if options.name is None:  # a name that looks like an option: dibs run -- --force -- command
        if len(command) < 2 or command[1] != "--":
            made.error("give the name of the lock, then -- and the command")
        try:
            options.name, command = lock_name(command[0]), command[2:]
        except argparse.ArgumentTypeError as error:
            made.error(str(error))
    options.command = command
    if not command:
        made.error("give the command after --")
    if options.skip or options.try_once:
        if options.try_once and options.timeout is not None:
            made.error("-n and --timeout exclude each other: -n does not wait")
        options.timeout = options.timeout or 0.0
    if options.permits is not None and options.of is None:
        made.error("--permits N needs --of M, the size of the semaphore")
    if options.of is not None and (options.shared or options.exclusive):
        made.error("--of M means a semaphore, --shared and --exclusive a read-write lock; use one of them")
    options.permits = 1 if options.permits is None else options.permits
    options.info = pairs(options.info)
    return options


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def parser() -> Parser:
    made = Parser(
        "run",
        usage="dibs run NAME [options] -- COMMAND ...",
        description="Run a command while holding a lock. The exit status is the command's, or 64 usage, 69 store\n"
        "unreachable, 75 busy, 76 lock lost, 126 command not executable, 127 command not found.",
        epilog="The command's environment has DIBS_NAME, DIBS_TOKEN (the fencing token, if it\n"
        "has one), DIBS_OWNER and DIBS_LEASE. S is a number of seconds, or 500ms, 30s, 5m, 2h, 1d.\n\n"
        "examples:\n  dibs run deploy --timeout 5m -- ./deploy.sh v8\n  dibs run report:nightly --skip -- ./report",
    )
    add_name(made, nargs="?")
    busy = made.add_argument_group("if the lock is busy (default: wait forever)")
    add_seconds(busy, "--timeout", "wait at most S, then exit with 75")
    busy.add_argument("-n", "--try-once", action="store_true", help="do not wait: exit with 75 at once")
    busy.add_argument(
        "--skip",
        action="store_true",
        help="if busy, do not run the command and exit with 0; does not wait unless --timeout is given",
    )
    busy.add_argument(
        "--busy-exit-code", metavar="N", type=_status, default=BUSY, help=f"exit status for busy (default: {BUSY})"
    )
    kind = made.add_argument_group("kind of lock (default: a plain lock)")
    side = kind.add_mutually_exclusive_group()
    side.add_argument("--shared", action="store_true", help="the read side of a read-write lock")
    side.add_argument("--exclusive", action="store_true", help="the write side of a read-write lock")
    kind.add_argument("--permits", metavar="N", type=int, help="take N permits of a semaphore (default: 1)")
    kind.add_argument("--of", metavar="M", type=int, help="a semaphore that has M permits")
    hold = made.add_argument_group("while the lock is held")
    add_seconds(hold, "--lease", "how long the lock survives without renewal, at least 0.5 (default: 30)", 30.0)
    add_seconds(hold, "--max-hold", "end the command after S, with 76 (default: no limit)")
    hold.add_argument(
        "--info", metavar="K=V", action="append", default=[], help="text that others see; may be repeated"
    )
    hold.add_argument("--pass-url", action="store_true", help="leave the password in the command's DIBS_URL")
    add_store(made)
    return made


def _status(text: str) -> int:
    if not text.isdecimal() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"an exit status is 0 to 255, not {text!a}")
    return int(text)
