"""Handlers for fork and exit, registered once for all clients of this process.

Before a fork, stores close what a child must not inherit (SQLite connections); afterwards the child's clients start
anew. At interpreter exit all clients release their remaining holds in parallel, for at most a second.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from dibs.core.client import Client
from dibs.events import Observer
from dibs.runtime.living import Living
from dibs.runtime.threads import boottime, ending, step

_EXIT_PATIENCE = 1.0
_clients: Living[Client] = Living()
_registered: list[bool] = []
_observers: dict[object, Observer] = {}
"""Those of `dibs.observe`, by registration."""


def track(client: Client) -> None:
    _clients.add(client)  # first: `observe` finds it there, or has put its observer into the list
    for registration, observer in _observers.copy().items():
        client.reporter.add(observer, registration)
    if not _registered:
        _registered.append(True)
        atexit.register(_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=_before, after_in_parent=partial(_after, False), after_in_child=partial(_after, True)
            )


def observe(observer: Observer) -> Callable[[], None]:
    """Add an observer to every client, also to those that are made later. The result removes it."""
    registration = object()
    _observers[registration] = observer
    for client in _clients.now():
        client.reporter.add(observer, registration)

    def stop() -> None:
        _observers.pop(registration, None)
        for client in _clients.now():
            client.reporter.remove(registration)

    return stop


def _before() -> None:
    for client in _clients.now():
        client.before_fork()


def _after(child: bool) -> None:
    for client in _clients.now():
        client.after_fork(child, pid=os.getpid())


def _exit() -> None:
    ending[0] = boottime() + _EXIT_PATIENCE
    leaving = []
    for client in _clients.now():
        with suppress(Exception):  # the process ends: leases end the other holds
            if (done := client.begin_exit()) is not None:
                leaving.append((client, done, client.now() + _EXIT_PATIENCE))
    for client, done, until in leaving:
        with suppress(Exception):
            step(done.wait(until))
            client.end_exit()
