"""The demo's supervisor: starts the workers, decides when a fault strikes, and watches until all turns are done.

Nothing depends on luck. The worker that is to be killed and the one that is to be stopped halt inside their turn and
say so; the store is asked whether they hold; only then does the fault strike. The stopped one goes on when the resource
has admitted a higher token, not after some time. What did not hit is tried again or reported, never counted.
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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dibs
from dibs.cli.demo_proof import Outcome
from dibs.cli.demo_resource import Resource
from dibs.cli.demo_show import Event, Show
from dibs.cli.demo_worker import NAME
from dibs.cli.system import now

_GLANCE = 0.03
_PATIENCE = 30.0
"""Seconds without a turn after which something is broken."""
_ATTEMPTS = 3
_SOURCE = str(Path(dibs.__file__).parents[1])


class GaveUp(Exception):
    """The demo cannot be played to its end."""


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
        with suppress(BrokenPipeError):  # that it ended is heard from its other pipe
            self.process.stdin.write(f"{order}\n".encode())

    def heard(self) -> Iterator[dict[str, Any]]:
        """What it said since; ends for good with its process."""
        assert self.process.stdout is not None
        said = os.read(self.process.stdout.fileno(), 65536)
        *lines, self.text = (self.text + said).split(b"\n")
        yield from (json.loads(line) for line in lines)
        if not said:
            yield {"what": "ended"}


@dataclass
class Stopped:
    """The worker that was stopped as a holder, and what has become of its hold."""

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
    """Those that ask us to end, as they come: looked at between two steps, so that nothing is left half done."""
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
        self.client.inspect(NAME)  # a store that cannot be used is named here, before a worker fails on it
        for name in self.names:
            self._start(name, self.pauses.get(name))
        turns, moved_at = 0, now()
        while not all(worker.done for worker in self.workers.values()):
            for key, _ in self.selector.select(_GLANCE):
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
        """No process stays; SIGKILL ends a stopped one too."""
        for worker in self.workers.values():
            worker.process.kill()
        for worker in self.workers.values():
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                if pipe is not None:
                    pipe.close()
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
        command = [
            sys.executable, "-P", "-m", "dibs.cli.demo_worker", name, str(self.directory), f"--parent={os.getpid()}",
            f"--turns={options.turns}", f"--seed={options.seed}", f"--lease={options.lease}",
        ]  # fmt: skip
        command += [] if pause_at is None else [f"--pause-at={pause_at}"]
        command += ["--no-lock"] if options.no_lock else []
        path = os.pathsep.join(filter(None, (_SOURCE, os.environ.get("PYTHONPATH"))))
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  # our own module
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                env={**os.environ, "DIBS_URL": options.url, "PYTHONPATH": path},
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
            self._strike(worker, said["token"])
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
        """All start at the same time; a worker that is started again does not wait for the others."""
        worker.ready = True
        if self.kills:
            worker.tell("start")
        elif all(one.ready for one in self.workers.values()):
            for one in self.workers.values():
                one.tell("start")

    def _strike(self, worker: Worker, token: int) -> None:
        """It says that it holds, and halts. Only if the store says so too is it killed or stopped."""
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
        """Let the stopped worker go on once a higher token was admitted: that proves that its lease was over."""
        stopped = self.stopped
        if stopped is None or stopped.overtaken:
            return
        stopped.for_seconds = now() - stopped.since
        if highest > stopped.token:
            stopped.overtaken = True
            stopped.worker.tell("go")
            text = f"continues after {stopped.for_seconds:.1f} s; token {highest} was accepted meanwhile"
        elif stopped.for_seconds > 2 * self.options.lease + 5:
            # It was stopped within a transaction after all, and the others wait for the database: no proof in that.
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
            for pipe in (worker.process.stdin, worker.process.stdout):
                assert pipe is not None
                pipe.close()
            self._start(worker.name, None)
            self._tell("restarted", worker, None, " was started again")
            return
        log = (self.directory / f"{worker.name}.log").read_text(errors="replace")
        raise GaveUp(f"{worker.name} ended with status {status}\n{log}".rstrip())
