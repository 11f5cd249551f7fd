"""A command to be run under a lock, which logs when it began, what it was told, and that it still lives.

logbook.py FILE [ignore | STATUS]        on TERM it goes on, or ends with that status

Each line is a word and an instant of the clock that all processes share: `begun`, `TERM`, `CONT`, `beat`. It ends with
status 0 when its stdin does: a test that fails leaves none behind.
"""

import os
import select
import signal
import sys
import time

log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
on_term = sys.argv[2] if len(sys.argv) > 2 else "ignore"


def note(word):
    os.write(log, f"{word} {time.clock_gettime(time.CLOCK_BOOTTIME):.6f}\n".encode())


def hear(number, frame):
    note(signal.Signals(number).name.removeprefix("SIG"))
    if number == signal.SIGTERM and on_term != "ignore":
        os._exit(int(on_term))


for number in (signal.SIGTERM, signal.SIGCONT):
    signal.signal(number, hear)
note("begun")
while not select.select([0], [], [], 0.005)[0]:
    note("beat")
