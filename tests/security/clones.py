"""Programs that print ids as a store would see them: after a fork, and as a clone that no hook saw.

clones.py forked|cloned   -> one id a line, in hex
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from pathlib import Path

import dibs

# Python 3.12 and later warn of what is tried here on purpose.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


def show(client: dibs.Client, first: int) -> None:
    """The client's own id and those of four claims, in one write: parent and child share the pipe."""
    for number in range(first, first + 4):
        client.lock(f"n{number}").acquire(timeout=60)
    ids = [client._core.me.id, *client._core.watchdog.renewing]
    os.write(1, "".join(f"{id.hex()}\n" for id in ids).encode())


def forked(client: dibs.Client) -> None:
    """Parent and children go on from the same state."""
    client.lock("before").acquire(timeout=60)
    for number in (100, 200):
        if (pid := os.fork()) == 0:
            show(client, number)
            os._exit(0)
        os.waitpid(pid, 0)
    show(client, 0)


def cloned(client: dibs.Client) -> None:
    """A snapshot of a machine goes on twice, and no hook of Python's runs: libc's fork does the same to memory."""
    fresh_id = client._core.runtime.fresh_id
    fresh_id()  # what it may keep ready is there now
    (_,) = Path("/proc/self/task").iterdir()  # another thread could hold what the child needs
    pid = ctypes.PyDLL(None).fork()
    os.write(1, "".join(f"{fresh_id().hex()}\n" for _ in range(4)).encode())
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    with dibs.connect("memory://") as client:
        globals()[sys.argv[1]](client)
