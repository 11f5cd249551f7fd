"""`dibs demo`: worker processes compete for one resource, and the demo proves that no two used it at once.

Five workers take one lock 25 times each. One is killed while it holds the lock. Another is paused while it holds it,
until the resource has accepted another worker after its lease. Then it continues, finds its lock lost, and the resource
refuses its late write. demo_worker.py has the worker and the resource; demo_show.py and demo_screen.py print.

Faults do not depend on luck. The two victims halt inside their turn and say so; the demo asks the store whether they
hold, and only then kills or pauses them. The paused one continues when the resource has admitted a higher token. A
fault that missed is tried again or reported, never counted.

Exit status: 0 proved, 1 not proved, 64 usage, 69 store unreachable, 128+n ended by signal n. No process, file or
directory stays behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import dibs
from dibs._shared import break_option
from dibs.cli.demo_screen import Screen
from dibs.cli.demo_show import Event, Lines, Objects, Outcome
from dibs.cli.demo_worker import NAME, NAMESPACE, Resource
from dibs.cli.options import Parser, UsageError, add_seconds, connect
from dibs.cli.output import BY_SIGNAL, NO, OK, has_colour, is_terminal
from dibs.cli.system import now

Show = Lines | Objects | Screen

_POLL_INTERVAL = 0.03
_PATIENCE = 30.0
"""Seconds without a finished turn after which the demo gives up."""
_ATTEMPTS = 3
_SOURCE = str(Path(dibs.__file__).parents[1])


class GaveUp(Exception):
    """The demo cannot be finished."""


@dataclass
class Worker:
    """One worker process, as the demo sees it."""

    name: str
    process: subprocess.Popen[bytes]
    text: bytes = b""
    ready: bool = False
    done: bool = False

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # its other pipe reports that it ended
            self.process.stdin.write(f"{order}\n".encode())

    def heard(self) -> Iterator[dict[str, Any]]:
        """The messages that came; \"ended\" is the last one."""
        assert self.process.stdout is not None
        said = os.read(self.process.stdout.fileno(), 65536)
        *lines, self.text = (self.text + said).split(b"\n")
        yield from (json.loads(line) for line in lines)
        if not said:
            yield {"what": "ended"}

    def close(self) -> None:
        """Close its pipes, and wait until it has ended."""
        with self.process:
            pass


@dataclass
class Stopped:
    """The worker that was stopped while it held the lock."""

    worker: Worker
    token: int
    since: float
    overtaken: bool = False
    lost: bool = False
    for_seconds: float = 0.0


@dataclass
class Demo:
    options: argparse.Namespace
    directory: Path
    client: dibs.Client
    resource: Resource
    show: Show
    signals: list[int]
    """Signals that ask us to end; handled between two steps, so that cleanup is not interrupted."""
    begun: float = field(default_factory=now)
    workers: dict[str, Worker] = field(default_factory=dict)
    longest_wait: float = 0.0
    kills: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    stopped: Stopped | None = None
    attempts: int = 0

    def __post_init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        names = [f"worker-{number}" for number in range(1, self.options.workers + 1)]
        victims = random.Random(self.options.seed).sample(names, 2)  # noqa: S311  # no secret
        self.names, (self.to_kill, self.to_stop) = names, victims
        third = self.options.turns // 3
        self.pauses = {} if self.options.no_lock else {self.to_kill: third, self.to_stop: max(1, 2 * third)}

    def play(self) -> Outcome:
        for name in self.names:
            self._start(name, self.pauses.get(name))
        turns, moved_at = 0, now()
        while not all(worker.done for worker in self.workers.values()):
            for key, _ in self.selector.select(_POLL_INTERVAL):
                for said in key.data.heard():
                    self._hear(key.data, said)
            if self.signals:
                raise GaveUp("interrupted")
            record = self.resource.look()
            self._overtaken(record.highest)
            if (done := sum(record.turns.values())) > turns:
                turns, moved_at = done, now()
            elif now() - moved_at > _PATIENCE + 3 * self.options.lease:
                raise GaveUp(f"no worker finished a turn for {_PATIENCE:.0f} s")
            self.show.glance(self._at(), self.client.inspect(NAME), record)
        return Outcome(
            self._wanted, self.resource.look(), self.resource.audit(), self._at(), self.longest_wait,
            self.kills, self.stops, faults_wanted=1 if self.pauses else 0,
        )  # fmt: skip

    def end(self) -> None:
        """Kill all workers; SIGKILL also ends a stopped process."""
        for worker in self.workers.values():
            worker.process.kill()
        for worker in self.workers.values():
            worker.close()
        self.selector.close()
        self.resource.close()

    @property
    def _wanted(self) -> int:
        return int(self.options.workers * self.options.turns)

    def _at(self) -> float:
        return now() - self.begun

    def _tell(self, what: str, worker: Worker, token: int | None, text: str = "", **facts: object) -> None:
        self.show.event(Event(self._at(), what, worker.name, token, text and f"{worker.name}{text}", facts))

    def _start(self, name: str, pause_at: int | None) -> None:
        options = self.options
        settings = {
            "worker": name, "directory": str(self.directory), "parent": os.getpid(), "pause_at": pause_at,
            "turns": options.turns, "seed": options.seed, "lease": options.lease, "no_lock": options.no_lock,
        }  # fmt: skip
        command = [sys.executable, "-P", "-m", "dibs.cli.demo_worker", json.dumps(settings)]
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  # our own module
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                env=_environment(options.url),
            )  # fmt: skip
        self.workers[name] = worker = Worker(name, process)
        assert process.stdout is not None
        self.selector.register(process.stdout, selectors.EVENT_READ, worker)

    def _hear(self, worker: Worker, said: dict[str, Any]) -> None:
        what, stopped = said["what"], self.stopped
        if what == "ready":
            self._is_ready(worker)
        elif what == "took":
            self.longest_wait = max(self.longest_wait, said["waited"])
            self._tell("took", worker, said["token"], waited=round(said["waited"], 3))
        elif what == "holding":
            self._inject_fault(worker, said["token"])
        elif what == "went on" and stopped is not None and stopped.token == said["token"]:
            stopped.lost = said["lost"]
        elif what == "refused":
            self._tell("refused", worker, said["token"], f"'s {said['why']}", why=said["why"])
            if stopped is not None and stopped.token == said["token"] and stopped.lost:
                length = f"{stopped.for_seconds:.1f} s"
                self.stops.append(f"{worker.name}, token {stopped.token}, for {length}; it then found its lock lost")
        elif what == "done":
            worker.done = True
            self._tell("done", worker, None)
        elif what == "ended":
            self._ended(worker)

    def _is_ready(self, worker: Worker) -> None:
        """Start all workers at the same time, once all are ready. A restarted worker starts at once."""
        worker.ready = True
        if self.kills:
            worker.tell("start")
        elif all(one.ready for one in self.workers.values()):
            for one in self.workers.values():
                one.tell("start")

    def _inject_fault(self, worker: Worker, token: int) -> None:
        """Kill or stop a worker that says that it holds the lock and has halted, if the store agrees."""
        self.attempts += 1
        if self.attempts > 2 * _ATTEMPTS:
            raise GaveUp("no worker could be caught while it held the lock; this machine may be too busy")
        holders = self.client.inspect(NAME).holders
        if [(one.pid, one.token) for one in holders] != [(worker.process.pid, token)]:
            worker.tell("again")
        elif worker.name == self.to_kill:
            worker.process.kill()
            self.kills.append(f"{worker.name}, token {token}; another process did its remaining turns")
            self._tell("killed", worker, token, f" was killed while it held the lock (token {token})")
        else:
            worker.process.send_signal(signal.SIGSTOP)
            self.stopped = Stopped(worker, token, now())
            self._tell("paused", worker, token, f" was paused while it held the lock (token {token})")

    def _overtaken(self, highest: int) -> None:
        """Continue the stopped worker once a higher token was admitted: that proves that its lease is over."""
        stopped = self.stopped
        if stopped is None or stopped.overtaken:
            return
        stopped.for_seconds = now() - stopped.since
        if highest > stopped.token:
            stopped.overtaken = True
            stopped.worker.tell("go")
            text = f"continues after {stopped.for_seconds:.1f} s; token {highest} was accepted meanwhile"
        elif stopped.for_seconds > 2 * self.options.lease + 5:
            # It was stopped within a transaction, and the others wait for the database: this proves nothing.
            self.stopped = None
            stopped.worker.tell("again")
            text = "continues: no other worker could get the lock; trying again"
        else:
            return
        stopped.worker.process.send_signal(signal.SIGCONT)
        self._tell(
            "continued", stopped.worker, stopped.token, f" {text}",
            after=round(stopped.for_seconds, 3), overtaken=stopped.overtaken,
        )  # fmt: skip

    def _ended(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        self.selector.unregister(worker.process.stdout)
        status = worker.process.wait()
        if worker.done and status == 0:
            return
        if worker.name == self.to_kill and self.kills and status == -signal.SIGKILL:
            worker.close()
            self._start(worker.name, None)
            self._tell("restarted", worker, None, " was started again")
            return
        log = (self.directory / f"{worker.name}.log").read_text(errors="replace")
        raise GaveUp(f"{worker.name} ended with status {status}\n{log}".rstrip())


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_WORKERS = 32
"""The resource's record has no room for more."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    with _noted_signals() as signals, TemporaryDirectory(prefix="dibs-demo-") as directory:
        return _play(options, Path(directory), signals)


def _play(options: argparse.Namespace, directory: Path, signals: list[int]) -> int:
    show = _show(options)
    options.url = options.url or f"sqlite:///{quote(str(directory / 'demo.db'))}"
    with connect(options, "demo", lease=options.lease, owner="demo") as client, ExitStack() as stack:
        client.inspect(NAME)  # fails here if the store cannot be used, before another process does
        if break_option(client) == "--holder":
            raise UsageError("the demo needs locks with tokens, which this layout does not have by default")
        if options.dashboard:
            from dibs.cli.demo_dashboard import dashboard_beside  # noqa: PLC0415  (imports the server)

            stack.enter_context(dashboard_beside(_environment(options.url)))
        demo = Demo(options, directory, client, Resource(directory), show, signals)
        try:
            show.begin(options, demo.names)
            outcome = demo.play()
        except GaveUp as reason:
            show.give_up(str(reason))
            return BY_SIGNAL + signals[0] if signals else NO
        finally:
            demo.end()
            show.close()
    show.prove(outcome)
    return NO if outcome.objections() else OK


def _environment(url: str) -> dict[str, str]:
    """Of the processes that we start: the URL is on no command line."""
    path = os.pathsep.join(filter(None, (_SOURCE, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "DIBS_URL": url, "PYTHONPATH": path}


def _show(options: argparse.Namespace) -> Show:
    if options.json:
        return Objects()
    lines = Lines(colour=has_colour())
    return Screen(lines, colour=has_colour()) if is_terminal() and not options.plain else lines


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Note signals that end us, and handle them between two steps: none interrupts the cleanup."""
    noted: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def parser() -> Parser:
    made = Parser(
        "demo",
        description="Worker processes compete for one resource, which detects a second user. One worker is killed\n"
        "and one is paused while it holds the lock. The result at the end says whether two overlapped.",
    )
    made.add_argument("--url", help="the store (default: a temporary SQLite file)")
    made.add_argument("--workers", metavar="N", type=int, default=5, help="worker processes, 2 to 32 (default: 5)")
    made.add_argument(
        "--turns", metavar="N", type=int, help="turns of each worker, at least 2 (default: 25, with --dashboard 500)"
    )
    made.add_argument(
        "--seed", metavar="N", type=int, help="selects the workers that fail and the length of turns (default: random)"
    )
    add_seconds(made, "--lease", "seconds that a lock survives without renewal, at least 0.5 (default: 1)", 1.0)
    made.add_argument("--dashboard", action="store_true", help="show the demo's store in a browser meanwhile")
    output = made.add_mutually_exclusive_group()
    output.add_argument("--plain", action="store_true", help="print lines instead of drawing a picture, as in a pipe")
    output.add_argument(
        "--json", action="store_true", help="print one JSON object per event; the last one has 'proved'"
    )
    made.add_argument("--no-lock", action="store_true", help=argparse.SUPPRESS)  # the resource must detect this
    made.set_defaults(url_file=None, namespace=NAMESPACE)
    return made


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    made = parser()
    options = made.parse_args(arguments)
    if options.turns is None:
        options.turns = 500 if options.dashboard else 25  # there should be time to look
    if not 2 <= options.workers <= _MOST_WORKERS or options.turns < 2:
        made.error(f"--workers must be 2 to {_MOST_WORKERS}, --turns at least 2")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1000)
    return options
