"""One server process: started, probed, stopped, killed, restarted with or without its data, and gone in the end.

A `Kind` says what is particular to a server; `Server` is the life of any of them:

    with Server(Redis(persist="always")) as server:
        server.ask("SET", "a", "1")
        server.stop()                # SIGSTOP: the connection stays, no answer comes
        server.resume()
        server.restart()             # kill -9, and again from its data; restart(wipe=True): from nothing

Each works in a directory of its own below `guard.root()`, which ends with it. Signals reach everything that it forked
too. `restart` keeps the port. A server that does not come up says so with its log.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from lab.servers import guard, ports, programs

STARTING = 60.0
"""How long a start may take on a machine that others use too."""
_number = itertools.count(1)


class Kind(Protocol):
    name: str
    port: int
    ports: tuple[int, ...]
    """All that are reserved for it."""

    @property
    def user(self) -> pwd.struct_passwd | None:
        """The user that runs it, if not this one."""
        ...

    def prepare(self, data: Path) -> None: ...

    def command(self, data: Path) -> list[str]: ...

    def ready(self) -> bool:
        """Whether it serves, asked in its own protocol. Refused and Silent count as no."""
        ...

    def url(self, **parts: str) -> str: ...

    def ask(self, *words: str, within: float = programs.ANSWER) -> str:
        """One command or query of its own language, and the answer as text."""
        ...


def until(condition: Callable[[], Any], within: float = STARTING, what: str = "the condition") -> Any:
    """The result of `condition` once it is true; polled. Refused and Silent count as false."""
    end, pause = time.monotonic() + within, 0.005
    refusal: Exception | None = None
    while True:
        try:
            if seen := condition():
                return seen
        except (programs.Refused, programs.Silent) as error:
            refusal = error
        assert time.monotonic() < end, f"{what}: not within {within:g} s (last refusal: {refusal})"
        time.sleep(pause)
        pause = min(pause * 1.3, 0.1)  # each look may be a process of its own


class Server:
    def __init__(self, kind: Kind, env: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._env = {**programs.environment(), **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = guard.root() / f"{kind.name}-{next(_number)}"
        self.data = self.directory / "data"
        self._log = self.directory / "log"

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.port} {'running' if self.running() else 'not running'}>"

    @property
    def port(self) -> int:
        return self.kind.port

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self!r} was never started"
        return self._process.pid

    def url(self, **parts: str) -> str:
        return self.kind.url(**parts)

    def ask(self, *words: str, within: float = programs.ANSWER) -> str:
        return self.kind.ask(*words, within=within)

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self) -> Self:
        """Start without waiting until it serves: what needs company for that is waited for later."""
        assert not self.running(), f"{self!r} runs already"
        if not self.data.exists():
            self._lay_out()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.kind.command(self.data),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data,
                env=self._env,
                start_new_session=True,
                **programs.identity(self.kind.user),
            )
        return self

    def _lay_out(self) -> None:
        self.directory.mkdir(mode=0o711, exist_ok=True)
        self.data.mkdir(mode=0o700)
        self._own(self.data)
        self.kind.prepare(self.data)
        for directory, _, files in os.walk(self.data):
            for path in (Path(directory), *(Path(directory, file) for file in files)):
                self._own(path)

    def _own(self, path: Path) -> None:
        if self.kind.user is not None:
            os.chown(path, self.kind.user.pw_uid, self.kind.user.pw_gid)

    def serve(self, within: float = STARTING) -> Self:
        def ready() -> bool:
            assert self.running(), f"{self!r} ended by itself"
            return self.kind.ready()

        try:
            until(ready, within, f"{self!r} serves")
        except AssertionError as error:
            error.add_note(f"its log:\n{self.log()[-6000:]}")
            raise
        return self

    def start(self) -> Self:
        return self.begin().serve()

    def stop(self) -> None:
        """SIGSTOP, to all of it; returns once it stands still."""

        def still() -> bool:
            guard.send(found := guard.working_in(self.data), signal.SIGSTOP)
            return bool(found) and all(map(_stands_still, found))

        assert self.running(), f"{self!r}: nothing to stop"
        until(still, what=f"{self!r} stands still")

    def resume(self) -> None:
        guard.send(guard.working_in(self.data), signal.SIGCONT)

    def kill(self) -> None:
        """Kill -9, all of it at once; returns when it is dead."""
        guard.sweep(self.data)
        if self._process is not None:
            self._process.wait()

    def restart(self, *, wipe: bool = False) -> Self:
        """Kill -9 if it still runs, then start on the same port; `wipe`: as if it had never been there."""
        self.kill()
        if wipe:
            shutil.rmtree(self.data)
        return self.start()

    def end(self) -> None:
        """No process, no directory, no port of it is left."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        for port in self.kind.ports:
            ports.release(port)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.end()
            raise

    def __exit__(self, *_: object) -> None:
        self.end()


@contextlib.contextmanager
def together(*kinds: Kind) -> Iterator[tuple[Server, ...]]:
    """Several at once: all are begun before the first is waited for."""
    with contextlib.ExitStack() as stack:
        servers = tuple(map(Server, kinds))
        for server in servers:
            stack.callback(server.end)
        for server in servers:
            server.begin()
        yield tuple(server.serve() for server in servers)


def joint_url(
    scheme: str, servers: Iterable[Server], path: str = "", through: Callable[[int], int] = lambda port: port
) -> str:
    """One URL that names them all: redis+sentinel://h1,h2,h3/main, zookeeper://h1,h2,h3."""
    hosts = ",".join(f"{ports.HOST}:{through(server.port)}" for server in servers)
    return f"{scheme}://{hosts}{path}"


def _stands_still(pid: int) -> bool:
    """Every thread of it is stopped; one that ends at this moment is looked at again."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)
    return False
