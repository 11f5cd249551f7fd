"""A client's presence on the machine: a file that is locked while its process lives, and a socket for wake-ups.

Liveness: each client keeps an exclusive flock on its own file, whose device and inode number are in the database. A
client is dead only if another process can lock that inode. A missing or different file proves nothing; then the lease
decides. A forked child closes the descriptor without unlocking. A child forked by other means than Python keeps its
parent alive in this sense, until the parent's leases end.

Wake-ups are datagrams of claim ids and signals, sent without waiting. A lost one costs a waiter a second.
"""

from __future__ import annotations

import _socket as socket  # `socket` creates enumerations of hundreds of constants
import fcntl
import os
import re
import select
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from struct import pack
from types import BuiltinFunctionType

from dibs.backends.sqlite import files

_LONGEST_ADDRESS = 100
_ALIVE_FOR = 0.25
"""Seconds for which a client that was alive counts as alive."""
ID_SIZE = 16
_WAKEUP_SIZE = ID_SIZE + 1
"""An id and a signal."""
MOST_WAKEUPS = 256
"""Per datagram: a socket queues only a few datagrams."""
_NEW = ".new"
"""The suffix of a liveness file until it is locked."""
_SUFFIXES = (_NEW, ".live", ".sock")
_IS_ID = re.compile(f"[0-9a-f]{{{2 * ID_SIZE}}}")


def names_of(id: bytes) -> tuple[str, str]:
    """The names of a client's liveness file and socket. They are derived from its id, never read from the database."""
    return f"{id.hex()}.live", f"{id.hex()}.sock"


class Presence:
    """The liveness file and socket of this client; also the `Source` of its inbox."""

    _dropped = True

    def __init__(self, directory: Path, id: bytes) -> None:
        files.private_directory(directory)
        self._id, self._path = id, directory
        self._sockets = str(directory)
        """The directory of the sockets. The path of a socket has at most 108 bytes, so a longer one goes through our
        descriptor of the directory."""
        self.live, self.address = names_of(id)
        self._directory = self._file = -1
        self._patience = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._dropped = False
        try:
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._file = _locked(directory / self.live)
            found = os.fstat(self._file)
            self.dev, self.ino = found.st_dev, found.st_ino
            if len(os.fsencode(directory / self.address)) > _LONGEST_ADDRESS:
                self._sockets = f"/proc/self/fd/{self._directory}"
            (directory / self.address).unlink(missing_ok=True)
            self._socket.bind(f"{self._sockets}/{self.address}")
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> list[tuple[bytes, bytes]]:
        return self._take(socket.MSG_DONTWAIT)

    def receive(self, patience: float) -> list[tuple[bytes, bytes]]:
        """Wait inside `recv`, because each further call adds to the latency of a waiter. Where gevent or eventlet has
        replaced `select`, wait there: a blocking `recv` would stop all greenlets."""
        if not isinstance(select.select, BuiltinFunctionType):
            with suppress(OSError, ValueError):  # closed by another thread
                select.select([self], [], [], patience)
            return self.read()
        microseconds = max(int(patience * 1e6), 1000)
        if microseconds != self._patience:
            self._patience = microseconds
            self._socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack("@ll", *divmod(microseconds, 1_000_000))
            )
        return self._take(0)

    def _take(self, flags: int) -> list[tuple[bytes, bytes]]:
        try:
            message = self._socket.recv(MOST_WAKEUPS * _WAKEUP_SIZE, flags)
        except OSError:
            return []
        starts = range(0, len(message) - ID_SIZE, _WAKEUP_SIZE)
        return [(message[at : at + ID_SIZE], message[at + ID_SIZE : at + _WAKEUP_SIZE]) for at in starts]

    def poke(self) -> None:
        self.send(self._id, b"")

    def send(self, client: bytes, message: bytes) -> None:
        """Send after the commit, without waiting. A client that misses a message looks within a second."""
        try:
            self._socket.sendto(message, socket.MSG_DONTWAIT, f"{self._sockets}/{client.hex()}.sock")
        except OSError:
            return

    def close(self) -> None:
        """Close, and remove the file and the socket."""
        for name in (self.live, self.address):
            with suppress(OSError):
                (self._path / name).unlink()
        self.drop()

    def drop(self) -> None:
        """Close only the descriptors: in a forked child the files belong to the parent."""
        if not self._dropped:
            self._dropped = True
            self._socket.close()
            for file in (self._file, self._directory):
                if file >= 0:
                    os.close(file)

    def __del__(self) -> None:
        if not self._dropped:
            self.close()


def _locked(path: Path) -> int:
    """Create a file that is locked before it gets its name: another client may remove a file that it can lock."""
    fresh = path.with_suffix(_NEW)
    while True:
        fresh.unlink(missing_ok=True)  # left by an interrupted attempt of this client
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fresh.rename(path)
            return file
        except (BlockingIOError, FileNotFoundError):  # another client removed it before it was locked
            os.close(file)
        except BaseException:
            os.close(file)
            fresh.unlink(missing_ok=True)
            raise


def sweep(directory: Path, known: Container[str]) -> None:
    """Remove the files of dead clients that are not in the database.

    A live client that is not in the database yet has locked its file. If it was killed before that, after others
    removed its row, or in a sweep, then its file can be locked, or only its socket is left.
    """
    left: dict[str, list[Path]] = {}
    for entry in directory.iterdir():
        if entry.suffix in _SUFFIXES and _IS_ID.fullmatch(entry.stem) and entry.stem not in known:
            left.setdefault(entry.stem, []).append(entry)
    for id, seen in left.items():
        _sweep_one(directory / id, seen)


def _sweep_one(client: Path, seen: list[Path]) -> None:
    """Remove a file only while this process has it locked: otherwise its owner could lock it just before. Remove a
    socket only if it was listed before: a new client creates its socket after it has locked its file."""
    held: list[int] = []
    doomed = [path for path in seen if path.suffix == ".sock"]
    try:
        for path in (client.with_suffix(_NEW), client.with_suffix(".live")):
            with suppress(FileNotFoundError):
                held.append(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                doomed.append(path)
        for path in doomed:
            path.unlink(missing_ok=True)
    except OSError:
        return
    finally:
        for file in held:
            os.close(file)


def try_liveness(directory: Path) -> tuple[bool, bool]:
    """Whether a live client counts as alive on this file system, and a dead one as dead; tried with a new file."""
    path = directory / names_of(os.urandom(ID_SIZE))[0]
    file = _locked(path)
    try:
        made = os.fstat(file)
        alive = not is_dead(path, made.st_dev, made.st_ino)
        fcntl.flock(file, fcntl.LOCK_UN)  # a child forked in between has it open, too
        dead = is_dead(path, made.st_dev, made.st_ino) or not path.exists()  # a sweep that removed it had locked it
    finally:
        os.close(file)
        path.unlink(missing_ok=True)
    return alive, dead


class Others:
    """Tests whether other clients are dead; caches for a moment that one is alive."""

    def __init__(self, directory: Path, now: Callable[[], float]) -> None:
        self._directory = str(directory)
        self._now = now
        self.alive_until: dict[bytes, float] = {}
        """By client, until when it counts as alive without another test."""

    def dead(self, client: bytes, dev: int, ino: int) -> bool:
        now = self._now()
        if now < self.alive_until.get(client, 0.0):
            return False
        dead = is_dead(f"{self._directory}/{names_of(client)[0]}", dev, ino)
        if not dead:
            if len(self.alive_until) > 10_000:
                self.alive_until.clear()
            self.alive_until[client] = now + _ALIVE_FOR
        return dead


def is_dead(path: str | Path, dev: int, ino: int) -> bool:
    """Whether this process can lock the recorded inode. Any failure means: not proven dead."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        found = os.fstat(file)
    except OSError:  # mostly: it is locked
        return False
    else:
        return (found.st_dev, found.st_ino) == (dev, ino)
    finally:
        os.close(file)
