"""Clients that die or stand still, in processes of their own: the queue goes on without them, and never beside them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

import dibs
from lab.servers.supervisor import Server
from process.children import Crew, until
from store.faults.kit import LONG, PATIENCE, TIMEOUT
from store.faults.stores import SERVERS, SURVIVING, Store, on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


@pytest.fixture
def client(store: Store, server: Server) -> Iterator[dibs.Client]:
    with closing(dibs.connect(store.url(server), lease=LONG)) as made:
        yield made


@on(SERVERS)
def test_a_holder_is_killed(store: Store, client: dibs.Client, crew: Crew, name: str) -> None:
    """Nobody releases: a lease ends it, or, in session mode, the end of its connection, long before the lease."""
    victim = crew.worker(None if store.lasts else 10 * LONG)
    token = victim.take(name, TIMEOUT)
    assert client.lock(name).acquire(timeout=0) is None
    victim.kill()
    with client.lock(name, timeout=TIMEOUT) as won:
        assert won.token > token


@on(SURVIVING)
def test_a_waiter_is_killed(store: Store, client: dibs.Client, crew: Crew, name: str) -> None:
    """The lock is granted to the dead one, until its waiting claim has expired."""
    victim, hold = crew.worker(), client.lock(name).acquire()
    assert hold is not None
    victim.tell("take", name, PATIENCE)
    until(lambda: client.inspect(name).waiters, PATIENCE, "it waits")
    victim.kill()
    hold.release()
    with client.lock(name, timeout=TIMEOUT) as won:
        assert won.token > hold.token


@on(SERVERS)
def test_a_holder_stands_still_past_its_lease(store: Store, client: dibs.Client, crew: Crew, name: str) -> None:
    """On waking it knows that it holds nothing, and releases nothing of its successor's."""
    victim = crew.worker()
    token = victim.take(name, TIMEOUT)
    victim.freeze()
    won = client.lock(name).acquire(timeout=TIMEOUT)
    assert won is not None
    assert won.token > token
    victim.signal(signal.SIGCONT)
    check, lost, owned, *_, reason = victim.ask("state", name, hear="state")
    assert (check, lost, owned, reason) == ("LockLost", "lost", "not", "standstill")
    assert victim.ask("give", name, hear="gave") == ["LockLost"]
    won.check()
    assert [holder.token for holder in client.inspect(name).holders] == [won.token]
    won.release()
