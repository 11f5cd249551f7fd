"""Many `dibs run` at once, each in a fork of a process that has loaded it: they meet closer than real starts would.

crowd.py ROUNDS EACH WORD ...        so many times so many of `dibs run WORD ...`, started by one bang

Ends with 0 if all did; what went wrong stands on stderr.
"""

import gc
import os
import sys
from importlib import import_module

from dibs.cli.main import main


def fork(bang, words):
    pid = os.fork()
    if pid == 0:
        try:
            os.read(bang, 1)
            os._exit(main(["run", *words]))
        finally:
            os._exit(99)
    return pid


def meet(each, words):
    """The statuses."""
    reads, writes = os.pipe()
    pids = [fork(reads, words) for _ in range(each)]
    os.write(writes, bytes(each))
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.close(reads)
    os.close(writes)
    return statuses


# What a run loads is loaded once, here, and not copied because somebody counted references to it.
for module in ("ctypes", "dibs.cli.run", "dibs.backends.sqlite.store", "locale", "pwd"):
    import_module(module)
gc.freeze()
gc.disable()
for number in range(int(sys.argv[1])):
    if any(statuses := meet(int(sys.argv[2]), sys.argv[3:])):
        sys.exit(f"round {number}: {statuses}")
