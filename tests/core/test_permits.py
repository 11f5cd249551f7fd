"""Permits come back wherever they were dropped, and go with whom they belong to."""

from __future__ import annotations

import gc
import threading
import weakref

from dibs.backends.permits import Permit, Permits


def test_one_that_is_dropped_comes_back_again_and_again() -> None:
    permits = Permits(2)
    for _ in range(5):
        taken = [permits.take(0.0), permits.take(0.0)]
        assert None not in taken
        assert permits.take(0.0) is None
        taken.clear()


def test_one_that_is_given_back_is_not_there_twice() -> None:
    permits = Permits(1)
    permit = permits.take(0.0)
    assert permit is not None
    permits.give(permit)
    del permit
    again = permits.take(0.0)
    assert again is not None
    assert permits.take(0.0) is None


def test_who_waits_gets_the_one_that_is_dropped() -> None:
    permits, found = Permits(1), list[object]()
    permit = permits.take(0.0)
    waiter = threading.Thread(target=lambda: found.append(permits.take(20.0)))
    waiter.start()
    del permit
    waiter.join(20)
    assert found != [None]


def test_they_go_with_their_queue_and_keep_nothing_alive() -> None:
    permits = Permits(3)
    late, queue = permits.take(0.0), weakref.ref(permits._free)
    gc.disable()
    try:
        del permits
        assert queue() is None
    finally:
        gc.enable()
    del late
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is Permit and thing.there is queue]
