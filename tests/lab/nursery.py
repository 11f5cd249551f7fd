"""Start many workers quickly: one process imports everything and forks them.

`Nursery` is the side of the test; run as a program, this file is the other side, told what to do by lines on stdin. It
reaps a worker only when told, so a signal cannot hit another process with the same pid. Workers die with it.
"""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from lab.worker import ORDERS, Spec, die_with, run
from process.children import PATIENCE, Child, until

TESTS = Path(__file__).parents[1]
BACKENDS = ("dibs.backends.memory", "dibs.backends.sqlite.store", "dibs.backends.zookeeper.store")
"""Imported here once, which a client does when it is made."""


class Nursery:
    def __init__(self) -> None:
        # -P: this folder's `resource` must not stand before that of the standard library.
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        self._child = Child("../lab/nursery", os.getpid(), flags=("-P",), env={"PYTHONPATH": path})

    def start(self, spec: Spec) -> int:
        return int(self._child.ask("worker", spec.text(), hear="started")[0])

    def stand_still(self, path: Path) -> int:
        """A process that stops itself once it is inside a transaction on that file; it undoes it once it goes on."""
        return int(self._child.ask("standstill", path, hear="started")[0])

    def reap(self, pid: int) -> int:
        """Its status, once it has ended; negative: the signal that ended it."""
        return int(self._child.ask("reap", pid, hear="reaped")[0])

    def finish(self) -> str:
        """End it, once all its workers have ended; gives what anybody in it wrote to stderr."""
        assert self._child.process.stdin is not None
        self._child.process.stdin.close()
        self._child.end()
        return self._child.errors

    def close(self) -> None:
        self._child.discard()


def state_of(pid: int) -> str:
    """T: all its threads stand still; Z: it is dead; otherwise R, S or D."""
    try:
        states = {
            (task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()
        }
    except (FileNotFoundError, ProcessLookupError):
        return "S"  # a thread ended while we looked: look again
    return next((state for state in sorted(states) if state not in "TZ"), "T" if "T" in states else "Z")


def stopped(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) in "TZ", PATIENCE, what=f"pid {pid} stopped")


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: state_of(pid) == "Z", PATIENCE, what=f"pid {pid} dead")


def _work(text: str) -> None:
    run(Spec.read(text))


def _stand_still(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
    connection.execute("BEGIN IMMEDIATE")
    os.kill(os.getpid(), signal.SIGSTOP)
    connection.close()


def _fork(life: Callable[[], object]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, ORDERS)
    parent, pid = os.getpid(), os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ORDERS)
        return pid
    status = 1
    try:
        die_with(parent)
        life()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    die_with(int(sys.argv[1]))
    for backend in BACKENDS:
        import_module(backend)
    gc.freeze()
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        match word:
            case "worker":
                print("started", _fork(partial(_work, rest)))
            case "standstill":
                print("started", _fork(partial(_stand_still, rest)))
            case _:
                print("reaped", os.waitstatus_to_exitcode(os.waitpid(int(rest), 0)[1]))


if __name__ == "__main__":
    main()
