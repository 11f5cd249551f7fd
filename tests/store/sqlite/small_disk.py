"""A program for a mount namespace of its own: a tiny file system that gets full, or can only be read.

small_disk.py full|readonly DIRECTORY
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import dibs
from store.small_disks import fill, tries

LEASE = 3.0


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def full(directory: Path) -> None:
    """Whatever is granted is granted to one, before, while and after the disk is full."""
    mount("-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(directory))
    url = f"sqlite:///{directory}/locks.db"
    one, other = dibs.connect(url, lease=LEASE), dibs.connect(url, lease=LEASE)
    kept = one.lock("kept").acquire(timeout=5)
    assert kept is not None
    assert other.lock("kept").acquire(timeout=0) is None
    filler = fill(directory)
    refused, end, number = 0, time.monotonic() + 1.5 * LEASE, 0
    while time.monotonic() < end:
        number += 1
        for first, second in ((one, other), (other, one)):
            name = f"{'n' * 200}{number}"
            got = tries(first, name)
            refused += isinstance(got, dibs.StoreError)
            if isinstance(got, dibs.Hold):
                rival = tries(second, name)
                assert not isinstance(rival, dibs.Hold) or got.lost.is_set(), "granted twice"
        rival = tries(other, "kept")
        assert not isinstance(rival, dibs.Hold) or kept.lost.is_set(), "taken from a valid holder"
        if isinstance(rival, dibs.Hold):
            with suppress(dibs.StoreError):
                rival.release()
    assert refused, "the disk was never full"
    filler.unlink()
    end = time.monotonic() + 60
    while not isinstance(hold := tries(one, "after", lease=60), dibs.Hold):
        assert time.monotonic() < end, hold
    assert tries(other, "after") is None
    hold.release()
    one.close()
    other.close()
    with closing(sqlite3.connect(directory / "locks.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    print(f"refused {refused} of {2 * number}")


def readonly(directory: Path) -> None:
    mount("-t", "tmpfs", "-o", "mode=0700", "tmpfs", str(directory))
    url = f"sqlite:///{directory}/locks.db"
    mount("-o", "remount,ro", str(directory))
    client = dibs.connect(url)
    error = tries(client, "a")
    assert isinstance(error, dibs.StoreError), error
    assert str(directory) in str(error)
    mount("-o", "remount,rw", str(directory))
    with client.lock("a", timeout=5) as hold:
        last = hold.token
    client.close()
    mount("-o", "remount,ro", str(directory))
    client = dibs.connect(url)
    error = tries(client, "a")
    assert isinstance(error, dibs.StoreError), error
    mount("-o", "remount,rw", str(directory))
    with client.lock("a", timeout=5) as hold:
        assert hold.token > last
    client.close()
    print("refused")


if __name__ == "__main__":
    assert os.geteuid() == 0
    {"full": full, "readonly": readonly}[sys.argv[1]](Path(sys.argv[2]))
