"""A holder that is paused past its lease: real processes and a real SIGSTOP, without a fence and with one.

stopped_holder.py

Ana and Bob each add 1 to a number: take the lock, read, write. Ana is stopped between her read and her write, for
longer than her lease. Bob gets the lock and adds his 1. Then Ana continues and writes her old result. The first run
loses an update. In the second run the fence refuses Ana's write, and she starts over.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import dibs

LEASE = 1.0
WRITE = {
    "plain": "UPDATE counter SET n = :n",
    "fenced": "UPDATE counter SET n = :n, fence = :token WHERE fence <= :token",
}


def clerk(name: str, database: str, how: str) -> None:
    """Add 1, and start over if the write was refused."""
    with dibs.connect(lease=LEASE) as client, closing(sqlite3.connect(database, isolation_level=None)) as db:
        lock = client.lock("counter", timeout=30)
        while not add_one(name, lock, db, how):
            say(f"{name}: begins again")


def add_one(name: str, lock: dibs.Lock, db: sqlite3.Connection, how: str) -> bool:
    """After the read it waits for a line on stdin, so that it can be stopped there."""
    hold = lock.acquire()
    assert hold is not None
    (n,) = db.execute("SELECT n FROM counter").fetchone()
    say(f"{name}: has the lock, token ...{hold.token % 10_000_000:07}, reads {n}")
    sys.stdin.readline()
    done = db.execute(WRITE[how], {"n": n + 1, "token": hold.token}).rowcount == 1
    say(f"{name}: writes {n + 1}: {'accepted' if done else 'refused'}")
    try:
        hold.release()
    except dibs.LockLost:
        say(f"{name}: had lost the lock before")
    return done


def say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def process(name: str, database: str, how: str) -> Generator[subprocess.Popen[str], None, None]:
    """A clerk in its own process, which has just read the number."""
    argv = [sys.executable, __file__, name, database, how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            say("  " + child.stdout.readline().rstrip())
            yield child
        finally:
            child.kill()


def finish(child: subprocess.Popen[str]) -> None:
    """Let it write, and print the rest of its output."""
    said, _ = child.communicate()
    for line in said.splitlines():
        say("  " + line)


def play(how: str, database: str) -> int:
    """Return the final number; 2 is right."""
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("CREATE TABLE counter (n INTEGER NOT NULL, fence INTEGER NOT NULL)")
        db.execute("INSERT INTO counter VALUES (0, 0)")
    with process("ana", database, how) as ana:
        ana.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, ana.pid, os.WSTOPPED)
        say("  -- ana is stopped")
        with process("bob", database, how) as bob:  # gets the lock when ana's lease is over
            finish(bob)
        say("  -- ana goes on")
        ana.send_signal(signal.SIGCONT)
        finish(ana)
    with closing(sqlite3.connect(database)) as db:
        (n,) = db.execute("SELECT n FROM counter").fetchone()
    return int(n)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        say("Without a fence:")
        n = play("plain", str(Path(directory, "plain.db")))
        say(f"  two added 1 to 0, and the number is {n}")
        say("With a fence:")
        n = play("fenced", str(Path(directory, "fenced.db")))
        say(f"  two added 1 to 0, and the number is {n}")


if __name__ == "__main__":
    clerk(*sys.argv[1:]) if len(sys.argv) > 1 else main()
