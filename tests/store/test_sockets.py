"""Sockets of all stores: their owner learns that one is readable, or has ended."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dibs.backends.common.disconnects import Disconnects
from dibs.backends.common.wakeup import READ, SelectPoll, Wakeup
from dibs.runtime.threads import ThreadRuntime

Ends = tuple[socket.socket, socket.socket]
PATIENCE = 60.0


class Owner:
    """The owner of a connection."""


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield ours, theirs


@pytest.mark.parametrize("poll", [select.poll, SelectPoll])
def test_one_that_was_closed_meanwhile_is_not_waited_for(poll: Any, ends: Ends) -> None:
    """Another thread closed it before this one asks the kernel; the next read shows it, on Windows too."""
    ours, _ = ends
    asked, number = poll(), ours.fileno()
    asked.register(number, READ)
    ours.close()
    assert [fd for fd, _ in asked.poll(PATIENCE * 1000)] == [number]


def test_a_number_that_a_closed_socket_bore_is_attended_to_anew(ends: Ends) -> None:
    """libpq, for example, closes a socket without telling us."""
    ours, theirs = ends
    with closing(socket.socket()) as before, closing(Wakeup()) as woken:
        number = before.fileno()
        woken.attend(number)
        before.detach()
        duplicate = socket.socket(fileno=socket.dup(ours.fileno()))
        with closing(duplicate):
            socket.close(number)
            again = socket.socket(fileno=socket.dup(duplicate.fileno()))
            with closing(again):
                assert again.fileno() == number, "the lowest that is free"
                woken.attend(number)
                theirs.send(b"!")
                assert woken.sleep(PATIENCE) == [number]


def test_the_owner_of_a_connection_learns_of_its_end_and_an_ignored_one_does_not(ends: Ends) -> None:
    ours, theirs = ends
    told: list[Owner] = []
    seen = threading.Event()
    disconnects = Disconnects(ThreadRuntime(), told.append, lambda: seen.set() if told else None)
    owner, former, ignored = Owner(), Owner(), Owner()
    here, there = socket.socketpair()
    with closing(disconnects), closing(here), closing(there):
        disconnects.attend(here.fileno(), ignored)
        disconnects.ignore(here.fileno(), ignored)
        disconnects.attend(ours.fileno(), owner)
        disconnects.ignore(ours.fileno(), former)  # the owner of an earlier connection with that descriptor, too late
        there.close()
        theirs.close()
        assert seen.wait(PATIENCE)
        assert told == [owner]
