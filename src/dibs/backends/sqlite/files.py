"""The files of the embedded store: which places it accepts, and how it creates them.

The database belongs to this user alone: mode 0600, one name, no symbolic link, in a directory that others cannot
change. It is on a file system of this machine, because file locks are not reliable across a network. This module opens
no database, and creates one without opening it where it can: closing any descriptor of a file drops all POSIX locks
that this process has on it, also those of SQLite.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

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
"""mknod needs root (macOS), or the file system does not have it. Then the file is created by opening it; another client
of this process that opens the database at that instant loses SQLite's locks."""
Inode = tuple[int, int]
"""Device and inode number."""
_OCTAL = re.compile(r"\\([0-7]{3})")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def prepare(path: Path, *, make_directory: bool) -> None:
    """Check the place, and create the file if it does not exist. `make_directory`: create its directory, too."""
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
    # With the sticky bit only the owner of the directory can remove files of other users.
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
    """Refuse a file that is not a regular file of this user, has several names, or is open to other users."""
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
    for side in ("", "-wal", "-shm", "-journal"):  # SQLite opens them all, and replays a journal
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
    """Create or check the directory beside the database, for liveness files and sockets."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise StoreError(f"{path} is not a private directory of this user", step="remove it, or give another path")


def kind_of(directory: Path) -> str:
    """The type of the file system of a directory; empty if unknown."""
    return file_system(directory.stat().st_dev, os.path.realpath(directory), _mounts())


def file_system(device: int, path: str, mounts: str) -> str:
    """The type of the file system of a path, from the text of /proc/self/mountinfo; empty if unknown."""
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
    """Whether this path itself is a mount point, by the text of /proc/self/mountinfo."""
    return any(point == path for _, point, _ in _parse(mounts))


def _parse(mounts: str) -> Iterator[tuple[str, str, str]]:
    """Device, mount point and type of each mount."""
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
    """The next step for a file that could not be created."""
    return "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else usual


def open_turn(directory: Path) -> int:
    """Open the file whose lock writers take before the write lock of SQLite."""
    return os.open(directory / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def uri(path: Path, options: str = "mode=rw") -> str:
    """The URI that makes SQLite open an existing file, and never create one."""
    return f"file:{quote(str(path.absolute()))}?{options}"


def inode_of(path: str) -> Inode | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (half the time of Path.stat)
    except OSError:
        return None
    return found.st_dev, found.st_ino
