"""A process that makes the file of a SQLite store drops no lock of another client."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import dibs

WITHIN = 60.0


def test_making_the_file_drops_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that closes any descriptor of a file loses its POSIX locks on it, also those of its other clients."""
    path = tmp_path / "locks.db"
    close, mknod, made, go_on = os.close, os.mknod, threading.Event(), threading.Event()

    def stop_maker() -> None:
        if threading.current_thread().name == "maker" and not made.is_set():
            made.set()
            go_on.wait(WITHIN)

    def stop_before_close(file: int) -> None:
        stop_maker()
        close(file)

    def stop_after_mknod(path: Path, mode: int) -> None:
        mknod(path, mode)
        stop_maker()

    def locks() -> int:
        return Path("/proc/locks").read_text().count(f":{path.stat().st_ino} ")

    monkeypatch.setattr(os, "close", stop_before_close)
    monkeypatch.setattr(os, "mknod", stop_after_mknod)
    with dibs.connect(f"sqlite:///{path}") as one, dibs.connect(f"sqlite:///{path}") as other:
        maker = threading.Thread(target=one.inspect, args=("a",), name="maker")
        maker.start()
        try:
            assert made.wait(WITHIN)
            with other.lock("a"):
                before = locks()
                go_on.set()
                maker.join()
                assert (before, locks()) == (1, 1), "SQLite's lock on its file: others may delete its log without it"
        finally:
            go_on.set()
            maker.join()
