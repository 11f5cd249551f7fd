"""Which files the embedded store agrees to live in.

The file is ours alone (0600, our own user, one name, no symbolic link), its directory cannot be meddled with by others,
and it lies on a file system of this machine: SQLite's locks prove nothing across a network. Nothing is opened here,
nor, where that can be helped, to make a file: closing a descriptor of a database drops every POSIX lock that this
process has on it, also those of SQLite.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dibs.errors import StoreError, StoreUnavailable

_NETWORK = frozenset(
    (
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "smb2", "ncpfs", "afs", "coda", "ceph", "lustre", "gpfs", "9p", "gfs2",
        "ocfs2", "beegfs", "glusterfs", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs",
        "fuse.rclone", "fuse.davfs2", "fuse.gcsfuse", "fuse.blobfuse", "fuse.juicefs", "fuse.mfs",
        "virtiofs", "vboxsf", "vmhgfs", "fuse.vmhgfs-fuse", "prl_fs",
    )
)  # fmt: skip
_NO_MKNOD = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP)
"""Only root may, as on macOS, or the file system cannot: then the file is opened after all to be made, and a second
client of this process that comes in that instant loses SQLite's locks."""
_OCTAL = re.compile(r"\\([0-7]{3})")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def prepare(path: Path, *, make_directory: bool) -> None:
    """Check the place, and make the file (and, for the default path, its directory) if it is not there."""
    if make_directory:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        directory = path.parent.stat()
    except OSError as error:
        raise StoreError(
            f"the directory of the database cannot be used: {error.strerror}",
            step=f"create {path.parent}; an absolute path has four slashes: sqlite:////...",
        ) from None
    if not stat.S_ISDIR(directory.st_mode):
        raise StoreError("the place of the database is not a directory", step="give another path")
    # With the sticky bit others cannot touch what is ours, but the owner of such a directory still can.
    sticky = directory.st_mode & stat.S_ISVTX and directory.st_uid in (0, os.geteuid())
    if directory.st_mode & stat.S_IWOTH and not sticky:
        raise StoreError(
            "everybody may write to the directory of the database", step=f"chmod 700 {path.parent}, or another place"
        )
    real = Path(os.path.realpath(path.parent))
    mounts = _mounts()
    kind = file_system(directory.st_dev, str(real), mounts)
    if kind in _NETWORK:
        raise StoreError(
            f"the database would be on a network file system ({kind}), where file locks are not reliable",
            step="put it on a local disk, or use a network store",
        )
    if is_mounted(str(real / path.name), mounts):
        raise StoreError(
            "only the file itself is mounted here, not its directory: the log and lock files beside it are not shared",
            step=f"mount its directory as {path.parent}",
        )
    _make(path)
    check(path)


def check(path: Path) -> os.stat_result:
    """The file itself: regular, ours, with one name, closed to others."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise StoreUnavailable("the database was removed", step="the next use creates it again") from None
    except OSError as error:
        raise StoreError(f"the database cannot be read: {error.strerror}", step="check its directory") from None
    if stat.S_ISLNK(found.st_mode):
        raise StoreError("the database is a symbolic link", step="give the path of the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise StoreError("the database is not a regular file", step="give another path")
    for side in ("", "-wal", "-shm", "-journal"):  # SQLite opens whatever lies there, and plays back the last one
        with suppress(FileNotFoundError):
            part = path.with_name(path.name + side).lstat()
            if part.st_uid != os.geteuid() or not stat.S_ISREG(part.st_mode):
                raise StoreError(
                    f"the database{side} belongs to another user (user id {part.st_uid}); a database serves one "
                    f"user only",
                    step="run as that user; another path would be another lock",
                )
            if part.st_nlink > 1:
                raise StoreError(f"the database{side} has several names (hard links)", step="give a path of its own")
    if found.st_mode & _OTHERS:
        raise StoreError(
            "other users may open the file",
            step=f"if it is a database of dibs, chmod 600 {path}; else give another path",
        )
    return found


def private_directory(path: Path) -> None:
    """A directory of ours beside the database, for liveness and wake-ups."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise StoreError(f"{path} is not a private directory of this user", step="remove it, or give another path")


def kind_of(directory: Path) -> str:
    """The type of the file system that a directory lies on; empty if nobody tells."""
    return file_system(directory.stat().st_dev, os.path.realpath(directory), _mounts())


def file_system(device: int, path: str, mounts: str) -> str:
    """The type of the file system a path lies on, from the text of /proc/self/mountinfo; empty if it is not told."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    by_device, by_path, longest = "", "", -1
    for number, point, kind in _parse(mounts):
        if number == wanted:
            by_device = kind
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            by_path, longest = kind, len(point)
    return by_device or by_path


def is_mounted(path: str, mounts: str) -> bool:
    """Whether something is mounted at this very path, by the text of /proc/self/mountinfo."""
    return any(point == path for _, point, _ in _parse(mounts))


def _parse(mounts: str) -> Iterator[tuple[str, str, str]]:
    """Device, place and type of each mount."""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()[:1]
        if len(fields) >= 5 and kind:
            yield fields[2], _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]), kind[0]


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _make(path: Path) -> None:
    try:
        try:
            os.mknod(path, stat.S_IFREG | 0o600)
        except OSError as error:
            if error.errno not in _NO_MKNOD:
                raise
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(
            f"the database cannot be created: {error.strerror}",
            step=remedy(error, f"make {path.parent} writable, or give another path"),
        ) from None


def remedy(error: OSError, usual: str) -> str:
    """The next step where a file could not be made."""
    return "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else usual
