"""A client's presence on the machine: a file that is locked while its process lives, and a socket to wake it by.

Liveness: an exclusive flock on a file of this client's own, recorded in the database as (dev, ino). Only a successful
lock test on that very inode says dead; a missing or other file says nothing, and then the lease decides. A forked
child closes the descriptor and never unlocks, so a process killed while a forked child that did not go through Python
lives on counts as alive until its leases end.

Wake-ups are datagrams of ids and signals, sent without waiting; a lost one costs a second.
"""

from __future__ import annotations

import _socket as socket  # `socket` itself makes enumerations of some hundred constants first
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
"""How long a verdict "alive" is believed."""
ID_SIZE = 16
_WORD = ID_SIZE + 1
"""An id and a signal."""
MOST = 256
"""Words in one datagram: a socket keeps few datagrams for a process that is not at it."""
_FRESH = ".new"
"""How a client's file ends until it is locked."""
_ENDS = (_FRESH, ".live", ".sock")
_IS_ID = re.compile(f"[0-9a-f]{{{2 * ID_SIZE}}}")


def names_of(id: bytes) -> tuple[str, str]:
    """A client's liveness file and its socket. They follow from its id: no other file is touched for it."""
    return f"{id.hex()}.live", f"{id.hex()}.sock"


class Presence:
    """This client's own file and socket; also the `Source` of its inbox."""

    _dropped = True

    def __init__(self, directory: Path, id: bytes) -> None:
        files.private_directory(directory)
        self._id, self._path = id, directory
        self._sockets = str(directory)
        """How sockets are reached: a socket's path must be short, or go through our descriptor of its directory."""
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
        """One call into the kernel, which waits: what lies between its wake-up and ours is a waiter's latency. Where
        gevent or eventlet has replaced `select`, that is what waits: the kernel would stop all other greenlets."""
        if not isinstance(select.select, BuiltinFunctionType):
            with suppress(OSError, ValueError):  # closed meanwhile
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
            message = self._socket.recv(MOST * _WORD, flags)
        except OSError:
            return []
        starts = range(0, len(message) - ID_SIZE, _WORD)
        return [(message[at : at + ID_SIZE], message[at + ID_SIZE : at + _WORD]) for at in starts]

    def poke(self) -> None:
        self.send(self._id, b"")

    def send(self, client: bytes, message: bytes) -> None:
        """After commit, never waiting: a client that does not hear it looks within a second."""
        try:
            self._socket.sendto(message, socket.MSG_DONTWAIT, f"{self._sockets}/{client.hex()}.sock")
        except OSError:
            return

    def close(self) -> None:
        """The end of this client: nothing of it stays."""
        for name in (self.live, self.address):
            with suppress(OSError):
                (self._path / name).unlink()
        self.drop()

    def drop(self) -> None:
        """Close without a word: in a forked child, where everything still belongs to the parent."""
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
    """A new file that is locked from the instant at which it bears its name: whoever can lock it may remove it."""
    fresh = path.with_suffix(_FRESH)
    while True:
        fresh.unlink(missing_ok=True)  # of an attempt of ours that was interrupted: the name is ours alone
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fresh.rename(path)
            return file
        except (BlockingIOError, FileNotFoundError):  # it was swept away before it was locked
            os.close(file)
        except BaseException:
            os.close(file)
            fresh.unlink(missing_ok=True)
            raise


def sweep(directory: Path, known: Container[str]) -> None:
    """Remove what clients left that the database does not know (any more), by the names of their ids.

    One that is alive and not known yet has its file locked. Killed before it had, after others took it out of the
    database, or in the middle of this: what is left of it can be locked, or is a socket alone.
    """
    left: dict[str, list[Path]] = {}
    for entry in directory.iterdir():
        if entry.suffix in _ENDS and _IS_ID.fullmatch(entry.stem) and entry.stem not in known:
            left.setdefault(entry.stem, []).append(entry)
    for id, seen in left.items():
        _sweep_one(directory / id, seen)


def _sweep_one(client: Path, seen: list[Path]) -> None:
    """No file is removed that is not held locked: between a look and the removal its owner might get to it. A socket
    goes only if it was there before the look: a newcomer's is made after its file is locked."""
    held: list[int] = []
    doomed = [path for path in seen if path.suffix == ".sock"]
    try:
        for path in (client.with_suffix(_FRESH), client.with_suffix(".live")):
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
    """Whether a living client is taken for alive in this place, and a dead one for dead; tried with one made up."""
    path = directory / names_of(os.urandom(ID_SIZE))[0]
    file = _locked(path)
    try:
        made = os.fstat(file)
        alive = not is_dead(path, made.st_dev, made.st_ino)
        fcntl.flock(file, fcntl.LOCK_UN)  # not by closing: a child that was forked meanwhile has it open too
        dead = is_dead(path, made.st_dev, made.st_ino) or not path.exists()  # who swept it away could lock it
    finally:
        os.close(file)
        path.unlink(missing_ok=True)
    return alive, dead


class Others:
    """Which other clients are known to be dead; verdicts are kept for a moment."""

    def __init__(self, directory: Path, now: Callable[[], float]) -> None:
        self._directory = str(directory)
        self._now = now
        self.alive_until: dict[bytes, float] = {}
        """Until when a client that was alive is believed to be."""

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
    """Only a successful lock test on the recorded inode says so."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        found = os.fstat(file)
    except OSError:  # it is locked: that is what mostly ends it here
        return False
    else:
        return (found.st_dev, found.st_ino) == (dev, ino)
    finally:
        os.close(file)
