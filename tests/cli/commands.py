"""The command line: in this process where only its text matters, else as a process, in a pipe or on a terminal.

`Cli` has a fresh store in DIBS_URL, an environment without the developer's own settings, and ends every process that it
started. Nothing sleeps to synchronise: everything waits for output, with a timeout.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

import dibs
from cli.terminals import Terminal
from dibs.cli.main import main
from process.children import PATIENCE, Process, until

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "dibs")
_NOT_OURS = re.compile(r"DIBS_|KUBERNETES_|XDG_|LC_|LANG|NO_COLOR|COLUMNS|TZ$|PYTHON(UTF8|IOENC|COERCE|UNBUF|DONT)")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""An environment in which Python can write ASCII only."""
_FOR_AN_INTERPRETER = re.compile(r"LC_|PYTHON|TZ$")
"""The variables that an interpreter reads at its start."""

Done = subprocess.CompletedProcess[str]


class Holder:
    """Holds and waits in this process, with a client of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self.client = dibs.connect(url, **options)
        self.pid = os.getpid()
        self._holds: dict[str, Any] = {}
        self._waiting: dict[str, threading.Thread] = {}

    def takes(self, name: str, kind: str = "lock", size: int | None = None, key: str = "it", **options: Any) -> int:
        """The token."""
        permits = [options.pop("permits")] if "permits" in options else []
        hold = self._lock(kind, name, size, options).acquire(*permits, timeout=PATIENCE)
        self._holds[key] = hold
        return int(hold.token)

    def _lock(self, kind: str, name: str, size: int | None, options: dict[str, Any]) -> Any:
        if kind in ("read", "write"):
            return getattr(self.client.rwlock(name, **options), kind)
        if kind == "lead":
            return self.client.election(name, **options).lead()
        if kind == "stripe":
            return self.client.striped(name, size or 1, **options).at("key")
        return getattr(self.client, kind)(name, *([] if size is None else [size]), **options)

    def asks(self, name: str, key: str = "it") -> None:
        """Wait for it in a thread of that name."""

        def wait() -> None:
            with suppress(dibs.Closed):
                self.takes(name, key=key)

        self._waiting[key] = threading.Thread(target=wait, name=key, daemon=True)
        self._waiting[key].start()

    def took(self, key: str = "it") -> int:
        self._waiting.pop(key).join(PATIENCE)
        return int(self._holds[key].token)

    def gives(self, key: str = "it") -> None:
        self._holds.pop(key).release()

    def hold(self, key: str = "it") -> Any:
        return self._holds[key]

    def discard(self) -> None:
        self.client.close()
        for thread in self._waiting.values():
            thread.join(PATIENCE)


class Running(Process):
    """A command that goes on, in a pipe."""

    _heard = 0

    def hear(self) -> str:
        """The next line of its stdout."""
        return self.next_line()

    def hear_error(self) -> str:
        lines = self._said[1]
        until(lambda: len(lines) > self._heard or self.process.poll() is not None, what="a line on stderr")
        self._readers[1].join(0 if len(lines) > self._heard else PATIENCE)
        self._heard += 1
        return lines[self._heard - 1].rstrip("\n")

    def rest(self) -> tuple[list[str], list[str]]:
        """Its other lines on stdout and stderr, once it has ended."""
        return super().rest().splitlines(), "".join(self._said[1][self._heard :]).splitlines()


class Cli:
    """A fresh store, and the processes around it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "locks.db"
        self.url = f"sqlite:///{self.path}"
        self._started: list[Any] = []
        self._clients: list[dibs.Client] = []

    def environment(self, **more: str | None) -> dict[str, str]:
        """None: without it."""
        kept = {name: value for name, value in os.environ.items() if not _NOT_OURS.match(name)}
        given = {**kept, "DIBS_URL": self.url, "HOME": str(self.directory), "TERM": "xterm", **more}
        return {name: value for name, value in given.items() if value is not None}

    def run(self, *words: str | bytes, **more: str | None) -> Done:
        """Run it to its end; in this process, unless it is `dibs run` or depends on how an interpreter was started."""
        own = "run" in words[:1] or any(isinstance(word, bytes) for word in words)
        if own or any(map(_FOR_AN_INTERPRETER.match, more)):
            return self.process(*COMMAND, *words, **more)
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(os, "environ", self.environment(**more))
            patch.setattr(sys, "stdin", io.StringIO("y\n"))
            try:
                status = main([str(word) for word in words])
            except SystemExit as end:
                status = int(end.code or 0)
        return Done(words, status, out.getvalue(), err.getvalue())

    def process(self, *words: str | bytes, text: bool = True, stdin: Any = None, **more: str | None) -> Done:
        """Run any process to its end."""
        return subprocess.run(
            words, env=self.environment(**more), cwd=self.directory, input=stdin or ("" if text else b""),
            capture_output=True, text=text, timeout=2 * PATIENCE, check=False,
        )  # fmt: skip

    def json(self, *words: str, **more: str | None) -> list[Any]:
        """Parse its output with --json."""
        return [json.loads(line) for line in self.run(*words, "--json", **more).stdout.splitlines()]

    def start(self, *words: str, **more: str | None) -> Running:
        argv, env = [*COMMAND, *words], self.environment(**more)
        return self._keep(Running(argv, self.directory, env, stdin=subprocess.DEVNULL))

    def terminal(self, *words: str, **more: str | None) -> Terminal:
        return self._keep(Terminal([*COMMAND, *words], self.environment(**more), self.directory))

    def holder(self, **options: Any) -> Holder:
        return self._keep(Holder(self.url, **options))

    def client(self, **options: Any) -> dibs.Client:
        """Another client of the store, in this process."""
        self._clients.append(dibs.connect(self.url, **options))
        return self._clients[-1]

    def in_queue(self, name: str, count: int) -> dibs.LockInfo:
        """Wait until that many wait."""
        client = self._clients[0] if self._clients else self.client()
        until(lambda: len(client.inspect(name).waiters) == count, what=f"{count} waiting for {name!r}")
        return client.inspect(name)

    def _keep(self, started: Any) -> Any:
        self._started.append(started)
        return started

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for one in self._started:
            one.discard()


class Place:
    """A machine with a shop on it: `dibs` on a PATH, and the programs that the documentation calls.

    In the documentation the programs are in /srv/shop and dibs is in /usr/local/bin; `here` puts directories of the
    test in their stead.
    """

    def __init__(self, directory: Path) -> None:
        self.bin, self.shop, self.home = directory / "bin", directory / "shop", directory / "home"
        self.url = f"sqlite:///{self.home}/.local/state/dibs/locks.db"
        self._started: list[Process] = []
        for made in (self.bin, self.shop, self.home / ".local/state/dibs"):
            made.mkdir(parents=True)
        self.program("dibs", f'exec {shlex.quote(sys.executable)} -m dibs "$@"', self.bin)

    def here(self, text: str) -> str:
        return text.replace("/srv/shop", str(self.shop)).replace("/usr/local/bin", str(self.bin))

    def program(self, name: str, body: str, directory: Path | None = None) -> Path:
        path = (directory or self.shop) / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def programs(self, text: str) -> None:
        """Write every program that the text calls: it prints its name, its lock, its token and its arguments."""
        for name in set(re.findall(r"[\w-]+\.sh\b", text)):
            self.program(name, f'echo "{name} under ${{DIBS_NAME-nothing}} by ${{DIBS_TOKEN-0}}: $*"')

    def environment(self, **more: str) -> dict[str, str]:
        """An environment that inherits nothing."""
        path = f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin"
        return {"HOME": str(self.home), "LOGNAME": "shop", "SHELL": "/bin/sh", "PATH": path, **more}

    def start(self, argv: Sequence[str], env: dict[str, str], directory: Path | None = None) -> Process:
        started = Process(list(argv), directory or self.shop, env, stdin=subprocess.DEVNULL, start_new_session=True)
        self._started.append(started)
        return started

    def run(self, argv: Sequence[str], env: dict[str, str], directory: Path | None = None) -> tuple[int, str, str]:
        """To its end: status, stdout and stderr."""
        started = self.start(argv, env, directory)
        return started.end(), started.text, started.errors

    def close(self) -> None:
        for one in self._started:
            one.discard()


def run_here(*words: str) -> int:
    """`dibs run` in this process, with arguments that are not valid: it must not start a process."""
    try:
        return main(["run", *words])
    except SystemExit as end:
        return int(end.code or 0)


def harmful(text: str) -> list[str]:
    """The characters in it that could steer a terminal."""
    return [c for c in text if not c.isprintable() and c != "\n"]


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    made.close()
