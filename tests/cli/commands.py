"""The command as a process of its own: run to its end, started and listened to, or on a terminal.

`Cli` is one test's machine: a fresh store in DIBS_URL, an environment without anything of the developer's, and an end
for every process that was started. Nothing sleeps to synchronise: everything waits for a word, with an end.
"""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import dibs
from process.children import PATIENCE, Child, until

COMMAND = (sys.executable, "-m", "dibs.cli")
_NOT_OURS = re.compile(r"DIBS_|KUBERNETES_|XDG_|LC_|LANG|NO_COLOR|COLUMNS|TZ$|PYTHON(UTF8|IOENC|COERCE|UNBUF|DONT)")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""An environment in which Python can write ASCII only."""

Done = subprocess.CompletedProcess[str]


class Holder(Child):
    """A process that holds and waits, as it is told; see holder.py."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__("../cli/holder", url, json.dumps(options))
        self.hear("ready")

    def order(self, *words: Any) -> None:
        self.tell(json.dumps(words))

    def heard(self, key: str, *words: str) -> list[str]:
        """What follows the key and these words."""
        said = self.hear(key)
        assert tuple(said[: len(words)]) == words, said
        return said[len(words) :]

    def takes(self, name: str, kind: str = "lock", size: int | None = None, key: str = "it", **options: Any) -> int:
        """The token."""
        self.order("take", key, kind, name, size, options)
        return int(self.heard(key, "took")[0])

    def asks(self, name: str, kind: str = "lock", size: int | None = None, key: str = "it", **options: Any) -> None:
        self.order("ask", key, kind, name, size, options)

    def took(self, key: str = "it") -> int:
        return int(self.heard(key, "took")[0])

    def gives(self, key: str = "it") -> None:
        self.order("give", key)
        self.heard(key, "gave")


class Running:
    """A command that goes on; what it prints is heard line by line, unless the test reads it itself."""

    def __init__(self, words: Sequence[str], env: dict[str, str], *, listen: bool = True) -> None:
        self.process = subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.out: SimpleQueue[str | None] = SimpleQueue()
        self.err: SimpleQueue[str | None] = SimpleQueue()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._pipes = ((self.process.stdout, self.out), (self.process.stderr, self.err))
        self._readers = [threading.Thread(target=_read, args=pipe, daemon=True) for pipe in self._pipes if listen]
        for reader in self._readers:
            reader.start()

    def hear(self) -> str:
        """The next line of its stdout."""
        return self._next(self.out)

    def hear_error(self) -> str:
        return self._next(self.err)

    def _next(self, lines: SimpleQueue[str | None]) -> str:
        try:
            line = lines.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError(f"nothing was said for {PATIENCE:g} s") from None
        assert line is not None, f"it ended ({self.process.wait(PATIENCE)}): {_rest(self.err)}"
        return line

    def end(self) -> int:
        status = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status

    def rest(self) -> tuple[list[str], list[str]]:
        """What else it said, once it has ended."""
        return _rest(self.out), _rest(self.err)

    def discard(self) -> None:
        self.process.kill()
        self.end()
        for pipe, _ in self._pipes:
            pipe.close()


class Terminal:
    """A command on a terminal of its own, which it controls: Ctrl-C typed there is a SIGINT to it."""

    def __init__(self, words: Sequence[str], env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        try:
            # setsid(1) makes a session for it, and this its terminal.
            self.process = subprocess.Popen(["setsid", "-c", *words], env=env, stdin=slave, stdout=slave, stderr=slave)
        finally:
            os.close(slave)
        self._seen = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while said := os.read(self._master, 65536):
                self._seen += said
        except OSError as error:
            if error.errno != errno.EIO:  # which is how a terminal says that nobody has it open
                raise

    @property
    def text(self) -> str:
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    def hear(self, words: str) -> None:
        until(lambda: words in self.text or self.process.poll() is not None, what=f"{words!r} on the terminal")
        assert words in self.text, self.text

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def discard(self) -> None:
        self.process.kill()
        self.end()
        os.close(self._master)


class Cli:
    """One test's machine."""

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

    def run(self, *words: str | bytes, within: float = 50, stdin: str = "", **more: str | None) -> Done:
        return subprocess.run(
            [*COMMAND, *words], env=self.environment(**more), input=stdin, capture_output=True, text=True,
            timeout=within, check=False,
        )  # fmt: skip

    def json(self, *words: str, **more: str | None) -> list[Any]:
        """What it prints with --json."""
        return [json.loads(line) for line in self.run(*words, "--json", **more).stdout.splitlines()]

    def start(self, *words: str, listen: bool = True, **more: str | None) -> Running:
        return self._keep(Running([*COMMAND, *words], self.environment(**more), listen=listen))

    def terminal(self, *words: str, **more: str | None) -> Terminal:
        return self._keep(Terminal([*COMMAND, *words], self.environment(**more)))

    def holder(self, **options: Any) -> Holder:
        return self._keep(Holder(self.url, **options))

    def client(self, **options: Any) -> dibs.Client:
        """A look at the store from the test itself."""
        self._clients.append(dibs.connect(self.url, **options))
        return self._clients[-1]

    def in_line(self, name: str, count: int) -> dibs.LockInfo:
        """Until so many wait."""
        client = self._clients[0] if self._clients else self.client()
        until(lambda: len(client.inspect(name).waiters) == count, what=f"{count} in the line of {name!r}")
        return client.inspect(name)

    def _keep(self, started: Any) -> Any:
        self._started.append(started)
        return started

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for one in self._started:
            one.discard()


def harmful(text: str) -> list[str]:
    """What in it could steer a terminal."""
    return [c for c in text if not c.isprintable() and c != "\n"]


def _read(pipe: IO[str], lines: SimpleQueue[str | None]) -> None:
    for line in pipe:
        lines.put(line.rstrip("\n"))
    lines.put(None)


def _rest(lines: SimpleQueue[str | None]) -> list[str]:
    found: Iterable[str | None] = iter(lines.get_nowait, None) if not lines.empty() else []
    return [line for line in found if line is not None]
