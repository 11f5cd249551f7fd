"""A process that crosses the ways of others: locks, two at once, permits and cells, of a few names, again and again.

crossing.py URL SECONDS

Ends with 1, and says why, at the first error that is not a time-out; else it says how often it had something.
"""

from __future__ import annotations

import random
import sys
import time

import dibs

LOCKS = [f"lock-{n}" for n in range(5)]
LONG = 30.0
LEAST = 10


def once(client: dibs.Client) -> None:
    way = random.randrange(4)
    if way == 0:
        with client.lock(random.choice(LOCKS), timeout=LONG):
            pass
    elif way == 1:
        first, second = random.sample(LOCKS, 2)
        with dibs.multi(client.lock(first), client.lock(second), timeout=LONG):
            pass
    elif way == 2:
        permits = client.semaphore("permits", 3, timeout=LONG).acquire(random.randint(1, 2))
        assert permits is not None, "nobody let go for half a minute"
        permits.release()
    else:
        client.cell("counted").update(lambda value: b"%d" % (int(value or b"0") + 1))


def main(url: str, seconds: float) -> int:
    done, end = 0, time.monotonic() + seconds
    with dibs.connect(url, lease=5.0, retry=LONG) as client:
        kept = client.lock(f"kept-{random.random()}").acquire()  # it is renewed beside all that
        assert kept is not None
        while time.monotonic() < end or done < LEAST:
            once(client)
            done += 1
        kept.release()
    print(done)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
