"""A command to be run under a lock, which says what happens to it, line by line on stdout.

witness.py WORD ... does one thing after the other:

| word          | does                                                                                       |
|---------------|--------------------------------------------------------------------------------------------|
| on:TERM       | from now on says `got TERM` for it, and goes on                                            |
| exit:TERM:7   | from now on says `got TERM` for it, and ends with that status                              |
| child         | forks a process of the same group that does as the words so far say, and then waits        |
| begin         | says `begun PID GROUP PARENT`                                                              |
| read          | says `heard ...` with the next line of stdin, or `end` where there is none; a signal that  |
|               | comes just before it reads is heard after it                                               |
| files:FILE    | writes the numbers of its open files there                                                 |
| orphans       | leaves ten orphans behind and says `reaped` when nothing is left of them                   |
| beat:FILE     | writes the clock to that file for ever, as often as it can                                 |
| log:FILE:0    | writes `begun`, `beat` again and again, `TERM` and `CONT` there, each with the clock; ends with |
|               | that status at TERM unless it is empty, and with 0 at the end of stdin                     |
| wait          | waits for ever                                                                             |
| end:7         | ends with that status                                                                      |
"""

# ruff: noqa: PTH110, PTH123, PTH208  (pathlib would take longer to load than all else here)

import os
import select
import signal
import sys
import time


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def react(name, status):
    def handler(number, frame):
        say("got", name)
        if status is not None:
            os._exit(int(status))

    signal.signal(getattr(signal, f"SIG{name}"), handler)


def fork():
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.close(reads)
        os.close(writes)
        wait()
    os.close(writes)
    os.read(reads, 1)  # it is there, with its handlers
    os.close(reads)


def read():
    line = sys.stdin.readline()
    say("heard", line.strip()) if line else say("end")


def files(path):
    seen = sorted(map(int, os.listdir("/proc/self/fd")))
    still = [number for number in seen if os.path.exists(f"/proc/self/fd/{number}")]  # not the one that listed them
    with open(path, "w") as file:
        file.write(" ".join(map(str, still)))


def orphan():
    """A process whose parent is gone; gives its pid."""
    reads, writes = os.pipe()
    parent = os.fork()
    if parent == 0:
        if pid := os.fork():
            os.write(writes, str(pid).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    pid = int(os.read(reads, 20))
    os.close(reads)
    os.close(writes)
    return pid


def orphans():
    end = time.monotonic() + 60
    for pid in [orphan() for _ in range(10)]:
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.01)
    say("reaped" if time.monotonic() < end else "never reaped")


def log(path, status):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(word):
        os.write(file, f"{word} {time.clock_gettime(time.CLOCK_BOOTTIME):.6f}\n".encode())

    def hear(number, frame):
        note(signal.Signals(number).name.removeprefix("SIG"))
        if number == signal.SIGTERM and status:
            os._exit(int(status))

    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, hear)
    note("begun")
    while not select.select([0], [], [], 0.005)[0]:
        note("beat")


def beat(path):
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"%.6f\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
            time.sleep(0.001)


def wait():
    """Not by signal.pause(): a signal that comes just before it would wait for the next one."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes)
    while True:
        os.read(reads, 100)


def do(word, *rest):
    {
        "on": lambda name: react(name, None),
        "exit": react,
        "child": fork,
        "begin": lambda: say("begun", os.getpid(), os.getpgrp(), os.getppid()),
        "read": read,
        "files": files,
        "orphans": orphans,
        "log": log,
        "end": lambda status: os._exit(int(status)),
        "beat": beat,
        "wait": wait,
    }[word](*rest)


if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as a program that is not Python
for argument in sys.argv[1:]:
    do(*argument.split(":"))
