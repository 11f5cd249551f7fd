"""The findings of `doctor` for the embedded store: its promises in this place, and their dangers.

Everything is tried or measured here: a liveness file is locked and tested, the file system is asked for room, SQLite
checks the file. An error that prevents opening the file was raised before, and is not repeated. No claim is changed,
and the one file that is created is removed.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from dibs.backends.sqlite import files
from dibs.backends.sqlite.files import Inode
from dibs.backends.sqlite.presence import names_of, try_liveness
from dibs.backends.sqlite.registration import Registration, clock_shift
from dibs.backends.sqlite.table import SqliteTable, check_tables
from dibs.errors import StoreError
from dibs.info import Finding, duration
from dibs.runtime.threads import boottime

MB = 1_000_000
LEAST_ROOM = 8 * MB
"""The log alone grows to 4 MB before SQLite copies it into the database."""
LEAST_FILES = 100
"""Each client creates two."""
LONG_LOG = 16 * MB
"""Four times its usual size."""
FAR_AHEAD = 600.0
"""Seconds that tokens may be ahead of the wall clock: each reboot moves them by up to a minute."""
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})
LAYERED = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
_LOCAL_DISK = "put the file on a local disk, such as ext4 or xfs"
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Its inode number in the kernel."""


def examine(registration: Registration, connection: sqlite3.Connection, table: SqliteTable) -> list[Finding]:
    parent = registration.path.parent
    kind = files.kind_of(parent)
    alive, dead = try_liveness(registration.directory)
    unsound = list(_unsound(alive, connection))
    return [
        Finding("about", f"SQLite {sqlite3.sqlite_version}"),
        *_promises(kind, sound=not unsound, notices_death=alive and dead),
        *_reach(parent, registration.is_default),
        *_file_system(kind),
        *_neighbours(parent),
        *_clock(clock_shift()),
        *_library(sqlite3.sqlite_version_info),
        *unsound,
        *_unseen(dead, registration.directory, table),
        *_room(parent),
        *_log(Path(f"{registration.path}-wal"), connection),
        *_tokens(kind, table),
    ]


def _promises(kind: str, *, sound: bool, notices_death: bool) -> Iterator[Finding]:
    if sound:
        yield Finding("promise", "at most one valid holder among the processes of this user on this machine")
    yield Finding("promise", "first come, first served, across processes")
    if notices_death:
        yield Finding("promise", "the lock of a process that dies is free within about a second")
    if kind in IN_MEMORY:
        yield Finding("promise", "tokens rise strictly until the machine restarts")
    else:
        yield Finding("promise", "tokens rise strictly for the life of the file, over reboots and power cuts too")
        yield Finding("promise", "cells and fences that were answered survive a power cut")
    yield Finding("promise", "changes of the wall clock do no harm: no lease depends on it")


def _reach(parent: Path, is_default: bool) -> Iterator[Finding]:
    if is_default:
        yield Finding(
            "note", "this machine only, because no URL was given: other users and machines have their own locks",
            "set DIBS_URL to a store that all of them can reach",
        )  # fmt: skip
    if _is_contained():
        yield Finding(
            "note", "this process is in a container: another container shares these locks only if it uses the "
            "same directory",
            f"mount {parent} into each, under the same user id",
        )  # fmt: skip


def _file_system(kind: str) -> Iterator[Finding]:
    if kind in IN_MEMORY:
        yield Finding(
            "note", f"the file is in memory ({kind}): a reboot deletes it, with its cells and fences, and "
            f"tokens start again at the wall clock", "use a file on a disk if they must survive a reboot",
        )  # fmt: skip
    elif kind in LAYERED:
        yield Finding(
            "note", f"the file is in a layer of a container ({kind}): it is lost with the container, and "
            f"another container has its own", "use a file on a volume",
        )  # fmt: skip
    elif kind.startswith("fuse"):
        yield Finding(
            "note", f"the file is on {kind}: dibs cannot tell whether this is a network file system",
            "make sure that no other machine uses the file",
        )  # fmt: skip


def _neighbours(parent: Path) -> Iterator[Finding]:
    """Other users that may remove the file, and every lock with it."""
    found = parent.stat()
    sticky = bool(found.st_mode & stat.S_ISVTX)
    if found.st_uid not in (0, os.geteuid()) or (found.st_mode & stat.S_IWGRP and not sticky):
        yield Finding(
            "note", f"other users may remove the file, and every lock with it: {parent} belongs to them, or its "
            f"group may write to it",
            "use a directory of your own with mode 0700",
        )  # fmt: skip
    for above in (parent, *parent.parents):
        mode = above.stat().st_mode
        if mode & stat.S_ISVTX and mode & stat.S_IWOTH:
            yield Finding(
                "note", f"{above} is for temporary files: a cleanup of old files would lose every lock",
                "use a directory without cleanup, such as ~/.local/state",
            )  # fmt: skip
            return  # one finding is enough


def _clock(shift: str) -> Iterator[Finding]:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        yield Finding(
            "note", "this system has no clock that counts while it is suspended: leases may not run during a suspend"
        )
    if shift.strip("0+"):
        yield Finding(
            "note", f"this process is in a time namespace ({shift} s): processes outside of it cannot "
            f"use this file", "use one time namespace for all processes",
        )  # fmt: skip


def _library(version: tuple[int, ...]) -> Iterator[Finding]:
    fixed = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    if not fixed:
        yield Finding(
            "note", "this SQLite has the WAL-reset bug: very rarely, two simultaneous writers damage a database",
            "use SQLite 3.51.3 or later (or 3.50.7, 3.44.6)",
        )  # fmt: skip


def _unsound(alive: bool, connection: sqlite3.Connection) -> Iterator[Finding]:
    """Dangers that can give one lock to two holders."""
    if not alive:
        yield Finding(
            "danger", "file locks do not work here: live holders are taken for dead, and lose their locks", _LOCAL_DISK
        )
    try:
        check_tables(connection)
    except StoreError as error:
        yield Finding("danger", f"{error.what}: the next process that opens it is refused", error.step or "")


def _unseen(dead: bool, directory: Path, table: SqliteTable) -> Iterator[Finding]:
    """Clients whose death cannot be noticed. A client that closes first removes its row, then its file."""
    if not dead:
        yield Finding(
            "danger", "the death of a process is not noticed here: its lock is free only when its lease runs out",
            _LOCAL_DISK,
        )  # fmt: skip
    now = boottime()
    gone = {id for id, inode in table.busy(now).items() if not _is_there(directory / names_of(id)[0], inode)}
    if gone and (gone := gone & table.busy(now).keys()):
        yield Finding(
            "danger", f"{len(gone)} holders or waiters would not be noticed if they died, and are not woken: "
            f"their files are not in {directory}, or were replaced",
            "restart them, and leave that directory alone; containers must mount it as one device",
        )  # fmt: skip


def _room(parent: Path) -> Iterator[Finding]:
    disk = os.statvfs(parent)
    left = disk.f_bavail * disk.f_frsize
    if left < LEAST_ROOM:
        yield Finding(
            "danger",
            f"{left / MB:.1f} MB are left on the disk: on a full disk, locks and renewals are refused",
            "make room",
        )
    if disk.f_files and disk.f_favail < LEAST_FILES:  # some file systems do not count them
        yield Finding(
            "danger", f"{disk.f_favail} more files fit on the disk: a new client creates two", "remove some files"
        )


def _log(log: Path, connection: sqlite3.Connection) -> Iterator[Finding]:
    size = log.stat().st_size
    if size >= LONG_LOG:
        _, written, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if copied < written:
            yield Finding(
                "danger", f"the log has grown to {size / MB:.0f} MB, because a program that reads the database "
                f"does not end its transaction", f"find that program (lsof {log}), and stop it",
            )  # fmt: skip


def _tokens(kind: str, table: SqliteTable) -> Iterator[Finding]:
    ahead = table.ahead(boottime(), time.time())
    if ahead > FAR_AHEAD:
        removed = "after a reboot" if kind in IN_MEMORY else "if the file is ever removed"
        yield Finding(
            "danger" if kind in IN_MEMORY else "note",
            f"tokens are {duration(ahead)} ahead of the wall clock: {removed}, new tokens start below those given out",
            "correct the clock; if it is correct, keep the file" + (", on a disk" if kind in IN_MEMORY else ""),
        )


def _is_contained() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE  # noqa: PTH116  (a link into the kernel)
    except OSError:
        return False


def _is_there(path: Path, inode: Inode) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == inode
