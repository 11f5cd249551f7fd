"""Replace a file atomically, unless a holder with a later token has written it.

fenced_file.py PATH     the new contents are read from stdin, while the lock is held
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import dibs


class FencedFile:
    """A file and, beside it, the highest token that has written it. Every writer must use this class."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fence = path.with_name(path.name + ".fence")

    def write(self, contents: bytes, token: int) -> None:
        """Compare and write under an operating system lock on the file, which has no lease.

        The token is written first. A crash between the two leaves the old contents and the new token: older writers
        are refused, and the same writer may try again.
        """
        with self._alone() as fence:
            highest = int(os.pread(fence, 32, 0) or b"0")
            if token < highest:
                raise dibs.StaleToken(
                    f"token {token} is older than {highest}, nothing was changed",
                    name=str(self.path),
                    step="start over from the lock",
                )
            os.pwrite(fence, b"%032d" % token, 0)
            os.fsync(fence)
            self._replace(contents)

    @contextmanager
    def _alone(self) -> Generator[int, None, None]:
        fence = os.open(self._fence, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fence, fcntl.LOCK_EX)
            yield fence
        finally:
            os.close(fence)

    def _replace(self, contents: bytes) -> None:
        """Readers see the old file or the new one, never a part of it, also after a power cut."""
        draft = self.path.with_name(self.path.name + ".draft")
        with draft.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def main() -> None:
    path = Path(sys.argv[1]).resolve()
    with dibs.connect() as client:
        try:
            with client.lock(f"file:{path}", timeout=10) as hold:
                FencedFile(path).write(sys.stdin.buffer.read(), hold.token)
        except dibs.AcquireTimeout as busy:
            sys.exit(str(busy))
        except (dibs.StaleToken, dibs.LockLost) as refused:
            sys.exit(f"refused: {refused}")


if __name__ == "__main__":
    main()
