"""One worker of the demo, a process of its own: takes the lock, uses the resource, gives the lock back; many times.

It uses the public API of dibs like any program would. Started by `dibs.cli.demo` with the store's URL in $DIBS_URL (a
password must not stand in a command line); says what it does as JSON lines on stdout, and hears `start`, `go` and
`again` on stdin. With `--pause-at N` it halts inside its turn N until it is told to go on: that is where the demo
kills or stops it. How many turns are done is written in the resource alone, so a worker started again knows what is
left, and a turn whose write was refused is simply not done yet.

It does not outlive the demo: the kernel kills it with its parent (Linux), and elsewhere it ends with the pipe.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import dibs
from dibs.cli.demo_resource import Resource, User
from dibs.cli.system import ORPHANED, die_with, now

NAME = "shared-resource"
NAMESPACE = "dibs-demo"
SHORTEST_TURN, LONGEST_TURN = 0.005, 0.030


def main() -> None:
    options = _options()
    die_with(options.parent)
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    with dibs.connect(lease=options.lease, owner=options.worker, namespace=NAMESPACE) as client:
        Worker(client, Resource(options.directory), options, orders).work()


class Worker:
    def __init__(
        self, client: dibs.Client, resource: Resource, options: argparse.Namespace, orders: SimpleQueue[str]
    ) -> None:
        self._client = client
        self._resource = resource
        self._options = options
        self._orders = orders
        self._pause_at: int | None = options.pause_at

    def work(self) -> None:
        # Connected before the start, so that all start at the same time and the line is a line from the beginning.
        self._client.inspect(NAME)
        say("ready")
        self._orders.get()
        while (number := self._resource.look().turns.get(self._options.worker, 0)) < self._options.turns:
            asked = now()
            if self._options.no_lock:
                # What the resource is for: one token for all, as without any lock, must be convicted.
                self._use(1, lambda: float(self._options.lease), None, number)
                continue
            try:
                with self._client.lock(NAME) as hold:
                    say("took", token=hold.token, waited=now() - asked)
                    self._use(hold.token, lambda: hold.remaining, hold, number)  # called within this turn
            except dibs.LockLost:
                say("lost")
        say("done")

    def _use(self, token: int, remaining: Callable[[], float], hold: dibs.Hold | None, number: int) -> None:
        options, resource = self._options, self._resource
        user = User(options.worker, os.getpid(), token)
        try:
            value = resource.begin(user, _until(remaining))
            chance = random.Random(f"{options.seed}:{options.worker}:{number}")  # noqa: S311  # no secret
            time.sleep(chance.uniform(SHORTEST_TURN, LONGEST_TURN))
            if hold is not None and self._pause_at is not None and number >= self._pause_at:
                self._pause(user, hold)
            # No `hold.check()` on purpose: a process may be stopped between any check and its write. What must hold
            # then is the resource's own comparison.
            resource.write(user, value + 1, _until(remaining))
            resource.end(user)
        except dibs.StaleToken as refusal:
            say("refused", token=token, why=refusal.what)

    def _pause(self, user: User, hold: dibs.Hold) -> None:
        """Halt inside, just after a renewal: a process stopped within one would keep the database's lock with it."""
        before, give_up = hold.remaining, now() + self._options.lease
        while (left := hold.remaining) <= before and now() < give_up:
            before = left
            time.sleep(0.002)
        self._resource.keep(user, _until(lambda: hold.remaining))
        say("holding", token=hold.token)
        if self._orders.get() == "go":
            self._pause_at = None
        say("went on", token=hold.token, lost=hold.lost.is_set())


def _until(remaining: Callable[[], float]) -> float:
    at = now()  # before the question: rather too early a deadline than too late a one
    return at + remaining()


def say(what: str, **facts: object) -> None:
    """One write, one line: the demo reads whole lines."""
    os.write(1, (json.dumps({"what": what, **facts}) + "\n").encode())


def _listen(orders: SimpleQueue[str]) -> None:
    # Not `sys.stdin`: its lock, held by a waiting thread, would stand in the way of the interpreter's exit.
    text = b""
    while said := os.read(0, 1024):
        *lines, text = (text + said).split(b"\n")
        for line in lines:
            orders.put(line.decode())
    os._exit(ORPHANED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dibs.cli.demo_worker")
    parser.add_argument("worker")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--pause-at", type=int)
    parser.add_argument("--no-lock", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
