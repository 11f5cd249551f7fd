"""A test run in small, which does not clean up: it starts servers, says where, and ends as its argument asks.

One serves, one stands still, and one that forks stands still too. `killed` waits to be killed; `forked` leaves behind
a fork that lives on, and waits to be killed; `returned` ends by itself, and before it a fork of it has done so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from lab.servers import guard  # only now is there a path to it
from lab.servers.postgresql import PostgreSQL
from lab.servers.redis import Redis
from lab.servers.supervisor import Server


def fork(action: Callable[[], object]) -> int:
    """The pid of a fork that does so."""
    if (pid := os.fork()) == 0:
        action()
    return pid


def main(ending: str) -> None:
    serving, still, forking = Server(Redis()).start(), Server(Redis()).start(), Server(PostgreSQL()).start()
    still.stop()
    forking.stop()
    left = fork(lambda: time.sleep(600)) if ending == "forked" else 0
    if ending == "returned":
        os.waitpid(fork(sys.exit), 0)
    found = guard.working_in(guard.root())
    ports = [serving.port, still.port, forking.port]
    print(json.dumps({"root": str(guard.root()), "pids": found, "ports": ports, "left": left}), flush=True)
    if ending != "returned":
        time.sleep(600)


main(sys.argv[1])
