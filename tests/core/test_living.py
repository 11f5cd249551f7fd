"""The registry of open things that a fork and `close()` iterate over, while other threads add to it."""

from __future__ import annotations

import threading

import pytest

from dibs.runtime.living import Living

pytestmark = pytest.mark.usefixtures("restless_threads")


class Thing:
    """Something that can be referenced weakly."""


def test_other_threads_add_meanwhile() -> None:
    known: Living[Thing] = Living()
    first, more, done = Thing(), list[Thing](), threading.Event()
    known.add(first)

    def add() -> None:
        while not done.is_set():
            more.append(Thing())
            known.add(more[-1])
            if len(more) > 1000:
                more.clear()

    adding = threading.Thread(target=add)
    adding.start()
    try:
        assert all(first in known.now() for _ in range(300))
    finally:
        done.set()
        adding.join()


def test_what_is_gone_is_not_known() -> None:
    known: Living[Thing] = Living()
    kept, dropped = Thing(), Thing()
    for one in (kept, dropped, kept):
        known.add(one)
    del dropped, one
    assert known.now() == [kept]
    known.discard(kept)
    assert known.now() == []
