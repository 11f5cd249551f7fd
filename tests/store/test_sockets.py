"""What the stores have in common of sockets: who is told that one has something to say, or has ended."""

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
PATIENCE = 20.0


class Whose:
    """Somebody a connection belongs to."""


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield ours, theirs


@pytest.mark.parametrize("poll", [select.poll, SelectPoll])
def test_one_that_was_closed_meanwhile_is_not_waited_for(poll: Any, ends: Ends) -> None:
    """By another thread, before this one asks the kernel: on Windows too it is found out by whoever reads it."""
    ours, _ = ends
    asked, number = poll(), ours.fileno()
    asked.register(number, READ)
    ours.close()
    assert [fd for fd, _ in asked.poll(PATIENCE * 1000)] == [number]


def test_a_number_that_a_closed_socket_bore_is_attended_to_anew(ends: Ends) -> None:
    """Whoever closed it, libpq as a rule, has told nobody."""
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


def test_the_end_of_a_connection_is_told_to_whom_it_belongs(ends: Ends) -> None:
    ours, theirs = ends
    told: list[Whose] = []
    is_told = threading.Event()

    def tell(whose: Whose) -> None:
        told.append(whose)
        is_told.set()

    disconnects = Disconnects(ThreadRuntime(), tell, lambda: None)
    owner, former = Whose(), Whose()
    with closing(disconnects):
        disconnects.attend(ours.fileno(), owner)
        disconnects.ignore(ours.fileno(), former)  # who had a connection of that number before, and is late to say so
        theirs.close()
        assert is_told.wait(PATIENCE)
    assert told == [owner]


def test_who_is_ignored_is_told_nothing(ends: Ends) -> None:
    ours, theirs = ends
    told: list[Whose] = []
    seen = threading.Event()
    disconnects = Disconnects(ThreadRuntime(), told.append, seen.set)
    owner, other = Whose(), Whose()
    here, there = socket.socketpair()
    with closing(disconnects), closing(here), closing(there):
        disconnects.attend(here.fileno(), other)
        disconnects.attend(ours.fileno(), owner)
        disconnects.ignore(ours.fileno(), owner)
        theirs.close()
        seen.clear()
        assert seen.wait(PATIENCE), "it has looked since"
        assert told == []  # before the other socket is closed, too
