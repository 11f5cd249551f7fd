"""One directory for all servers of this process, and a guardian process that outlives it.

Every server works in a directory below `root()`, so its processes are those with a working directory there. The
guardian is this file run as a program, in a session of its own. It waits by a pidfd for the end of the process that
started it, kills all processes below the root, and removes the root. A process that ends by itself does that on exit.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 2 << 30
PATIENCE = 60.0


def once(make: Callable[[], Path]) -> Callable[[], Path]:
    """Made by the first thread that asks; several servers may be started at once."""
    making, made = threading.Lock(), functools.cache(make)

    @functools.wraps(make)
    def asked() -> Path:
        with making:
            return made()

    return asked


@once
def root() -> Path:
    """The directory of this process's servers, guarded from its first use; in memory where that is possible."""
    path = Path(tempfile.mkdtemp(prefix="dibs-lab-", dir=MEMORY if _roomy(MEMORY) else None))
    path.chmod(0o711)  # a server that runs as somebody else passes through
    guardian = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(path), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    assert guardian.stdout is not None
    with guardian.stdout as said:
        assert said.readline() == b"guarding\n", "the guardian did not start"
    atexit.register(_leave, path, os.getpid(), guardian)
    return path


def _roomy(path: Path) -> bool:
    """A container may have very little memory to share."""
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK) and shutil.disk_usage(path).free > ROOM


def _leave(path: Path, owner: int, guardian: subprocess.Popen[bytes]) -> None:
    if os.getpid() != owner:
        return  # a fork of the process whose servers these are
    clear(path)
    guardian.kill()
    guardian.wait()


def clear(path: Path) -> None:
    """Nobody works below `path` any more, and it is gone."""
    sweep(path)
    shutil.rmtree(path, ignore_errors=True)
    sweep(path)  # who was being started entered meanwhile, or finds no directory to enter
    shutil.rmtree(path, ignore_errors=True)


def sweep(path: Path) -> None:
    """Kill -9 whoever works below `path`, until nobody does."""
    killed: set[int] = set()
    end = time.monotonic() + PATIENCE
    while found := working_in(path):
        killed.update(found)
        send(found, signal.SIGKILL)
        assert time.monotonic() < end, f"survived kill -9 for {PATIENCE:g} s: {found}"
        time.sleep(0.002)
    _forget_shared_memory(killed)


def working_in(path: Path) -> list[int]:
    """The processes below `path` that can still do anything: the dead have no working directory."""
    below = f"{path}/"
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if entry.name.isdigit() and f"{Path(entry.path, 'cwd').readlink()}/".startswith(below):
                found.append(int(entry.name))
    return found


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _forget_shared_memory(creators: set[int]) -> None:
    """PostgreSQL makes a System V segment, which would outlive its kill -9 and its directory."""
    segments = Path("/proc/sysvipc/shm")
    if not creators or not segments.exists():
        return
    header, *rows = segments.read_text().splitlines()
    id_at, creator_at = header.split().index("shmid"), header.split().index("cpid")
    libc = ctypes.CDLL(None)
    for row in map(str.split, rows):
        if int(row[creator_at]) in creators:
            libc.shmctl(int(row[id_at]), 0, None)  # 0 is IPC_RMID


def _guard(path: Path, parent: int) -> None:
    alive = os.pidfd_open(parent)
    if os.getppid() == parent:  # else it ended before, and the number may be somebody else's
        os.write(1, b"guarding\n")
        os.close(1)
        select.select([alive], [], [])
    clear(path)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), int(sys.argv[2]))
