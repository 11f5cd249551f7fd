"""Takes random names again and again, and leaves a record of each hold that survives kill -9.

load.py URL LEASE COUNT LOG SEED THREADS CLIENTS NAME...     COUNT 0: until killed
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

import dibs


def clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Resource:
    """What the lock guards: it notices when somebody else used it in the middle of a use."""

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._directory = Path(log).parent

    def note(self, what: str, name: str, token: int) -> None:
        """One write to a file opened for appending: whole or not at all, also for a process that dies."""
        os.write(self._log, f"{what} {name} {token} {clock():.9f} {os.getpid()}\n".encode())

    def use(self, name: str, token: int, seconds: float) -> None:
        mark = self._directory / f"in-use-{name}"
        self.note("begin", name, token)
        mark.write_text(str(token))
        time.sleep(seconds)
        if mark.read_text() != str(token):
            self.note("overlap", name, token)
        self.note("end", name, token)


def work(client: dibs.Client, resource: Resource, count: int, dice: random.Random, names: list[str]) -> None:
    done = 0
    while done < count or not count:
        name = dice.choice(names)
        hold = client.lock(name).acquire(timeout=dice.choice([0, 5, 20]))
        if hold is None:
            continue
        resource.use(name, hold.token, dice.choice([0, 0, 0.001, 0.003]))
        hold.release()
        done += 1


def main(url: str, lease: str, count: str, log: str, seed: str, threads: str, clients: str, *names: str) -> None:
    resource = Resource(log)
    made = [dibs.connect(url, lease=float(lease)) for _ in range(int(clients))]
    for client in made:
        client.inspect(names[0])
    print("ready", flush=True)
    workers = [
        threading.Thread(
            target=work,
            args=(made[n % len(made)], resource, int(count), random.Random(f"{seed}-{n}"), list(names)),
            daemon=True,
        )
        for n in range(int(threads))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for client in made:
        client.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
