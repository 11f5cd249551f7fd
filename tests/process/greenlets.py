"""greenlets.py URL: a greenlet waits for the lock of another one. -> served, HOLDS-OF-THE-HOLDER-STILL-VALID"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402

import gevent  # noqa: E402

import dibs  # noqa: E402

LEASE = 30.0
PATIENCE = 45.0
"""Longer than the lease: a hub that is frozen meanwhile renews nothing."""


def main(url: str) -> None:
    with dibs.connect(url, lease=LEASE) as client:
        hold = client.lock("a").acquire()
        waiter = gevent.spawn(lambda: client.lock("a").acquire(timeout=PATIENCE))
        while not (client.inspect("a").waiters or waiter.ready()):
            gevent.sleep(0.01)
        for _ in range(20):
            gevent.sleep(0.01)
        print("valid" if hold.remaining > 0 else "lost")
        hold.release()
        waiter.join()
        if waiter.exception is not None:
            raise waiter.exception
        waiter.value.release()
        print("served")


main(sys.argv[1])
