"""Calls to the operating system."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

LONGEST_NAP = 1.0
"""Longest sleep, in seconds: timers stop while the machine is suspended, so look at the clock often."""
ORPHANED = 3
"""The exit status of a process whose parent has died."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_PR_SET_PDEATHSIG = 1


def now() -> float:
    """The clock of hold deadlines: it counts suspended time, and is the same for all processes of the machine."""
    return time.clock_gettime(_CLOCK)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux only); end at once if it has died already.

    For the kernel the parent is the *thread* that forked: it must live as long as the process. The setting survives
    exec, but neither a further fork nor a set-user-id program.
    """
    if sys.platform == "linux":
        with suppress(ImportError, OSError, AttributeError):  # not every Python is built with it
            import ctypes  # noqa: PLC0415  (slow to import, and few commands need it)

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ORPHANED)


def exists(process: int) -> bool:
    """Whether a process exists; for a negative number, a member of that group. Unreaped ones count."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True


def lives(group: int) -> str:
    """The living processes of a group: pid 123 (sleep), pid 124 (sh). Zombies do not count."""
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


def open_files() -> list[int]:
    """The open file descriptors of this process; a guess where the system does not list them."""
    try:
        return [int(number) for number in os.listdir("/dev/fd")]  # noqa: PTH208  (pathlib costs a third of the start)
    except OSError:
        return list(range(256))


def given_environment() -> dict[bytes, bytes]:
    """The environment without LC_CTYPE, if Python set it itself for the locale C (PEP 538)."""
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
    """Set the name of this process in process lists, where the system can."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(name)
