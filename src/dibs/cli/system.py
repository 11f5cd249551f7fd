"""What the commands ask of the operating system."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

LONGEST_NAP = 1.0
"""Timers stand still while the machine is suspended: nobody sleeps longer than this without a look at the clock."""
ORPHANED = 3
"""The exit status of a process whose parent was gone before it could tie itself to it."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_PR_SET_PDEATHSIG = 1


def now() -> float:
    """The clock that holds end by: it also counts suspended time, and every process of the machine reads the same."""
    return time.clock_gettime(_CLOCK)


def die_with(parent: int) -> None:
    """Have this process killed when its parent dies, where the kernel offers that; end at once if it is gone already.

    The kernel means the parent's *thread* that forked: call this only in children of a thread that lives as long. It
    survives exec, not a further fork, and a set-user-id program takes it off.
    """
    if sys.platform == "linux":
        with suppress(ImportError, OSError, AttributeError):  # not every Python is built with it
            import ctypes  # noqa: PLC0415  (slow to import, and few commands need it)

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it went before we asked
        os._exit(ORPHANED)


def exists(group: int) -> bool:
    """Whether a process group has any member, also a dead one that nobody has reaped."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # there is one, and it is somebody else's
        return True
    return True


def lives(group: int) -> str:
    """Who of a process group lives: pid 123 (sleep), pid 124 (sh). Dead ones that nobody has reaped do not count."""
    try:
        processes = [entry for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208  (pathlib is slow)
    except OSError:
        return "unknown"
    found = []
    for process in processes:
        try:
            with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123
                before, _, after = file.read().rpartition(b")")
        except OSError:
            continue
        state, _, its_group = after.split()[:3]
        if int(its_group) == group and state not in (b"Z", b"X"):
            found.append(f"pid {process} ({before.partition(b'(')[2].decode(errors='backslashreplace')})")
    return ", ".join(found)


def let_go_of_streams() -> None:
    """Of our own copies of what the command reads and writes: a pipe is closed when the command closes it."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def open_files() -> list[int]:
    """The numbers of this process's open files; where nobody lists them, those that are likely."""
    try:
        return [int(number) for number in os.listdir("/dev/fd")]  # noqa: PTH208  (pathlib costs a third of the start)
    except OSError:
        return list(range(256))


def given_environment() -> dict[bytes, bytes]:
    """The environment without what Python put there for itself: for the locale C it sets LC_CTYPE (PEP 538)."""
    environment = dict(os.environb)
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
            given = file.read().split(b"\0")
    except OSError:
        return environment
    environment.pop(b"LC_CTYPE", None)
    for pair in given:
        if pair.startswith(b"LC_CTYPE="):
            environment[b"LC_CTYPE"] = pair[9:]
    return environment


def rename(name: str) -> None:
    """What this process is called in lists, where that can be said."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(name)
