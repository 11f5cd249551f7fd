"""Processes that work at the same time and end with the call, however it ends.

`together(function, calls)` runs `function(start, *args)` in one process per call. Each gets ready, calls `start()`,
which returns in all of them at once, and returns its result. An interrupt of the parent, or its death, ends them all.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1
_LONGEST_START = 120.0
_WHEN = struct.Struct("d")

Side = tuple[Callable[[], object], Callable[[], object], Callable[[], object]]
"""What one of two processes does: send, receive, and get ready to receive again."""


class Failed(Exception):
    """A process could not do its part."""


def together(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, method: str = "fork", patience: float = 300.0
) -> list[Any]:
    """Results in the order of the calls, or Failed. With `fork` shared memory may be among the arguments."""
    return [checked(result) for result in _run(function, calls, method, patience)]


def apart(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, at_once: bool) -> list[Any]:
    """Each call in a fresh interpreter, one after the other unless `at_once`; a Failed in place of a missing result."""
    groups = [calls] if at_once else [[call] for call in calls]
    return [result for group in groups for result in _run(function, group, "spawn", 300.0)]


def one_way(make: Callable[[int, ExitStack], Side], turns: int) -> list[float]:
    """Seconds from just before one process sends until the other has received, which slept. They take turns."""
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        calls = [(make, me, shared, turns) for me in range(2)]
        return [gap for gaps in together(_throw, calls, patience=60.0) for gap in gaps]


def _throw(
    start: Callable[[], None], make: Callable[[int, ExitStack], Side], me: int, shared: mmap.mmap, turns: int
) -> list[float]:
    clock, gaps = time.perf_counter, []
    with ExitStack() as stack:
        send, receive, again = make(me, stack)
        start()
        for turn in range(turns * 2):
            if turn % 2 == me:
                time.sleep(0.005)  # the other falls asleep
                _WHEN.pack_into(shared, 0, clock())
                send()
            else:
                receive()
                now = clock()
                gaps.append(now - _WHEN.unpack_from(shared)[0])
                again()
    return gaps


def checked(result: Any) -> Any:
    if isinstance(result, Failed):
        raise result
    return result


def _run(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], method: str, patience: float) -> list[Any]:
    context: Any = multiprocessing.get_context(method)
    go, crew = context.Event(), []
    try:
        for args in calls:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(theirs, go, os.getpid(), function, args), daemon=True)
            crew.append((process, ours))
            process.start()
            theirs.close()
        ready = [_hear(pipe, "ready", _LONGEST_START) for _, pipe in crew]
        go.set()
        results = [
            failed if isinstance(failed, Failed) else _hear(pipe, "done", patience)
            for failed, (_, pipe) in zip(ready, crew, strict=True)
        ]
        for (process, _), result in zip(crew, results, strict=True):
            if not isinstance(result, Failed):
                process.join(10.0)
        return results
    finally:
        for process, pipe in crew:
            pipe.close()
            if process.pid is not None:
                process.kill()
                process.join()


def _hear(pipe: Connection, wanted: str, patience: float) -> Any:
    if not pipe.poll(patience):
        return Failed(f"not {wanted} after {patience:.0f} s")
    try:
        what, value = pipe.recv()
    except EOFError:
        return Failed(f"a process ended before it was {wanted}")
    return value if what == wanted else Failed(f"{what}: {value}")


def _work(pipe: Connection, go: Any, parent: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return

    def start() -> None:
        pipe.send(("ready", None))
        go.wait(_LONGEST_START)

    try:
        pipe.send(("done", function(start, *args)))
    except Exception as error:
        pipe.send((type(error).__name__, " ".join(str(error).split())))
