"""Run a deployment while nobody else does.

deploy.py [--wait SECONDS] [--max-hold SECONDS] VERSION COMMAND...

Exit status: the command's, 75 if somebody else deploys, 76 if the lock was lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys

import dibs

GRACE = 10.0
"""How long a command has to stop after SIGTERM, in seconds."""


def stop(command: subprocess.Popen[bytes]) -> None:
    """Has no effect on a command that has ended."""
    command.terminate()
    try:
        command.wait(GRACE)
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()


def run(arguments: list[str], hold: dibs.Hold) -> int:
    """Return the command's status. The command ends before this function does, and the lock is released after it."""
    # Record signals instead of raising: an exception just after the command started would leave it running.
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    command = subprocess.Popen(arguments, env={**os.environ, "DEPLOY_TOKEN": str(hold.token)})
    try:
        while command.poll() is None and not signals and not hold.lost.wait(0.2):
            pass
    finally:
        stop(command)
    return 128 + signals[0] if signals else command.returncode


def deploy(client: dibs.Client, args: argparse.Namespace) -> int:
    lock = client.lock("deploy", timeout=args.wait, max_hold=args.max_hold, info={"version": args.version})
    try:
        with lock as hold:
            print(f"deploying {args.version}, token {hold.token}", flush=True)
            return run(args.command, hold)
    except dibs.AcquireTimeout as busy:
        theirs = busy.info.holders[0].info.get("version") if busy.info and busy.info.holders else None
        print(f"not now, version {theirs} is under way: {busy}", file=sys.stderr)
        return 75
    except dibs.LockLost as lost:
        print(f"stopped half-way: {lost}", file=sys.stderr)
        return 76


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", type=float, default=10.0)
    parser.add_argument("--max-hold", type=float, default=1800.0)
    parser.add_argument("version")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command:
        parser.error("a command is needed")
    with dibs.connect() as client:
        status = deploy(client, args)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
