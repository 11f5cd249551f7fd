"""The code blocks of a page, and a place to run them in: `dibs` on a PATH, and the programs that they call.

On the page the programs are in /srv/shop and dibs is in /usr/local/bin; `Place.here` puts directories of the test in
their stead. A `Job` is one `dibs run` as whoever starts it would: the words, the environment and nothing else of ours.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dibs
from process.children import PATIENCE, until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "running-jobs.md"
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^# ([\w.-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The name that it gives itself in a comment, "" if it gives none."""
        found = _FILE.search(self.text)
        return found[1] if found else ""

    def __str__(self) -> str:
        return f"{self.language}:{self.line}{f':{self.file}' if self.file else ''}"


def blocks(page: Path = PAGE) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in _FENCED.finditer(text)]


@dataclass(frozen=True)
class Job:
    """One `dibs run`, as it would be started. `words` are the line's, of which a shell may still make others."""

    words: Sequence[str]
    argv: Sequence[str]
    env: Mapping[str, str]
    directory: Path

    @property
    def name(self) -> str:
        """The lock's."""
        return self.words[self.words.index("run") + 1]

    @property
    def options(self) -> list[str]:
        found = list(self.words)
        return found[found.index("run") + 2 : found.index("--")]

    @property
    def url(self) -> str:
        """Where its lock is: by DIBS_URL, or in the store of its user."""
        return self.env.get("DIBS_URL") or f"sqlite:///{self.env['HOME']}/.local/state/dibs/locks.db"


def job(line: str, argv: Sequence[str], env: Mapping[str, str], directory: Path) -> Job:
    """From the line that has the `dibs run` in it."""
    return Job(shlex.split(line), argv, env, directory)


class Place:
    """A machine with a shop on it."""

    def __init__(self, directory: Path) -> None:
        self.bin, self.shop, self.home = directory / "bin", directory / "shop", directory / "home"
        self.url = f"sqlite:///{self.home}/.local/state/dibs/locks.db"
        self._started: list[subprocess.Popen[str]] = []
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
        """All that the text calls: each says that it ran, under which lock, and with what."""
        for name in set(re.findall(r"[\w-]+\.sh\b", text)):
            self.program(name, f'echo "{name} under ${{DIBS_NAME-nothing}} by ${{DIBS_TOKEN-0}}: $*"')

    def environment(self, **more: str) -> dict[str, str]:
        """What a process has that inherits nothing of ours."""
        path = f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin"
        return {"HOME": str(self.home), "LOGNAME": "shop", "SHELL": "/bin/sh", "PATH": path, **more}

    def start(self, job: Job) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            job.argv, env=dict(job.env), cwd=job.directory, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._started.append(started)
        return started

    def run(self, job: Job) -> tuple[int, str, str]:
        """To its end: status, stdout and stderr."""
        return self.end(self.start(job))

    def end(self, started: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = started.communicate(timeout=PATIENCE)
        self._started.remove(started)  # all that had its pipes have ended
        return started.returncode, out, err

    def close(self) -> None:
        for one in self._started:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)  # a shell and its `dibs run`; what runs under a lock dies with it
            one.communicate(timeout=PATIENCE)


def in_queue(client: dibs.Client, name: str) -> Mapping[str, Any]:
    """Until somebody waits for it; gives what that one says of itself."""
    until(lambda: client.inspect(name).waiters, what=f"somebody in the line of {name}")
    return client.inspect(name).waiters[0].info


def mappings(node: Any) -> Iterator[dict[Any, Any]]:
    """Every mapping in a document of mappings and sequences."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
        yield from mappings(child)
