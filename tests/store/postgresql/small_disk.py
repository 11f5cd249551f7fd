"""A program for a mount namespace of its own: a server whose tables are on a tiny file system that gets full.

small_disk.py DIRECTORY
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import dibs
from lab.servers.postgresql import PostgreSQL
from lab.servers.supervisor import Server, until
from store.small_disks import fill, tries

LEASE = 4.0


def main(directory: Path) -> None:
    """The tables are in a table space there; the log is elsewhere, or the server would stop altogether."""
    directory = directory.resolve()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0755", "tmpfs", directory], check=True)
    space = directory / "space"
    space.mkdir()
    kind = PostgreSQL()
    if kind.user is not None:
        shutil.chown(space, kind.user.pw_uid, kind.user.pw_gid)
    with Server(kind) as server:
        server.ask(f"CREATE TABLESPACE small LOCATION '{space}'")
        server.ask("ALTER ROLE dibs SET default_tablespace = small")
        one, other = dibs.connect(server.url(), lease=LEASE), dibs.connect(server.url(), lease=LEASE)
        kept = one.lock("kept").acquire(timeout=10)
        assert kept is not None
        assert other.lock("kept").acquire(timeout=0) is None
        filler = fill(directory)
        refused, number, end = 0, 0, time.monotonic() + 60
        while refused < 5:
            number += 1
            assert time.monotonic() < end, "the disk was never full"
            got = tries(one, f"{'n' * 400}{number}")
            if isinstance(got, dibs.Hold):
                rival = tries(other, f"{'n' * 400}{number}")
                assert not isinstance(rival, dibs.Hold) or got.lost.is_set(), "granted twice"
            elif isinstance(got, dibs.StoreError) and "did not answer in time" not in str(got):  # a machine stood still
                assert "No space left" in str(got) or "could not extend" in str(got), got
                refused += 1
            rival = tries(other, "kept")
            assert not isinstance(rival, dibs.Hold) or kept.lost.is_set(), "taken from a valid holder"
        filler.unlink()
        until(lambda: isinstance(tries(one, "after", lease=60), dibs.Hold), what="there is room again")
        assert tries(other, "after") is None
        one.close()
        other.close()
    print(f"refused {refused} of {number}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
